"""One engine's stored lines on a grid, and the intervals they make: no queries here.

What it answers: increments between stored samples. A step in which a counter was reset has none, and a last
sample that the server merely repeats is not taken for a new one. Left out: asking (``prometheus_past``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from capacity.intervals import FINISHED, HistogramDelta, Interval
from connectors.reading import Key

GAUGES = ("running", "waiting", "kv_usage")
REASONS = "waiting_by_reason"
COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "preemptions",
    "prefix_queries",
    "prefix_hits",
    "spec_draft_tokens",
    "spec_accepted_tokens",
    "finished",
    "rejections",
)
BUCKETS = ("ttft_s", "itl_s")
MEANS = ("step_tokens",)
CANARIES = ("generation_tokens", "prompt_tokens")
FRESH_INTERVALS = 2.5
NO_SAMPLE = "down: the Prometheus server stored no sample"

Line = NDArray[np.float64]
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class StoredEngine:
    """One engine's stored lines: (signal, row order, suffix) -> labels -> values on the grid."""

    place: str
    key: Key
    model: str | None
    lines: dict[tuple[str, int, str], dict[Labels, Line]] = field(default_factory=lambda: defaultdict(dict))
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buckets:
    """Observations by step and bucket (not cumulative; NaN where unknown), and their sums by step."""

    bounds: tuple[float, ...]
    counts: NDArray[np.float64]
    sums: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Moments ``first_s + k * step_s`` for k in 0..size-1."""

    first_s: float
    step_s: float
    size: int

    def line(self, points: Sequence[tuple[float, float]]) -> Line:
        out = np.full(self.size, np.nan)
        if points:
            found = np.asarray(points, dtype=np.float64)
            at = np.rint((found[:, 0] - self.first_s) / self.step_s).astype(np.int64)
            inside = (at >= 0) & (at < self.size)
            out[at[inside]] = found[inside, 1]
        return out


def _best(engine: StoredEngine, signal: str, suffixes: Sequence[str]) -> list[dict[Labels, Line]]:
    """Lines of a signal's names, newest first; of a counter with and without ``_total`` the former."""
    orders = sorted({order for name, order, _ in engine.lines if name == signal})
    out = []
    for order in orders:
        lines = next((found for s in suffixes if (found := engine.lines.get((signal, order, s)))), None)
        if lines:
            out.append(lines)
    return out


def _first_known(lines: Sequence[Line], size: int) -> Line:
    out = np.full(size, np.nan)
    for line in lines:
        out = np.where(np.isnan(out), line, out)
    return out


def _sum(lines: Iterable[Line], size: int) -> Line:
    """Sum over what is known; unknown where nothing is."""
    stack = np.array(list(lines)) if lines else np.empty((0, size))
    if not len(stack):
        return np.full(size, np.nan)
    known = ~np.isnan(stack)
    return np.where(known.any(axis=0), np.where(known, stack, 0.0).sum(axis=0), np.nan)


def _gauge(engine: StoredEngine, name: str, size: int) -> Line:
    """A gauge: several series of one engine (per process) are not added up, the largest counts."""
    rows = []
    for lines in _best(engine, name, ("",)):
        with np.errstate(all="ignore"):
            rows.append(np.fmax.reduce(list(lines.values())))
    return _first_known(rows, size)


def _rises(lines: Mapping[Labels, Line], resets: NDArray[np.bool_], stride: int = 1) -> dict[Labels, Line]:
    """What each series rose by in each step; unknown at a reset and where a neighbour is missing."""
    out = {}
    for labels, line in lines.items():
        rise = np.full(len(line), np.nan)
        rise[stride:] = line[stride:] - line[:-stride]
        rise[(rise < 0) | resets] = np.nan
        out[labels] = rise
    return out


def _counter(engine: StoredEngine, name: str, resets: NDArray[np.bool_], size: int) -> Line:
    rows = [_sum(_rises(lines, resets).values(), size) for lines in _best(engine, name, ("_total", ""))]
    return _first_known(rows, size)


def _finished(engine: StoredEngine, resets: NDArray[np.bool_], size: int) -> dict[str, Line]:
    parts: dict[str, list[Line]] = defaultdict(list)
    for lines in _best(engine, "finished", ("_total", ""))[:1]:
        for labels, rise in _rises(lines, resets).items():
            reason = dict(labels).get("finished_reason", "")
            name = f"finished_{reason}"
            parts[name if name in FINISHED else "finished_other"].append(rise)
    return {name: _sum(lines, size) for name, lines in parts.items()}


def _bucket_rises(
    engine: StoredEngine, name: str, resets: NDArray[np.bool_], size: int, stride: int
) -> _Buckets | None:
    """The observations of the newest name that has buckets."""
    for order in sorted({o for n, o, s in engine.lines if n == name and s == "_bucket"}):
        by_bound: dict[float, list[Line]] = defaultdict(list)
        for labels, rise in _rises(engine.lines[name, order, "_bucket"], resets, stride).items():
            by_bound[float(dict(labels).get("le", "nan"))].append(rise)
        bounds = sorted(by_bound)
        if not bounds or not math.isinf(bounds[-1]) or any(math.isnan(b) for b in bounds):
            continue
        rises = np.array([_sum(by_bound[bound], size) for bound in bounds])
        counts = np.diff(np.rint(rises), axis=0, prepend=0.0)
        sums = _rises(engine.lines.get((name, order, "_sum"), {}), resets, stride)
        return _Buckets(bounds=tuple(bounds[:-1]), counts=counts.T.copy(), sums=_sum(sums.values(), size))
    return None


