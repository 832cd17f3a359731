"""Units: bytes to GiB (2^30) for memory; GB/s is 1e9 for bandwidth. Names of values carry their unit."""

from __future__ import annotations

import math

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below a / b, for b > 0.

    >>> ceil_div(8191, 16)
    512
    """
    return -(-a // b)


def gib(n_bytes: float) -> float:
    """Bytes as GiB. The 13B example's KV at 4,096 tokens:

    >>> gib(819_200 * 4096)
    3.125
    """
    return n_bytes / GIB


def memory_text(n_bytes: float) -> str:
    """Bytes as a sentence gives them: small amounts in MiB, never a rounded zero.

    >>> memory_text(2 << 30), memory_text(2 << 20), memory_text(0)
    ('2.00 GiB', '2 MiB', '0 MiB')
    """
    return f"{gib(n_bytes):.2f} GiB" if n_bytes >= GIB / 20 else f"{n_bytes / MIB:.3g} MiB"


def from_gib(value_gib: float) -> int:
    """GiB as whole bytes, rounded down."""
    return math.floor(value_gib * GIB)
