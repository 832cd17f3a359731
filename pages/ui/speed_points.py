"""Points that a person measured: a small table on the page, a short text in the link, bound to the inputs they are of.

Text: ``8,11,;64,20,300`` is two points of concurrency, TPOT ms and TTFT ms. Left out: what they correct (measured.py).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from capacity.errors import CapacityError
from capacity.performance.measured import MOST_POINTS, MeasuredPoint, measured_points
from capacity.scenario import Scenario

COLUMNS = ("concurrency", "tpot_ms", "ttft_ms")


def fingerprint(scenario: Scenario) -> str:
    """A short name of what a point was measured on."""
    text = json.dumps(scenario.to_json(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def points_of(rows: Iterable[Mapping[str, Any]]) -> tuple[MeasuredPoint, ...]:
    """Points of the table's rows; rows without any number are left out. Raises CapacityError.

    >>> points_of([{"concurrency": 8, "tpot_ms": 11, "ttft_ms": None}])[0].tpot_s
    0.011
    """
    found = []
    for number, row in enumerate(rows, start=1):
        values = [_number(row.get(key)) for key in COLUMNS]
        if all(value is None for value in values):
            continue
        if values[0] is None or values[1] is None:
            raise CapacityError(
                f"measured point {number} lacks {'requests in flight' if values[0] is None else 'TPOT'}; "
                "expected both, TTFT may stay empty",
                field="measured_points",
            )
        found.append(
            {
                "concurrency": values[0],
                "tpot_s": values[1] / 1e3,
                "ttft_s": None if values[2] is None else values[2] / 1e3,
            }
        )
    return measured_points(found)


def _number(value: Any) -> float | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return float(value)


def rows_of(points: Sequence[MeasuredPoint]) -> list[dict[str, float | None]]:
    """Points as rows of the table."""
    return [
        {
            "concurrency": p.concurrency,
            "tpot_ms": round(p.tpot_s * 1e3, 6),
            "ttft_ms": None if p.ttft_s is None else round(p.ttft_s * 1e3, 6),
        }
        for p in points
    ]


def to_text(points: Sequence[MeasuredPoint]) -> str:
    """Points as a value of the link.

    >>> to_text(from_text("8,11,;64,20,300"))
    '8,11,;64,20,300'
    """
    return ";".join(
        ",".join("" if row[key] is None else f"{row[key]:.6g}" for key in COLUMNS) for row in rows_of(points)
    )


def from_text(text: str) -> tuple[MeasuredPoint, ...]:
    """The points of a link's value. Raises CapacityError."""
    rows = []
    for part in text.split(";")[: MOST_POINTS + 1]:
        cells = [cell.strip() for cell in part.split(",")]
        try:
            values = [float(cell) if cell else None for cell in (*cells, "", "")[:3]]
        except ValueError:
            raise CapacityError(
                f"the link's measured point {part[:40]!r} is no concurrency,TPOT ms,TTFT ms",
                field="measured_points",
            ) from None
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return points_of(rows)
