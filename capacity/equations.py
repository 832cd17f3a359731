"""One line of "how this number came about": a formula, the values put in, the result, the source of the rule.

Source: the plan's own records. Left out: which lines there are (explain, explain_layout).
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.units import GIB, KIB, MIB

PLANNER = "vLLM's KV cache planner, repeated on its own results of 22 releases"


@dataclass(frozen=True, slots=True, kw_only=True)
class Equation:
    """A step of the chain. ``value``: the result as a number in ``unit``, None where it is a text only."""

    section: str
    name: str
    formula: str
    values: str
    result: str
    source: str
    value: float | None = None
    unit: str = ""


def whole(value: float) -> str:
    """A whole number with thousands separators.

    >>> whole(131072)
    '131,072'
    """
    return f"{value:,.0f}"


def bytes_text(value: float) -> str:
    """Bytes with separators, and in MiB or GiB where that reads better.

    >>> bytes_text(1152), bytes_text(819_200), bytes_text(3.125 * GIB)
    ('1,152 B', '819,200 B (0.78 MiB)', '3.12 GiB')
    """
    if abs(value) >= GIB / 4:
        return f"{value / GIB:,.2f} GiB"
    if abs(value) >= 100 * KIB:
        return f"{value:,.0f} B ({value / MIB:.2f} MiB)"
    return f"{value:,.0f} B"


def element_text(value: float) -> str:
    """Bytes of one element: whole where they are.

    >>> element_text(2.0), element_text(0.5625)
    ('2', '0.5625')
    """
    return f"{value:g}"
