"""How a message quotes what was given, for the verbs estimate and size. Left out: scenario keys (scenario.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def seen(value: Any) -> str:
    """A value as a message quotes it, at most 40 characters.

    >>> seen(None), seen(-1), seen("x"), seen({}), seen([]), seen([1, 2])
    ('missing', '-1', "'x'", 'an object', 'an empty list', 'a list of 2')
    >>> seen(True)
    'true'
    """
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, int | str):
        try:
            return repr(value)[:40]
        except ValueError:  # Python refuses to write whole numbers of thousands of digits
            return "a number of too many digits"
    return "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def seconds_text(seconds: float) -> str:
    """Seconds in the unit that reads best.

    >>> seconds_text(0.0042), seconds_text(0.25), seconds_text(3.5), seconds_text(2e-6)
    ('4.2 ms', '250 ms', '3.5 s', '0.002 ms')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def between(low: float, high: float) -> str:
    """A range as a message gives it: nobody thinks in 1e-09.

    >>> between(1e-9, 1e7), between(1, 64), between(-1e9, 1e9), between(0, 0)
    ('above 0, at most 10,000,000', '1 to 64', '-1,000,000,000 to 1,000,000,000', 'exactly 0')
    """
    if low == high:
        return f"exactly {low:,.10g}"
    least = "above 0, at most" if 0 < low < 1e-3 else f"{low:,.10g} to"
    return f"{least} {high:,.10g}"


def times_text(ratio: float) -> str:
    """How many times, as read.

    >>> times_text(1.018), times_text(13.22), times_text(2180905.4)
    ('1.02 x', '13.2 x', '2,180,905 x')
    """
    return f"{ratio:.2f} x" if ratio < 10 else f"{ratio:.1f} x" if ratio < 100 else f"{ratio:,.0f} x"
