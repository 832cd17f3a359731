"""Intervals of many engines as lines over one time axis: waterline, queue, throughput, percentiles.

What it answers: what to draw for a window. Totals say how many engines they are made of; where nothing was
known there is None, which draws as a gap. Percentiles come from summed buckets, never from averaged
percentiles. Left out: drawing (pages).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from capacity.intervals import HistogramDelta, Interval, merge_histograms, thin

Line = tuple[float | None, ...]
EngineKey = tuple[str, str]
TOTALS = ("running", "waiting", "waiting_capacity", "waiting_deferred")
RATES = ("prompt_tokens", "generation_tokens", "preemptions", "rejections", "prefix_queries", "prefix_hits")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSeries:
    """Lines over ``times_s`` (Unix seconds, ends of steps; the last one ends with the newest reading).

    ``known`` counts the engines behind each total. ``kv_usage`` holds each engine's peak in the step, 0..1.
    ``rates`` are per second over the pool.
    """

    times_s: tuple[float, ...]
    step_s: float
    kv_usage: Mapping[EngineKey, Line]
    totals: Mapping[str, Line]
    rates: Mapping[str, Line]
    tokens_per_step: Line
    prefix_hit_rate: Line
    gpu: Mapping[str, Line]
    known: tuple[int, ...]
    engines: int


def _axis(intervals: Sequence[Interval], step_s: float) -> tuple[float, ...]:
    newest_s = max(i.end_s for i in intervals)
    first = math.ceil(min(i.end_s for i in intervals) / step_s)
    last = math.ceil(newest_s / step_s)
    return tuple(min(k * step_s, newest_s) for k in range(first, max(first, last) + 1))


def _along(times_s: Sequence[float], mine: Sequence[Interval], step_s: float) -> list[Interval | None]:
    """For each moment the interval that covers it, or the last one if that ended no longer ago than it
    lasted.
    """
    ends = [i.end_s for i in mine]
    found: list[Interval | None] = []
    for t in times_s:
        at = bisect_left(ends, t - 1e-6)
        if at < len(mine) and mine[at].end_s - mine[at].seconds < t + 1e-6:
            found.append(mine[at])
        elif at > 0 and t - ends[at - 1] <= max(mine[at - 1].seconds, step_s) * 1.5:
            found.append(mine[at - 1])
        else:
            found.append(None)
    return found


def _sum(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def pool_series(intervals: Sequence[Interval], *, step_s: float) -> PoolSeries:
    """Lines of all engines in ``intervals``, one point per ``step_s`` (0 < step_s)."""
    if not intervals:
        return PoolSeries(
            times_s=(),
            step_s=step_s,
            kv_usage={},
            totals={},
            rates={},
            tokens_per_step=(),
            prefix_hit_rate=(),
            gpu={},
            known=(),
            engines=0,
        )
    times_s = _axis(intervals, step_s)
    groups: dict[EngineKey, list[Interval]] = defaultdict(list)
    for interval in thin(intervals, step_s=step_s):
        groups[interval.target, interval.engine].append(interval)
    along = {key: _along(times_s, mine, step_s) for key, mine in sorted(groups.items())}
    columns: list[list[Interval]] = [
        [i for line in along.values() if (i := line[at]) is not None and _ok(i)] for at in range(len(times_s))
    ]
    rates = {name: tuple(_sum(i.rate(name) for i in column) for column in columns) for name in RATES}
    return PoolSeries(
        times_s=times_s,
        step_s=step_s,
        kv_usage={
            key: tuple(i.value("kv_usage_peak") if i is not None else None for i in line)
            for key, line in along.items()
        },
        totals={name: tuple(_sum(i.value(name) for i in column) for column in columns) for name in TOTALS},
        rates=rates,
        tokens_per_step=tuple(_mean_of("step_tokens", column) for column in columns),
        prefix_hit_rate=tuple(
            None if not queries or hits is None else hits / queries
            for hits, queries in zip(rates["prefix_hits"], rates["prefix_queries"], strict=True)
        ),
        gpu={
            name: tuple(_average(i.value(name) for i in column) for column in columns)
            for name in ("gpu_tensor_active", "gpu_dram_active")
        },
        known=tuple(len(column) for column in columns),
        engines=len(groups),
    )


def _ok(interval: Interval) -> bool:
    return not interval.state.startswith("down")


def _average(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _mean_of(name: str, column: Sequence[Interval]) -> float | None:
    found = [i.histograms[name] for i in column if name in i.histograms]
    count = sum(h.count for h in found)
    if not count or any(h.sum is None for h in found):
        return None
    return sum(h.sum or 0.0 for h in found) / count


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentile:
    """One percentile: the interpolated value and the bucket it fell in.

    ``low`` 0 is the lowest bucket's floor; ``high`` None means above the highest finite bound, then ``value``
    is that bound and a lower limit only.
    """

    value: float
    low: float
    high: float | None
    count: int

    @property
    def is_floor(self) -> bool:
        return self.high is None


def percentile(q: float, delta: HistogramDelta) -> Percentile | None:
    """The q-quantile (0..1) as Prometheus' ``histogram_quantile`` interpolates it; None without observations.

    >>> percentile(0.5, HistogramDelta(bounds=(1.0, 2.0), counts=(1, 2, 1))).value
    1.5
    """
    total = delta.count
    if total <= 0 or not delta.bounds:
        return None
    rank = q * total
    below = 0
    for i, count in enumerate(delta.counts):
        if below + count >= rank and (count > 0 or i == len(delta.counts) - 1):
            break
        below += count
    if i == len(delta.bounds):
        edge = delta.bounds[-1]
        return Percentile(value=edge, low=edge, high=None, count=total)
    high = delta.bounds[i]
    low = 0.0 if i == 0 else delta.bounds[i - 1]
    if i == 0 and high <= 0:
        return Percentile(value=high, low=high, high=high, count=total)
    return Percentile(
        value=min(high, low + (high - low) * (rank - below) / count), low=low, high=high, count=total
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySeries:
    """Percentiles per step over the merged engines. ``reason`` says why there is nothing, where there is
    nothing; ``note`` what the percentiles lost in merging.
    """

    times_s: tuple[float, ...]
    lines: Mapping[float, Line]
    counts: tuple[int, ...]
    reason: str | None = None
    note: str | None = None


def latency_series(
    intervals: Sequence[Interval],
    signal: str,
    *,
    step_s: float,
    quantiles: Sequence[float] = (0.5, 0.9, 0.99),
) -> LatencySeries:
    """Percentiles of histogram ``signal`` per step; a step in which nothing was observed is a gap.

    Steps grow to the distance between readings where the histogram was read less often than gauges.
    """
    step_s = max(step_s, _apart_s(intervals, signal, step_s=step_s))
    bins: dict[int, list[HistogramDelta]] = defaultdict(list)
    for interval in intervals:
        if signal in interval.histograms:
            bins[math.ceil(interval.end_s / step_s)].append(interval.histograms[signal])
    if not bins:
        return LatencySeries(
            times_s=(), lines={}, counts=(), reason="not exported by any engine in this window"
        )
    axis = range(min(bins), max(bins) + 1)
    newest_s = max(i.end_s for i in intervals)
    merged = [merge_histograms(bins[k]) if k in bins else None for k in axis]
    mixed = any(m is None and k in bins for m, k in zip(merged, axis, strict=True))
    found = [[percentile(q, m) if m is not None else None for m in merged] for q in quantiles]
    return LatencySeries(
        times_s=tuple(min(k * step_s, newest_s) for k in axis),
        lines={
            q: tuple(p.value if p is not None else None for p in line)
            for q, line in zip(quantiles, found, strict=True)
        },
        counts=tuple(m.count if m is not None else 0 for m in merged),
        reason="engines have different bucket bounds and share none, so their percentiles cannot be merged"
        if mixed
        else None,
        note=_merge_note(bins.values(), merged),
    )


def _apart_s(intervals: Sequence[Interval], signal: str, *, step_s: float) -> float:
    """The usual distance between two readings of a histogram, in whole steps, of the engine read most often."""
    ends: dict[EngineKey, list[float]] = defaultdict(list)
    for interval in intervals:
        if signal in interval.histograms:
            ends[interval.target, interval.engine].append(interval.end_s)
    gaps = [median(b - a for a, b in pairwise(sorted(found))) for found in ends.values() if len(found) > 2]
    return round(min(gaps, default=0.0) / step_s) * step_s


def _merge_note(
    bins: Iterable[Sequence[HistogramDelta]], merged: Iterable[HistogramDelta | None]
) -> str | None:
    if all(len({delta.bounds for delta in found}) < 2 for found in bins):
        return None
    fewest = min((len(m.bounds) for m in merged if m is not None), default=0)
    if not fewest:
        return None
    return f"engines have different buckets: merged on the {fewest} bounds that all share"


def merged(intervals: Iterable[Interval], signal: str) -> HistogramDelta | None:
    """All observations of ``signal`` in the intervals; None when there are none or no bound is shared."""
    return merge_histograms([i.histograms[signal] for i in intervals if signal in i.histograms])
