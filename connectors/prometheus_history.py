"""Long histories from a Prometheus-compatible server: gauges, rates and percentiles on a grid, per engine
or pool.

Gauges are asked as stored; rates are differences of the counters between grid points (no extrapolation, a
reset counts from zero); percentiles come from the server's histogram_quantile over a window of at least
four scrapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TypedDict

from connectors import vocabulary
from connectors.errors import BadTarget
from connectors.prometheus_api import PrometheusClient, Result, Series, choose_step, matchers
from connectors.targets import Target
from connectors.vocabulary import Row

BY = ("instance", "pod", "server", "engine", "model_name")
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MIN_SCRAPES_PER_WINDOW = 4
DEFAULT_INTERVAL_S = 15.0
CHART_POINTS = 300


class _Span(TypedDict):
    start_s: float
    end_s: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Series of one signal on a grid. A missing point is a gap: absent, not zero."""

    signal: str
    series: tuple[Series, ...]
    step_s: float
    window_s: float | None = None
    notes: tuple[str, ...] = ()
    partial: bool = False


def _selectors(rows: Sequence[Row], extra: str) -> list[str]:
    """Selectors of a signal's names, newest first, with layered prefixes and an underscore for the colon."""
    suffixes = {"counter": ("_total", ""), "counter_by": ("_total", ""), "histogram": ("_bucket",)}
    out = []
    for row in rows:
        base = row.name.replace(":", "[:_]", 1)
        wanted = f',{row.select[0]}="{row.select[1]}"' if row.select else ""
        for suffix in suffixes.get(row.kind, ("",)):
            name = f'__name__=~"([a-z]+_)?{base}{suffix}"'
            out.append(f"{{{name}{wanted}{',' if extra else ''}{extra}}}")
    return out


def rows_for(signal: str, *, engine: str = "vllm") -> tuple[Row, ...]:
    """Rows of a signal for one kind of engine; BadTarget for a name that is none."""
    found = vocabulary.rows_of(engine).get(signal)
    if not found:
        known = ", ".join(sorted(vocabulary.rows_of(engine)))
        raise BadTarget(f"signal {signal[:40]!r} is not known for {engine}; valid: {known}")
    return found


def scrape_interval(client: PrometheusClient, target: Target, *, at_s: float) -> float | None:
    """Seconds between the stored scrapes of the selected targets, measured; None where nothing is stored."""
    found = client.query(f"up{{{matchers(target.selector)}}}[10m]", time_s=at_s)
    gaps = [b[0] - a[0] for s in found.series for a, b in pairwise(s.points)]
    return float(round(median(gaps), 3)) if gaps else None


def window_for(interval_s: float, step_s: float) -> float:
    """A rate window that always holds enough scrapes: four intervals, at least the step.

    >>> window_for(60, 15)
    240
    """
    return max(MIN_SCRAPES_PER_WINDOW * interval_s, step_s)


def history(
    target: Target,
    signal: str,
    *,
    start_s: float,
    end_s: float,
    step_s: float | None = None,
    points: int = CHART_POINTS,
    interval_s: float | None = None,
    engine: str = "vllm",
    client: PrometheusClient | None = None,
) -> History:
    """One signal (or a percentile such as ``ttft_s.p99``) of every engine behind the target's selector.

    Without ``step_s`` the step gives about ``points`` points per series, never finer than the scrape
    interval; with it the step grows until the range fits in 11,000 points. A gauge is its peak within each
    step, so that thinning hides no spike. A percentile is of the whole selection. Raises ConnectorError.
    """
    client = client or PrometheusClient(target)
    family, _, part = signal.partition(".")
    rows = rows_for(family, engine=engine)
    if part and part not in QUANTILES:
        raise BadTarget(f"percentile {part[:20]!r} is not valid; valid: {', '.join(QUANTILES)}")
    interval = interval_s or scrape_interval(client, target, at_s=end_s) or DEFAULT_INTERVAL_S
    wanted = step_s or max(interval, math.ceil((end_s - start_s) / max(1, points)))
    step = choose_step(end_s - start_s, wanted)
    selectors = _selectors(rows, matchers(target.selector))
    kind = rows[0].kind
    if kind == "histogram":
        return _percentile(client, signal, selectors, part or "p50", start_s, end_s, step, interval)
    by = (*BY, rows[0].part)
    span: _Span = {"start_s": start_s, "end_s": end_s, "step_s": step}
    if kind in ("counter", "counter_by"):
        found = client.query_range(" or ".join(selectors), **span)
        stamps = client.query_range(" or ".join(f"timestamp({one})" for one in selectors), **span)
        series = rates(found, stamps, by=by, longest_gap_s=window_for(interval, 1.5 * step))
    else:
        combine = "max" if rows[0].combine == "max" else "sum"
        labels = ",".join(name for name in by if name)
        peak = "max_over_time({}[{:g}s])" if step > interval else "{}"
        peaks = [peak.format(selector, step) for selector in selectors]
        expression = " or ".join(f"{combine} by ({labels}) ({one})" for one in peaks)
        found = client.query_range(expression, **span)
        series = list(found.series)
    return History(signal=signal, series=tuple(series), step_s=step, notes=found.notes, partial=found.partial)


def _percentile(
    client: PrometheusClient,
    signal: str,
    selectors: Sequence[str],
    part: str,
    start_s: float,
    end_s: float,
    step: float,
    interval: float,
) -> History:
    window = window_for(interval, step)
    inner = " or ".join(f"sum by (le) (rate({selector}[{window:g}s]))" for selector in selectors)
    found = client.query_range(
        f"histogram_quantile({QUANTILES[part]}, {inner})", start_s=start_s, end_s=end_s, step_s=step
    )
    return History(
        signal=signal,
        series=found.series,
        step_s=step,
        window_s=window,
        notes=found.notes,
        partial=found.partial,
    )


def _unnamed(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(item for item in labels.items() if item[0] != "__name__"))


def rates(found: Result, stamps: Result, *, by: Sequence[str], longest_gap_s: float) -> list[Series]:
    """Counter series as rates between the samples behind neighbouring points, summed over what ``by`` does
    not name.

    ``stamps`` holds the time of the sample behind each point: a point that repeats a sample gives no rate.
    A fall is a restart and counts from zero; a gap in the samples gives a gap in the rate, not a spike.
    """
    times = {_unnamed(s.labels): dict(s.points) for s in stamps.series}
    totals: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
    for one in found.series:
        stamp = times.get(_unnamed(one.labels), {})
        key = tuple((name, one.labels[name]) for name in by if name and one.labels.get(name))
        points = totals.setdefault(key, {})
        before: tuple[float, float] | None = None
        for when, value in one.points:
            at = stamp.get(when)
            if at is None or (before is not None and at <= before[0]):
                continue
            if before is not None and at - before[0] <= longest_gap_s:
                rise = value - before[1] if value >= before[1] else value
                points[when] = points.get(when, 0.0) + rise / (at - before[0])
            before = (at, value)
    return [Series(labels=dict(key), points=tuple(sorted(points.items()))) for key, points in totals.items()]
