"""From kept intervals of an engine back to its scrapes, so that a past moment is judged by the same rules.

What it answers: snapshots whose differences are the intervals. Counters start at zero before the first
interval. Left out: what intervals do not hold (sleep, adapters, swap); those readings say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from capacity.intervals import COUNTERS, FINISHED, HistogramDelta, Interval
from capacity.telemetry import (
    Breakdown,
    EngineConfig,
    EngineSnapshot,
    Histogram,
    Reading,
    State,
    Value,
    unknown,
)

NOT_KEPT = "not kept with past readings"
GAUGES = ("running", "waiting", "kv_usage")
REASONS = ("capacity", "deferred")


@dataclass(slots=True)
class _Totals:
    """Counters and buckets since the first interval or the last restart."""

    counters: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, tuple[tuple[float, ...], list[float], float | None]] = field(default_factory=dict)

    def add(self, interval: Interval) -> None:
        for name in COUNTERS:
            rise = interval.increments.get(name)
            if rise is not None:
                self.counters[name] = self.counters.get(name, 0.0) + rise
        for name, delta in interval.histograms.items():
            self._add_histogram(name, delta)

    def _add_histogram(self, name: str, delta: HistogramDelta) -> None:
        cumulative = [count for _, count in delta.cumulative()]
        known = self.histograms.get(name)
        if known is None or known[0] != delta.bounds:
            self.histograms[name] = (delta.bounds, cumulative, delta.sum)
            return
        total = None if known[2] is None or delta.sum is None else known[2] + delta.sum
        counts = [a + b for a, b in zip(known[1], cumulative, strict=True)]
        self.histograms[name] = (delta.bounds, counts, total)


def engine_snapshots(
    intervals: Sequence[Interval], *, metrics: Mapping[str, str | None] | None = None
) -> list[EngineSnapshot]:
    """Snapshots at the ends of one engine's intervals (oldest first), and one before the first.

    Intervals in which the target was down have none. ``metrics``: signal -> the metric name that answers
    it, where that is known.
    """
    names = metrics or {}
    known = [i for i in intervals if not i.state.startswith("down")]
    if not known:
        return []
    totals = _Totals()
    for interval in known:
        for name, rise in interval.increments.items():
            if rise is not None:
                totals.counters[name] = 0.0
        for name, delta in interval.histograms.items():
            totals.histograms.setdefault(name, (delta.bounds, [0.0] * len(delta.counts), 0.0))
    first = known[0]
    out = []
    started_at_s = 0.0
    if first.counted_s > 0:
        out.append(_snapshot(first, totals, names, at_s=first.end_s - first.counted_s, started_at_s=0.0))
    for interval in known:
        if interval.counted_s <= 0 and interval is not first:
            started_at_s = interval.end_s
            totals = _Totals(counters=dict.fromkeys(totals.counters, 0.0))
        totals.add(interval)
        out.append(_snapshot(interval, totals, names, at_s=interval.end_s, started_at_s=started_at_s))
    return out


def _snapshot(
    interval: Interval,
    totals: _Totals,
    names: Mapping[str, str | None],
    *,
    at_s: float,
    started_at_s: float,
) -> EngineSnapshot:
    readings: dict[str, Reading] = {name: _value(interval.value(name), name, names) for name in GAUGES}
    reasons = {r: v for r in REASONS if (v := interval.value(f"waiting_{r}")) is not None}
    if reasons:
        readings["waiting_by_reason"] = Breakdown(
            parts=reasons, label="reason", metric=names.get("waiting_by_reason")
        )
    finished: dict[str, float] = {}
    for name, total in totals.counters.items():
        if name in FINISHED:
            finished[name.removeprefix("finished_")] = total
        elif name == "rejections":
            readings[name] = Breakdown(parts={"": total}, label="reason", metric=names.get(name))
        else:
            readings[name] = Value(value=total, metric=names.get(name))
    if finished:
        readings["finished"] = Breakdown(
            parts=finished, label="finished_reason", metric=names.get("finished")
        )
    for name, (bounds, counts, total_s) in totals.histograms.items():
        readings[name] = Histogram(bounds=bounds, counts=tuple(counts), sum=total_s, metric=names.get(name))
    return EngineSnapshot(
        engine=interval.engine,
        kind="vllm",
        model_name=interval.model_name,
        release=interval.release,
        time_s=at_s,
        started_at_s=started_at_s,
        readings=readings,
        config=EngineConfig(
            block_size=_value(interval.value("block_size"), "block_size", names),
            num_blocks=_value(interval.value("num_blocks"), "num_blocks", names),
            kv_capacity_tokens=_value(interval.value("kv_capacity_tokens"), "kv_capacity_tokens", names),
            max_concurrency=_value(interval.value("max_concurrency"), "max_concurrency", names),
        ),
        complete=interval.state == "ok",
    )


def _value(number: float | None, name: str, names: Mapping[str, str | None]) -> Value:
    if number is None:
        return unknown(State.MISSING, NOT_KEPT, metric=names.get(name))
    return Value(value=number, metric=names.get(name))
