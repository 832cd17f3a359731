"""What a Prometheus-compatible server remembers, as the intervals that memory and history file hold.

What it answers: windows older than this process, per engine and on a grid: gauges as mean and peak of each
step, counters and buckets as differences between stored samples. A step in which a counter was reset has no
increments, rather than wrong ones. Left out: which engines answer now (``prometheus_snapshots``), GPU series.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from capacity.intervals import Interval
from connectors import vocabulary
from connectors.prometheus_api import PrometheusClient, Result, Series
from connectors.prometheus_snapshots import PLACE_LABELS, engine_name, place
from connectors.reading import IDENTITY, Key, labels_of
from connectors.selectors import matchers
from connectors.stored_lines import (
    BUCKETS,
    CANARIES,
    COUNTERS,
    GAUGES,
    MEANS,
    REASONS,
    Grid,
    StoredEngine,
    intervals_of,
)
from connectors.targets import Target
from connectors.vocabulary import KINDS, Row

BUCKET_POINTS = 150_000
BUCKETS_PER_ENGINE = 50
WORKERS = 4

Place = tuple[str, Key]


def _rows(signals: Iterable[str]) -> list[Row]:
    wanted = set(signals)
    return [row for row in vocabulary.rows() if row.signal in wanted and row.engine in KINDS]


def _pattern(signals: Iterable[str], suffixes: Mapping[str, str]) -> str:
    names = dict.fromkeys(
        row.name.replace(":", "[:_]", 1) + suffixes.get(row.kind, "") for row in _rows(signals)
    )
    return f"([a-z]+_)?({'|'.join(names)})"


def _selector(pattern: str, extra: str) -> str:
    return f'{{__name__=~"{pattern}"{"," if extra else ""}{extra}}}'


def past_intervals(
    target: Target,
    *,
    start_s: float,
    end_s: float,
    step_s: float,
    interval_s: float,
) -> list[Interval]:
    """Intervals of every engine behind the selector, ending at the multiples of ``step_s`` in
    ``(start_s, end_s]``, ordered by engine and time.

    ``interval_s`` is how often the server scrapes: at steps no longer than that, gauges are the samples
    themselves. Raises ConnectorError.
    """
    first = math.floor(start_s / step_s + 1e-9)
    last = math.floor(end_s / step_s + 1e-9)
    if last <= first:
        return []
    grid = Grid(first_s=first * step_s, step_s=step_s, size=last - first + 1)
    extra = matchers(target.selector)
    stride = _bucket_stride(target, extra, grid)
    with ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="past") as pool:
        buckets = _selector(_pattern(BUCKETS, {"histogram": "_bucket"}), extra)
        slow = pool.submit(_ask, target, buckets, grid, stride)
        asked = {
            name: pool.submit(_ask, target, expression, grid)
            for name, expression in _expressions(extra, step_s, interval_s).items()
        }
        plain = asked.pop("plain").result()
        engines = _engines(plain, grid)
        others = {name: job.result() for name, job in asked.items()}
        _place(engines, slow.result(), grid)
    for name, result in others.items():
        _place(engines, result, grid, tag=name)
    out: list[Interval] = []
    for engine in engines:
        out += intervals_of(engine, grid, target=target.name, stride=stride, interval_s=interval_s)
    return sorted(out, key=lambda i: (i.engine, i.end_s))


def _bucket_stride(target: Target, extra: str, grid: Grid) -> int:
    """Steps between two readings of the buckets: more than one where the pool is so large that the answer
    would be.
    """
    counted = PrometheusClient(target).query(
        f"count({_selector(_pattern(('running',), {}), extra)})",
        time_s=grid.first_s + (grid.size - 1) * grid.step_s,
    )
    engines = max((s.points[-1][1] for s in counted.series if s.points), default=0.0)
    return max(1, math.ceil(engines * BUCKETS_PER_ENGINE * grid.size / BUCKET_POINTS))


def _expressions(extra: str, step_s: float, interval_s: float) -> dict[str, str]:
    """Name -> expression. Functions drop the metric name, so each gauge is asked by itself."""
    suffixes = {"counter": "(_total)?", "counter_by": "(_total)?", "histogram": "_(sum|count)"}
    plain = _pattern((*GAUGES, REASONS, *COUNTERS, *BUCKETS, *MEANS), suffixes)
    out = {"plain": _selector(plain, extra)}
    span = f"[{math.ceil(step_s)}s]"
    canaries = [_selector(_pattern(CANARIES[:1], {"counter": suffix}), extra) for suffix in ("_total", "")]
    out["resets"] = " or ".join(f"resets({one}{span})" for one in canaries)
    out["times"] = " or ".join(f"timestamp({one})" for one in canaries)
    if step_s > interval_s * 1.5:
        for name in (*GAUGES, REASONS):
            rows = [
                _selector(f"([a-z]+_)?{row.name.replace(':', '[:_]', 1)}", extra) for row in _rows((name,))
            ]
            out[f"mean {name}"] = " or ".join(f"avg_over_time({one}{span})" for one in rows)
            if name != REASONS:
                out[f"peak {name}"] = " or ".join(f"max_over_time({one}{span})" for one in rows)
    return out


def _ask(target: Target, expression: str, grid: Grid, stride: int = 1) -> Result:
    end_s = grid.first_s + (grid.size - 1) * grid.step_s
    start_s = end_s - (grid.size - 1) // stride * stride * grid.step_s
    client = PrometheusClient(target)
    return client.query_range(expression, start_s=start_s, end_s=end_s, step_s=grid.step_s * stride)


def _without_place(labels: Mapping[str, str]) -> dict[str, str]:
    chosen = next((name for name in PLACE_LABELS if labels.get(name)), "")
    return {k: v for k, v in labels.items() if k not in ("__name__", "job", chosen)}


def _key(labels: Mapping[str, str]) -> Key:
    return tuple(labels.get(name) for name in IDENTITY)


def _engines(result: Result, grid: Grid) -> list[StoredEngine]:
    """Engines by place, identity and base model, with their plain lines; named as the poller names them."""
    models: dict[Place, dict[str, None]] = {}
    for one in result.series:
        row = _row(one)
        if row is not None and row.signal in GAUGES:
            labels = _without_place(one.labels)
            found = models.setdefault((place(one.labels), _key(labels)), {})
            if "model_name" in labels:
                found[labels["model_name"]] = None
    engines = [
        StoredEngine(where, key, name)
        for (where, key), names in models.items()
        for name in (list(names) if len(names) > 1 else [next(iter(names), None)])
    ]
    by_place: dict[str, list[StoredEngine]] = defaultdict(list)
    for engine in engines:
        by_place[engine.place].append(engine)
    for where, mine in by_place.items():
        ids = labels_of([engine.key for engine in mine])
        if len(set(ids)) < len(ids):
            ids = [f"{label}/{engine.model}" for label, engine in zip(ids, mine, strict=True)]
        for label, engine in zip(ids, mine, strict=True):
            engine.label = engine_name(where, label, alone=len(mine) == 1)
    _place(engines, result, grid)
    return engines


def _row(series: Series) -> Row | None:
    found = vocabulary.find(series.name)
    if found is None:
        return None
    for row in found[0]:
        if row.engine in KINDS and (row.select is None or series.labels.get(row.select[0]) == row.select[1]):
            return row
    return None


def _place(engines: Sequence[StoredEngine], result: Result, grid: Grid, *, tag: str = "") -> None:
    """Put every series of an answer where it belongs. ``tag``: the answer of a function, without names."""
    for one in result.series:
        labels = _without_place(one.labels)
        where, key = place(one.labels), _key(labels)
        if tag:
            name, order, suffix = tag, 0, ""
        else:
            row = _row(one)
            found = vocabulary.find(one.name)
            if row is None or found is None:
                continue
            name, order, suffix = row.signal, row.order, found[1]
        here = [e for e in engines if e.place == where]
        homes = [e for e in here if e.key == key]
        if not homes:
            homes = [e for e in here if all(k is None or k == own for k, own in zip(key, e.key, strict=True))]
            homes = homes[:1] if name == "rejections" else homes if len(homes) == 1 else []
        model = labels.get("model_name")
        if len(homes) > 1:
            homes = [e for e in homes if model is None or e.model == model]
        for engine in homes[:1]:
            engine.lines[name, order, suffix][tuple(sorted(labels.items()))] = grid.line(one.points)
