"""Time-weighted readings of one engine: block use, running, waiting, gaps between tokens, and a thinned
timeline.

Everything here is of bounded size however long the run is: histograms, sums, and a timeline that halves
itself.
"""

from __future__ import annotations

import math
from array import array

import numpy as np

from capacity.simulation.step_time import TICKS_PER_S

_S = float(TICKS_PER_S)
USAGE_BINS = 1000
_BINS_PER_DECADE = 200
_LOW = -7.0
_CHUNK = 1 << 15


class GapHistogram:
    """Seconds with a weight each, in bins of 1.2 % width from 100 ns to 10,000 s; mean exact, percentiles to
    the bin.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(11 * _BINS_PER_DECADE + 1)
        self.total_s = 0.0
        self.weight = 0
        self._values = array("d")
        self._weights = array("d")

    def add(self, seconds: float, weight: int) -> None:
        self._values.append(seconds)
        self._weights.append(weight)
        if len(self._values) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        values = np.frombuffer(self._values, dtype=float)
        weights = np.frombuffer(self._weights, dtype=float)
        self.total_s += float(values @ weights)
        self.weight += int(weights.sum())
        index = np.clip(
            (np.log10(np.maximum(values, 1e-9)) - _LOW) * _BINS_PER_DECADE, 0, len(self.counts) - 1
        )
        self.counts += np.bincount(index.astype(np.int64), weights=weights, minlength=len(self.counts))
        del values, weights
        self._values = array("d")
        self._weights = array("d")

    def merge(self, other: GapHistogram) -> None:
        """Add another engine's gaps."""
        other.close()
        self.close()
        self.counts += other.counts
        self.total_s += other.total_s
        self.weight += other.weight

    def close(self) -> None:
        if len(self._values):
            self._flush()

    def mean(self) -> float | None:
        self.close()
        return self.total_s / self.weight if self.weight else None

    def quantile(self, q: float) -> float | None:
        """The value below which a share ``q`` of the weight lies, interpolated within its bin."""
        self.close()
        if not self.weight:
            return None
        cumulative = np.cumsum(self.counts)
        index = int(np.searchsorted(cumulative, q * self.weight))
        index = min(index, len(self.counts) - 1)
        before = cumulative[index - 1] if index else 0.0
        inside = (q * self.weight - before) / self.counts[index] if self.counts[index] else 0.5
        return float(10 ** (_LOW + (index + min(max(inside, 0.0), 1.0)) / _BINS_PER_DECADE))


class Timeline:
    """Samples of an engine over time: at most ``limit``, evenly spread, and two for a stretch longer than the
    interval (where it starts and where it ends). The interval doubles when the table is full.

    ``peak_blocks`` is the most blocks in use since the row before, so that no peak is lost between samples.
    """

    columns = (
        "t_s",
        "running",
        "waiting",
        "used_blocks",
        "peak_blocks",
        "admitted",
        "finished",
        "rejected",
        "preemptions",
        "prompt_tokens",
        "output_tokens",
    )

    def __init__(self, *, interval: int, limit: int = 2000) -> None:
        self.interval = max(interval, 1)
        self.limit = limit
        self.next = 0
        self.rows: list[tuple[int, ...]] = []

    def add(self, row: tuple[int, ...]) -> None:
        self.rows.append(row)
        self.next = row[0] + self.interval
        if len(self.rows) >= self.limit:
            self.rows = self._thinned()
            self.interval *= 2
            self.next = self.rows[-1][0] + self.interval

    def _thinned(self) -> list[tuple[int, ...]]:
        """Every second row; what was the peak of a dropped one is the peak of the next."""
        at = self.columns.index("peak_blocks")
        rows = self.rows
        kept = rows[:1]
        for before, row in zip(rows[1::2], rows[2::2], strict=False):
            kept.append((*row[:at], max(before[at], row[at]), *row[at + 1 :]))
        if len(rows) % 2 == 0:
            kept.append(rows[-1])
        return kept

    def as_columns(self) -> dict[str, list[float]]:
        """Column name -> values, time in seconds."""
        table: dict[str, list[float]] = {name: [] for name in self.columns}
        for row in self.rows:
            for name, value in zip(self.columns, row, strict=True):
                table[name].append(value / _S if name == "t_s" else value)
        return table


