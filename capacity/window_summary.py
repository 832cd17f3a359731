"""One window in figures, and two windows side by side: what a change did.

What it answers: peak and mean load, throughput and percentiles over any span of intervals. Left out: whether
a difference matters (the counts behind it are given).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capacity.intervals import Interval
from capacity.live_series import Percentile, merged, percentile, pool_series


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSummary:
    """Figures of one window; None where nothing was known. Rates are per second over the pool."""

    start_s: float
    end_s: float
    engines: int
    kv_usage_peak: float | None
    running_mean: float | None
    waiting_mean: float | None
    waiting_peak: float | None
    prompt_tokens_per_s: float | None
    generation_tokens_per_s: float | None
    preemptions_per_s: float | None
    rejections_per_s: float | None
    prefix_hit_rate: float | None
    ttft_s: tuple[Percentile | None, Percentile | None]
    itl_s: tuple[Percentile | None, Percentile | None]
    known_share: float


def _mean(line: Sequence[float | None]) -> float | None:
    known = [v for v in line if v is not None]
    return sum(known) / len(known) if known else None


def _peak(line: Sequence[float | None]) -> float | None:
    return max((v for v in line if v is not None), default=None)


def summarise(intervals: Sequence[Interval], *, start_s: float, end_s: float) -> WindowSummary:
    """The figures of ``(start_s, end_s]``; percentiles are p50 and p99 of all observations in it."""
    inside = [i for i in intervals if start_s < i.end_s <= end_s]
    step_s = max((end_s - start_s) / 300, max((i.seconds for i in inside), default=1.0))
    series = pool_series(inside, step_s=step_s)
    rates = {name: _mean(line) for name, line in series.rates.items()}
    looked_up = rates.get("prefix_queries")
    hits = rates.get("prefix_hits")
    total = sum(i.seconds for i in inside)

    def both(signal: str) -> tuple[Percentile | None, Percentile | None]:
        delta = merged(inside, signal)
        return (None, None) if delta is None else (percentile(0.5, delta), percentile(0.99, delta))

    return WindowSummary(
        start_s=start_s,
        end_s=end_s,
        engines=series.engines,
        kv_usage_peak=_peak([v for line in series.kv_usage.values() for v in line]),
        running_mean=_mean(series.totals.get("running", ())),
        waiting_mean=_mean(series.totals.get("waiting", ())),
        waiting_peak=_peak(series.totals.get("waiting", ())),
        prompt_tokens_per_s=rates.get("prompt_tokens"),
        generation_tokens_per_s=rates.get("generation_tokens"),
        preemptions_per_s=rates.get("preemptions"),
        rejections_per_s=rates.get("rejections"),
        prefix_hit_rate=hits / looked_up if hits is not None and looked_up else None,
        ttft_s=both("ttft_s"),
        itl_s=both("itl_s"),
        known_share=sum(i.seconds for i in inside if not i.state.startswith("down")) / total
        if total
        else 0.0,
    )
