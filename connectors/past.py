"""A Prometheus target's past, kept for those who draw it: what was read stays, only what is new is asked.

What it answers: the intervals of a window before this process' memory. A server that does not answer is said
in ``problem`` and asked again after a pause. Left out: the queries (``prometheus_past``).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from capacity.intervals import Interval
from connectors.errors import ConnectorError
from connectors.prometheus_api import PrometheusClient
from connectors.prometheus_history import DEFAULT_INTERVAL_S, scrape_interval
from connectors.prometheus_past import past_intervals
from connectors.targets import Target

RETRY_S = 30.0
KEPT_STEPS = 4


@dataclass(slots=True)
class _Kept:
    """What was read at one step: the span and its intervals, by engine and time."""

    since_s: float
    until_s: float
    intervals: list[Interval]


class Past:
    """The stored history behind one Prometheus target. ``window`` never raises: ``problem`` says why it is
    empty.
    """

    def __init__(self, target: Target, *, steady: Callable[[], float] = time.monotonic) -> None:
        self.problem: str | None = None
        self._target = target
        self._steady = steady
        self._lock = threading.Lock()
        self._interval_s: float | None = None
        self._kept: dict[float, _Kept] = {}
        self._retry_at = 0.0

    def window(self, start_s: float, end_s: float, *, step_s: float) -> list[Interval] | None:
        """Intervals that end in ``(start_s, end_s]``, in steps of about ``step_s`` and never finer than the
        server scrapes; None while the server does not answer.
        """
        with self._lock:
            if self.problem is not None and self._steady() < self._retry_at:
                return None
            try:
                found = self._read(start_s, end_s, step_s)
            except ConnectorError as error:
                self.problem = str(error)
                self._retry_at = self._steady() + RETRY_S
                return None
            self.problem = None
            return found

    def _read(self, start_s: float, end_s: float, wanted_s: float) -> list[Interval]:
        if self._interval_s is None:
            self._interval_s = scrape_interval(PrometheusClient(self._target), self._target, at_s=end_s)
        interval_s = self._interval_s or DEFAULT_INTERVAL_S
        step_s = float(math.ceil(max(wanted_s, interval_s)))
        since_s = math.floor(start_s / step_s) * step_s
        until_s = math.floor(end_s / step_s) * step_s
        kept = self._kept.pop(step_s, None)
        if kept is None or since_s < kept.since_s or since_s > kept.until_s:
            kept = _Kept(since_s, since_s, [])
        if until_s > kept.until_s:
            kept.intervals += past_intervals(
                self._target,
                start_s=kept.until_s,
                end_s=until_s,
                step_s=step_s,
                interval_s=interval_s,
            )
            kept.until_s = until_s
        kept.intervals = [i for i in kept.intervals if i.end_s > since_s]
        kept.since_s = since_s
        self._kept[step_s] = kept
        while len(self._kept) > KEPT_STEPS:
            del self._kept[next(iter(self._kept))]
        return sorted(
            (i for i in kept.intervals if start_s < i.end_s <= end_s), key=lambda i: (i.engine, i.end_s)
        )
