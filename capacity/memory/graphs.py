"""CUDA graphs: how many are captured by default and what the engine estimates for them.

Source: capture sizes of config/vllm.py; estimates printed by start-up logs. Left out: encoder graphs, sizes set by
hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.engine import Version
from capacity.hardware import Gpu
from capacity.memory.coefficients import coefficient
from capacity.units import GIB

LARGEST = 512
LARGEST_BLACKWELL = 1024
REFERENCE_GRAPHS = 102


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """Number of captured graphs and their memory in bytes with an interval."""

    count: int
    bytes: float
    low_bytes: float
    high_bytes: float
    source: str


def capture_sizes(largest: int) -> int:
    """How many sizes up to ``largest``: 1, 2, 4, then steps of 8 below 256 and of 16 from there.

    >>> capture_sizes(512), capture_sizes(256), capture_sizes(8)
    (51, 35, 4)
    """
    small = sum(1 for size in (1, 2, 4) if size <= largest)
    middle = max(0, min(largest, 255) // 8)
    return small + middle + (max(0, (largest - 256) // 16 + 1) if largest >= 256 else 0)


def cuda_graphs(
    *,
    gpu: Gpu | None,
    version: Version,
    num_layers: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    num_speculative_tokens: int,
) -> Graphs:
    """What the engine's own estimate would be for the default capture sizes."""
    query = 1 + num_speculative_tokens
    capability = gpu.compute_capability if gpu is not None and gpu.vendor == "NVIDIA" else ""
    most = LARGEST_BLACKWELL if version >= (0, 32, 0) and capability.startswith("10.") else LARGEST
    largest = min(max_num_seqs * query * 2, most, max_num_batched_tokens)
    decode = min(max_num_seqs * query, largest)
    count = capture_sizes(largest) + capture_sizes(decode)
    old = capability[:1] in ("7", "8")
    base = coefficient("graph_base_gib", version, "any")
    layer = coefficient("graph_gib_per_layer", version, "cc8" if old else "cc9")
    scale = num_layers * count / REFERENCE_GRAPHS
    return Graphs(
        count=count,
        bytes=(base.value + layer.value * scale) * GIB,
        low_bytes=(base.low + layer.low * scale) * GIB,
        high_bytes=(base.high + layer.high * scale) * GIB,
        source=f"{count} graphs of {num_layers} layers; {layer.source}",
    )
