"""A bounded memory of one engine's intervals: fine at the young end, ever coarser towards the old one.

What it answers: the recent past without the history file. When it is full, its older half is merged pairwise,
so that tokens and observations are conserved. Left out: threads (the poller locks).
"""

from __future__ import annotations

from capacity.intervals import Interval, merge

MAX_STEP_S = 600.0


class Ring:
    """At most ``size`` intervals. Steps grow to ``MAX_STEP_S``; beyond that the oldest go."""

    def __init__(self, size: int) -> None:
        self.size = max(8, size)
        self.items: list[Interval] = []

    def append(self, interval: Interval) -> None:
        self.items.append(interval)
        if len(self.items) > self.size:
            self._thin()

    def _thin(self) -> None:
        half = len(self.items) // 2
        old, young = self.items[:half], self.items[half:]
        merged: list[Interval] = []
        at = 0
        while at < len(old):
            pair = old[at : at + 2]
            if sum(i.seconds for i in pair) <= MAX_STEP_S and len(pair) == 2 and _alike(*pair):
                merged.append(merge(pair))
                at += 2
            else:
                merged.append(old[at])
                at += 1
        if len(merged) == len(old):
            merged = merged[len(merged) // 4 + 1 :]
        self.items = merged + young

    def since(self, start_s: float) -> list[Interval]:
        """Intervals that end after ``start_s``, oldest first."""
        return [i for i in self.items if i.end_s > start_s]


def _alike(a: Interval, b: Interval) -> bool:
    return (a.state == "ok") == (b.state == "ok")
