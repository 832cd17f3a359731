"""From two snapshots of one engine to the interval between them, reset-safe.

What it answers: how much each counter and bucket rose. A restart (another start time, or a counter that fell)
gives no increments rather than wrong ones. Left out: rates over longer windows (telemetry), keeping
(history).
"""

from __future__ import annotations

from collections.abc import Mapping

from capacity.intervals import COUNTERS, FINISHED, HISTOGRAMS, HistogramDelta, Interval
from capacity.telemetry import Breakdown, EngineSnapshot, Histogram, Reading, State, Value

SCALAR_COUNTERS = tuple(name for name in COUNTERS if name not in (*FINISHED, "rejections"))


def between(
    previous: EngineSnapshot | None,
    current: EngineSnapshot,
    *,
    target: str,
    seconds: float,
    previous_shared: Mapping[str, Reading] | None = None,
    current_shared: Mapping[str, Reading] | None = None,
    scrape_s: float | None = None,
    demo: bool = False,
) -> Interval:
    """What ``current``'s engine did since ``previous`` (None: first sight, gauges only).

    ``seconds`` is the time since the last attempt to scrape; ``counted_s`` of the result runs from
    ``previous``, so that a gap of failed scrapes is neither lost nor counted twice. ``*_shared`` hold
    readings without an engine label; pass them for one engine of a target only.
    """
    elapsed_s = _elapsed(previous, current)
    restarted = previous is None or _restarted(previous, current)
    increments: dict[str, float | None] = {}
    histograms: dict[str, HistogramDelta] = {}
    if previous is not None and not restarted and elapsed_s > 0:
        increments = _increments(previous, current, previous_shared or {}, current_shared or {})
        histograms = _histograms(previous, current)
    counted = elapsed_s if increments or histograms else 0.0
    return Interval(
        target=target,
        engine=current.engine,
        model_name=current.model_name,
        release=current.release,
        end_s=current.time_s,
        seconds=seconds,
        counted_s=counted,
        state="ok" if current.complete else "partial",
        demo=demo,
        values=_values(current, scrape_s, current_shared or {}),
        increments=increments,
        histograms=histograms,
    )


def gone(last: EngineSnapshot | None, *, target: str, end_s: float, seconds: float, reason: str) -> Interval:
    """An interval in which nothing could be read, and why."""
    return Interval(
        target=target,
        engine=last.engine if last else "",
        model_name=last.model_name if last else None,
        release=last.release if last else None,
        end_s=end_s,
        seconds=seconds,
        counted_s=0.0,
        state=f"down: {reason}",
    )


def _elapsed(previous: EngineSnapshot | None, current: EngineSnapshot) -> float:
    if previous is None:
        return 0.0
    if previous.monotonic_s is not None and current.monotonic_s is not None:
        return current.monotonic_s - previous.monotonic_s
    return current.time_s - previous.time_s


def _restarted(previous: EngineSnapshot, current: EngineSnapshot) -> bool:
    before, after = previous.started_at_s, current.started_at_s
    if before is not None and after is not None and abs(after - before) > 1.0:
        return True
    for name in SCALAR_COUNTERS:
        old, new = _number(previous.readings.get(name)), _number(current.readings.get(name))
        if old is not None and new is not None and new < old:
            return True
    return False


def _number(reading: Reading | None) -> float | None:
    return reading.number if isinstance(reading, Value) else None


def _rise(old: float | None, new: float | None) -> float | None:
    return None if old is None or new is None or new < old else new - old


def _increments(
    previous: EngineSnapshot,
    current: EngineSnapshot,
    previous_shared: Mapping[str, Reading],
    current_shared: Mapping[str, Reading],
) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in SCALAR_COUNTERS:
        found[name] = _rise(_number(previous.readings.get(name)), _number(current.readings.get(name)))
    old, new = previous.breakdown("finished"), current.breakdown("finished")
    if new is not None and old is not None:
        for part, value in new.parts.items():
            if part not in old.parts and old.state is State.PARTIAL:
                continue
            rise = _rise(old.parts.get(part, 0.0), value)
            if rise is not None:
                name = f"finished_{part}" if f"finished_{part}" in FINISHED else "finished_other"
                found[name] = (found.get(name) or 0.0) + rise
    name = "rejections"
    before = _total(previous_shared[name] if name in previous_shared else previous.readings.get(name))
    after = _total(current_shared[name] if name in current_shared else current.readings.get(name))
    found[name] = _rise(before, after)
    return {name: value for name, value in found.items() if value is not None}


def _total(reading: Reading | None) -> float | None:
    if isinstance(reading, Breakdown):
        return reading.total if reading.state is not State.PARTIAL else None
    return _number(reading)


def _histograms(previous: EngineSnapshot, current: EngineSnapshot) -> dict[str, HistogramDelta]:
    found = {}
    for name in HISTOGRAMS:
        old, new = previous.histogram(name), current.histogram(name)
        if old is None or new is None:
            continue
        delta = _delta(old, new)
        if delta is not None:
            found[name] = delta
    return found


def _delta(old: Histogram, new: Histogram) -> HistogramDelta | None:
    if old.bounds != new.bounds:
        return None
    if old.counts == new.counts:
        return HistogramDelta(bounds=new.bounds, counts=(0,) * len(new.counts), sum=0.0)
    counts: list[int] = []
    below = 0
    for before, after in zip(old.counts, new.counts, strict=True):
        rise = round(after - before)
        if rise < below:
            return None
        counts.append(rise - below)
        below = rise
    total = _rise(old.sum, new.sum)
    return HistogramDelta(bounds=new.bounds, counts=tuple(counts), sum=total)


def _values(
    current: EngineSnapshot, scrape_s: float | None, shared: Mapping[str, Reading]
) -> dict[str, float | None]:
    config = current.config
    reasons = current.breakdown("waiting_by_reason")
    values: dict[str, float | None] = {
        "running": current.value("running").number,
        "waiting": current.value("waiting").number,
        "kv_usage": current.value("kv_usage").number,
        "waiting_capacity": reasons.parts.get("capacity") if reasons else None,
        "waiting_deferred": reasons.parts.get("deferred") if reasons else None,
        "num_blocks": config.num_blocks.number,
        "block_size": config.block_size.number,
        "kv_capacity_tokens": config.kv_capacity_tokens.number,
        "max_concurrency": config.max_concurrency.number,
        "scrape_s": scrape_s,
    }
    for name in ("gpu_tensor_active", "gpu_dram_active"):
        values[name] = _number(current.readings.get(name) or shared.get(name))
    return {name: value for name, value in values.items() if value is not None}
