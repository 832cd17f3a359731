"""What happened to every request, as flat arrays, and an optional log of events for small runs."""

from __future__ import annotations

import math
from array import array
from typing import NamedTuple

from capacity.simulation.step_time import TICKS_PER_S

UNSEEN, FINISHED, REJECTED, ABORTED = range(4)

_S = float(TICKS_PER_S)


class Event(NamedTuple):
    """One line of a run's log: when (ticks), what, which request, and a number that goes with it (tokens,
    blocks).
    """

    ticks: int
    kind: str
    request: int
    value: int = 0
    replica: int = 0

    @property
    def at_s(self) -> float:
        return self.ticks / _S


class Record:
    """Outcomes by request number; times in seconds, NaN where it did not happen (the report turns it into
    None).
    """

    def __init__(self, count: int, *, log: bool = False) -> None:
        blank = array("d", [math.nan])
        self.count = count
        self.closed = 0
        self.outcome = array("b", [UNSEEN]) * count
        self.reason = array("h", [0]) * count
        self.scheduled_s = blank * count
        self.first_token_s = blank * count
        self.end_s = blank * count
        self.preempted_s = array("d", [0.0]) * count
        self.preemptions = array("l", [0]) * count
        self.attempts = array("h", [0]) * count
        self.reasons: list[str] = [""]
        self.log: list[Event] | None = [] if log else None

    def reason_code(self, reason: str) -> int:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason)

    def close(self, request: int, outcome: int, reason: str, ticks: int) -> None:
        """A request leaves without its answer."""
        self.closed += 1
        self.outcome[request] = outcome
        self.reason[request] = self.reason_code(reason)
        self.end_s[request] = ticks / _S
