"""Tables that a report carries when it is asked for them: single requests, and refusals over time.

Left out: the timeline of an engine (meters).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from capacity.simulation.record import ABORTED, REJECTED
from capacity.simulation.run import Run

if TYPE_CHECKING:
    from capacity.simulation.report import Table

MOST_ROWS = 200


def refused_over_time(run: Run, table: Table, times: list[float]) -> dict[str, list[float]]:
    """Requests refused for good up to each time, by reason."""
    found: dict[str, list[float]] = {"t_s": times}
    for code, reason in enumerate(run.record.reasons):
        at = np.sort(table.end_s[(table.outcome == REJECTED) & (table.reason == code)])
        if at.size:
            found[reason] = np.searchsorted(at, times, side="right").tolist()
    return found


def request_rows(run: Run, table: Table) -> list[dict[str, Any]]:
    """Up to 200 requests, one bar each."""
    names = ("unseen", "finished", "rejected", "aborted")

    def value(column: np.ndarray, row: int) -> float | None:
        number = float(column[row])
        return number if math.isfinite(number) else None

    return [
        {
            "request": row,
            "arrival_s": value(table.arrival_s, row),
            "scheduled_s": value(table.scheduled_s, row),
            "first_token_s": value(table.first_token_s, row),
            "end_s": value(table.end_s, row),
            "outcome": names[table.outcome[row]],
            "reason": run.record.reasons[table.reason[row]]
            if table.outcome[row] in (REJECTED, ABORTED)
            else None,
            "prompt_tokens": int(table.prompt[row]),
            "output_tokens": int(table.output[row]),
            "preemptions": int(table.preemptions[row]),
        }
        for row in range(min(len(table.outcome), MOST_ROWS))
    ]