class Meter:
    """Sums of one engine."""

    def __init__(self, *, total_blocks: int, timeline: Timeline) -> None:
        self.total_blocks = total_blocks
        self.usage_ticks = [0] * (USAGE_BINS + 1)
        self.used_area = 0
        self.running_area = 0
        self.busy_ticks = 0
        self.peak_blocks = 0
        self.peak_since = 0
        self.peak_running = 0
        self.peak_waiting = 0
        self.steps = 0
        self.prefill_steps = 0
        self.mixed_steps = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.admitted = 0
        self.finished = 0
        self.rejected = 0
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.aborted_prompt_tokens = 0
        self.aborted_output_tokens = 0
        self.swapped_blocks = 0
        self.swap_ticks = 0
        self.swap_refused = 0
        self.cap_lost_tokens = 0
        self.hit_tokens = 0
        self.queried_tokens = 0
        self.wait_ticks = {"seats": 0, "blocks": 0, "budget": 0, "preempted": 0, "batch": 0}
        self.passed_over_ticks = 0
        self.gaps = GapHistogram()
        self.timeline = timeline

    def stretch(self, ticks: int, before: int, after: int, running: int) -> None:
        """``ticks`` during which the used blocks rose evenly from ``before`` to ``after``."""
        self.busy_ticks += ticks
        self.used_area += ticks * (before + after) // 2
        self.running_area += ticks * running
        if running > self.peak_running:
            self.peak_running = running
        if after > self.peak_blocks:
            self.peak_blocks = after
        first = before * USAGE_BINS // self.total_blocks
        last = after * USAGE_BINS // self.total_blocks
        if first == last:
            self.usage_ticks[last] += ticks
        else:
            share, rest = divmod(ticks, last - first + 1)
            for index in range(first, last + 1):
                self.usage_ticks[index] += share
            self.usage_ticks[last] += rest

    def cut(self, ticks: int, used: int, running: int) -> None:
        """Take back the last ``ticks`` of the step in progress, which the run does not live to see."""
        self.busy_ticks -= ticks
        self.used_area = max(self.used_area - ticks * used, 0)
        self.running_area = max(self.running_area - ticks * running, 0)
        last = used * USAGE_BINS // self.total_blocks
        self.usage_ticks[last] = max(self.usage_ticks[last] - ticks, 0)

    def sample(self, at: int, running: int, waiting: int, used: int) -> None:
        """A row of the timeline."""
        self.timeline.add(
            (
                at,
                running,
                waiting,
                used,
                max(self.peak_since, used),
                self.admitted,
                self.finished,
                self.rejected,
                self.preemptions,
                self.prompt_tokens,
                self.output_tokens,
            )
        )
        self.peak_since = used

    def usage_quantile(self, q: float, span_ticks: int) -> float | None:
        """Share of blocks in use that is not exceeded during a share ``q`` of the run (idle time counts as
        0).
        """
        if span_ticks <= 0:
            return None
        left = q * span_ticks - max(span_ticks - self.busy_ticks, 0)
        for index, ticks in enumerate(self.usage_ticks):
            left -= ticks
            if left <= 0 and (ticks or index == 0):
                return min((index + 0.5) / USAGE_BINS, self.peak_blocks / self.total_blocks) if ticks else 0.0
        return self.peak_blocks / self.total_blocks


def quantile(values: np.ndarray, q: float) -> float | None:
    """Linear-interpolated quantile of finite values, None when there are none."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return None
    result = float(np.quantile(finite, q))
    return result if math.isfinite(result) else None