def _number(line: Line | None, at: int) -> float | None:
    if line is None:
        return None
    value = float(line[at])
    return None if math.isnan(value) else value


def _sampled(engine: StoredEngine, grid: Grid, interval_s: float) -> Line:
    """When the sample behind each moment was stored; unknown where it is too old to stand for the moment.

    The server repeats a last sample for some minutes; taken as new it would make a rate of zero.
    """
    times = _gauge(engine, "times", grid.size)
    now = grid.first_s + np.arange(grid.size) * grid.step_s
    with np.errstate(invalid="ignore"):
        return np.where(now - times <= FRESH_INTERVALS * interval_s, times, np.nan)


def _resets(engine: StoredEngine, size: int) -> NDArray[np.bool_]:
    """Steps in which the engine started anew: the server saw a reset, or a token counter is lower than
    before.
    """
    seen = [line for lines in _best(engine, "resets", ("",)) for line in lines.values()]
    found = np.nan_to_num(_sum(seen, size)) > 0
    for name in CANARIES:
        for lines in _best(engine, name, ("_total", "")):
            for line in lines.values():
                with np.errstate(invalid="ignore"):
                    found[1:] |= line[1:] < line[:-1]
    return found


def intervals_of(
    engine: StoredEngine, grid: Grid, *, target: str, stride: int, interval_s: float
) -> list[Interval]:
    size = grid.size
    times = _sampled(engine, grid, interval_s)
    for (name, _, _), stored in engine.lines.items():
        if " " not in name and name not in ("resets", "times"):
            for line in stored.values():
                line[np.isnan(times)] = np.nan
    elapsed = np.diff(times, prepend=np.nan)
    resets = _resets(engine, size)
    wide = resets.copy()
    for back in range(1, stride):
        wide[back:] |= resets[:-back]
    plain = {name: _gauge(engine, name, size) for name in GAUGES}
    means = {name: _first_known([_gauge(engine, f"mean {name}", size), plain[name]], size) for name in GAUGES}
    peaks = {name: _first_known([_gauge(engine, f"peak {name}", size), plain[name]], size) for name in GAUGES}
    for reason in ("capacity", "deferred"):
        found = [
            line
            for name in (f"mean {REASONS}", REASONS)
            for lines in _best(engine, name, ("",))
            for labels, line in lines.items()
            if dict(labels).get("reason") == reason
        ]
        means[f"waiting_{reason}"] = _first_known(found, size)
    counters = {
        name: _counter(engine, name, resets, size) for name in COUNTERS if name != "finished"
    } | _finished(engine, resets, size)
    buckets = {name: _bucket_rises(engine, name, wide, size, stride) for name in BUCKETS}
    steps = {
        suffix: _sum(
            [r for lines in _best(engine, MEANS[0], (suffix,))[:1] for r in _rises(lines, resets).values()],
            size,
        )
        for suffix in ("_sum", "_count")
    }
    seen = np.flatnonzero(~np.isnan(means["running"]) | ~np.isnan(means["kv_usage"]))
    if not len(seen):
        return []
    out = []
    for at in range(max(1, int(seen[0])), int(seen[-1]) + 1):
        values = {name: _number(line, at) for name, line in means.items()}
        values |= {f"{name}_peak": _number(line, at) for name, line in peaks.items()}
        increments = {name: _number(line, at) for name, line in counters.items()}
        histograms: dict[str, HistogramDelta] = {}
        for name, rises in buckets.items():
            delta = None if rises is None else _delta(rises, at)
            if delta is not None:
                histograms[name] = delta
        count = _number(steps["_count"], at)
        if count is not None:
            total = _number(steps["_sum"], at)
            histograms[MEANS[0]] = HistogramDelta(bounds=(), counts=(round(count),), sum=total)
        known = {name: value for name, value in increments.items() if value is not None}
        gone = values["running"] is None and values["kv_usage"] is None
        out.append(
            Interval(
                target=target,
                engine=engine.label,
                model_name=engine.model,
                end_s=grid.first_s + at * grid.step_s,
                seconds=grid.step_s,
                counted_s=(_number(elapsed, at) or 0.0) if known else 0.0,
                state=NO_SAMPLE if gone else "ok",
                values={name: value for name, value in values.items() if value is not None},
                increments=known,
                histograms=histograms,
            )
        )
    return out


def _delta(found: _Buckets, at: int) -> HistogramDelta | None:
    counts = found.counts[at].tolist()
    if not all(count >= 0 for count in counts):
        return None
    return HistogramDelta(bounds=found.bounds, counts=tuple(map(int, counts)), sum=_number(found.sums, at))
