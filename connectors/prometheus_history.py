"""Long histories from a Prometheus-compatible server: gauges, rates and percentiles on a grid, per engine
or pool.

Gauges are peaks within each step. Rates are the server's rate() and percentiles its histogram_quantile(),
both over at least four scrapes: away from gaps rate() is the difference between two samples over the time
between them. Left out: windows of raw samples (``prometheus_snapshots``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from connectors import vocabulary
from connectors.errors import BadTarget
from connectors.prometheus_api import PrometheusClient, Series, choose_step
from connectors.selectors import matchers
from connectors.targets import Target
from connectors.vocabulary import Row

BY = ("instance", "pod", "server", "engine", "model_name")
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MIN_SCRAPES_PER_WINDOW = 4
DEFAULT_INTERVAL_S = 15.0
CHART_POINTS = 300


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
    """Seconds between the stored scrapes of the selected targets, measured; None where nothing is stored.

    From the times of ``up``; where the selector picks no ``up`` (labels that only the engine's own series
    carry), from those of a gauge.
    """
    extra = matchers(target.selector)
    running = [
        selector
        for row in vocabulary.rows()
        if row.signal == "running"
        for selector in _selectors([row], extra)
    ]
    for expression in (f"up{{{extra}}}[10m]", *(f"{selector}[10m]" for selector in running)):
        found = client.query(expression, time_s=at_s)
        gaps = [b[0] - a[0] for s in found.series for a, b in pairwise(s.points)]
        if gaps:
            return float(round(median(gaps), 3))
    return None


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
    window = None
    parts = selectors
    if kind in ("counter", "counter_by"):
        window = window_for(interval, step)
        parts = [f"rate({selector}[{window:g}s])" for selector in selectors]
    elif step > interval:
        parts = [f"max_over_time({selector}[{step:g}s])" for selector in selectors]
    labels = ",".join(name for name in (*BY, rows[0].part) if name)
    combine = "max" if rows[0].combine == "max" else "sum"
    expression = f"{combine} by ({labels}) ({' or '.join(parts)})"
    found = client.query_range(expression, start_s=start_s, end_s=end_s, step_s=step)
    return History(
        signal=signal,
        series=found.series,
        step_s=step,
        window_s=window,
        notes=found.notes,
        partial=found.partial,
    )


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
    rates = " or ".join(f"rate({selector}[{window:g}s])" for selector in selectors)
    inner = f"sum by (le) ({rates})"
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
