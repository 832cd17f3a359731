"""What one engine did between two moments: gauges, counter increments and histogram increments, mergeable.

What it answers: the smallest record from which any longer window's rates and percentiles can be
computed later. Ring buffers and the history file hold these. Left out: reading (telemetry) and keeping.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from capacity.errors import CapacityError

# Gauges merge to the time-weighted mean; a peak keeps the worst moment so that thinning never hides a spike.
GAUGES = (
    "running",
    "waiting",
    "waiting_capacity",
    "waiting_deferred",
    "kv_usage",
    "gpu_tensor_active",
    "gpu_dram_active",
)
PEAKS = ("kv_usage_peak", "waiting_peak", "running_peak")
FACTS = ("num_blocks", "block_size", "kv_capacity_tokens", "max_concurrency", "scrape_s")
COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "finished_stop",
    "finished_length",
    "finished_abort",
    "finished_error",
    "finished_other",
    "preemptions",
    "rejections",
    "prefix_queries",
    "prefix_hits",
    "spec_draft_tokens",
    "spec_accepted_tokens",
)
HISTOGRAMS = (
    "ttft_s",
    "itl_s",
    "tpot_s",
    "e2e_s",
    "queue_s",
    "prefill_s",
    "decode_s",
    "step_tokens",
    "request_prompt_tokens",
    "request_generation_tokens",
)
FINISHED = tuple(name for name in COUNTERS if name.startswith("finished_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramDelta:
    """Observations per bucket, not cumulative. ``bounds`` are finite and upper; the last count is +Inf."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float | None = None

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1:
            raise CapacityError(
                f"{len(self.counts)} bucket counts for {len(self.bounds)} finite bounds; one more is expected"
            )

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Sum over count; None without observations."""
        count = self.count
        return self.sum / count if count and self.sum is not None else None

    def cumulative(self) -> list[tuple[float, float]]:
        """(upper bound, observations not above it), the last bound infinite.

        >>> HistogramDelta(bounds=(0.1, 1.0), counts=(3, 0, 1)).cumulative()
        [(0.1, 3.0), (1.0, 3.0), (inf, 4.0)]
        """
        total, found = 0.0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One engine from ``end_s - seconds`` to ``end_s`` (Unix seconds).

    ``state`` is "ok", "partial" or why nothing is known ("down: connection refused"); then values are None.
    ``counted_s`` is the part whose counters were readable (0 after a restart): rates divide by it.
    Values missing from the mappings, or None in them, are unknown.
    """

    target: str
    engine: str
    model_name: str | None
    release: str | None = None
    end_s: float
    seconds: float
    counted_s: float
    state: str = "ok"
    demo: bool = False
    values: Mapping[str, float | None] = field(default_factory=dict)
    increments: Mapping[str, float | None] = field(default_factory=dict)
    histograms: Mapping[str, HistogramDelta] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """A gauge, peak or fact; a peak falls back to its gauge."""
        found = self.values.get(name)
        if found is None and name.endswith("_peak"):
            return self.values.get(name.removesuffix("_peak"))
        return found

    def rate(self, name: str) -> float | None:
        """Increment per second; None where the counter was not readable."""
        increment = self.increments.get(name)
        return None if increment is None or self.counted_s <= 0 else increment / self.counted_s


def _weighted_mean(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in pairs if value is not None]
    weight = sum(w for _, w in known)
    if not known:
        return None
    return sum(v * w for v, w in known) / weight if weight > 0 else known[-1][0]


def _merged_state(states: Sequence[str]) -> str:
    if all(state == states[-1] for state in states):
        return states[-1]
    return "partial" if any(state in ("ok", "partial") for state in states) else states[-1]


def merge_histograms(deltas: Sequence[HistogramDelta]) -> HistogramDelta | None:
    """The sum of ``deltas``. Different bounds are merged on those that all share, where the number of
    observations below is known exactly; None where they share none.

    >>> one = HistogramDelta(bounds=(1.0,), counts=(2, 1), sum=3.0)
    >>> merge_histograms([one, one]).counts
    (4, 2)
    >>> other = HistogramDelta(bounds=(0.5, 1.0, 2.0), counts=(1, 3, 0, 1), sum=4.0)
    >>> merge_histograms([one, other]).bounds, merge_histograms([one, other]).counts
    ((1.0,), (6, 2))
    """
    if not deltas:
        return None
    if any(delta.bounds != deltas[0].bounds for delta in deltas):
        shared = set.intersection(*(set(delta.bounds) for delta in deltas))
        if not shared:
            return None
        bounds = tuple(sorted(shared))
        deltas = [_rebucketed(delta, bounds) for delta in deltas]
    sums = [delta.sum for delta in deltas]
    return HistogramDelta(
        bounds=deltas[0].bounds,
        counts=tuple(map(sum, zip(*(delta.counts for delta in deltas), strict=True))),
        sum=None if any(s is None for s in sums) else sum(s for s in sums if s is not None),
    )


def _rebucketed(delta: HistogramDelta, bounds: tuple[float, ...]) -> HistogramDelta:
    """The same observations in coarser buckets; ``bounds`` are some of the delta's own."""
    counts = [0] * (len(bounds) + 1)
    for bound, count in zip((*delta.bounds, math.inf), delta.counts, strict=True):
        counts[bisect_left(bounds, bound)] += count
    return HistogramDelta(bounds=bounds, counts=tuple(counts), sum=delta.sum)


def merge(intervals: Sequence[Interval]) -> Interval:
    """Adjacent intervals of one engine, oldest first, as one longer one. CapacityError on none."""
    if not intervals:
        raise CapacityError("no interval to merge; at least one is expected")
    if len(intervals) == 1:
        return intervals[0]
    last = intervals[-1]
    values: dict[str, float | None] = {}
    for name in GAUGES:
        values[name] = _weighted_mean((i.values.get(name), i.seconds) for i in intervals)
    for name in PEAKS:
        values[name] = max((v for i in intervals if (v := i.value(name)) is not None), default=None)
    for name in FACTS:
        values[name] = next((v for i in reversed(intervals) if (v := i.values.get(name)) is not None), None)
    increments: dict[str, float | None] = {}
    for name in COUNTERS:
        known = [v for i in intervals if (v := i.increments.get(name)) is not None]
        increments[name] = sum(known) if known else None
    histograms = {}
    for name in HISTOGRAMS:
        found = [i.histograms[name] for i in intervals if name in i.histograms]
        same = [delta for delta in found if delta.bounds == found[-1].bounds]
        total = merge_histograms(same)
        if total is not None:
            histograms[name] = total
    return Interval(
        target=last.target,
        engine=last.engine,
        model_name=last.model_name,
        release=last.release,
        end_s=last.end_s,
        seconds=sum(i.seconds for i in intervals),
        counted_s=sum(i.counted_s for i in intervals),
        state=_merged_state([i.state for i in intervals]),
        demo=any(i.demo for i in intervals),
        values={k: v for k, v in values.items() if v is not None},
        increments={k: v for k, v in increments.items() if v is not None},
        histograms=histograms,
    )


def thin(intervals: Iterable[Interval], *, step_s: float) -> list[Interval]:
    """Merge intervals of each engine into steps of ``step_s`` aligned to the clock, ordered by end."""
    groups: dict[tuple[str, str, int], list[Interval]] = defaultdict(list)
    for interval in intervals:
        groups[interval.target, interval.engine, _step_of(interval.end_s, step_s)].append(interval)
    return sorted((merge(group) for group in groups.values()), key=lambda merged: merged.end_s)


def _step_of(end_s: float, step_s: float) -> int:
    return -int(-end_s // step_s)
