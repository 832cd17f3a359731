"""Intervals to rows and back, and rows summed into wider steps, in numpy.

What it answers: one code path for down-sampling and for drawing a window. Left out: SQL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from capacity.intervals import COUNTERS, FACTS, GAUGES, HISTOGRAMS, PEAKS, HistogramDelta, Interval
from connectors.history.schema import (
    HISTOGRAM_SUMS,
    LAST_COLUMNS,
    MAX_COLUMNS,
    MEAN_COLUMNS,
    NUMBER_COLUMNS,
    SUM_COLUMNS,
)

Layout = tuple[tuple[str, tuple[float, ...]], ...]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKey:
    """Who a row belongs to."""

    target: str
    engine: str
    model_name: str | None
    release: str | None
    demo: bool


@dataclass(slots=True, kw_only=True)
class Frame:
    """Rows in columns, ordered by engine and time. Unknown numbers are NaN; ``counts`` by row or None."""

    end_s: Floats
    engine_id: NDArray[np.int64]
    seconds: Floats
    counted_s: Floats
    state: list[str]
    layout_id: NDArray[np.int64]
    counts: list[NDArray[np.int64] | None]
    numbers: dict[str, Floats]

    def __len__(self) -> int:
        return len(self.end_s)


def layout_of(histograms: Mapping[str, HistogramDelta]) -> Layout:
    """Names and bounds in the table's order."""
    return tuple((name, histograms[name].bounds) for name in HISTOGRAMS if name in histograms)


def layout_json(layout: Layout) -> str:
    return json.dumps([[name, list(bounds)] for name, bounds in layout])


def layout_from_json(text: str) -> Layout:
    return tuple((name, tuple(bounds)) for name, bounds in json.loads(text))


def row_of(interval: Interval, *, engine_id: int, layout_id: int) -> dict[str, object]:
    """One row as JSON-ready values; what is unknown is left out and becomes NULL."""
    row: dict[str, object] = {
        "end_s": interval.end_s,
        "engine_id": engine_id,
        "seconds": interval.seconds,
        "counted_s": interval.counted_s,
        "state": interval.state,
        "layout_id": layout_id,
    }
    for name in (*GAUGES, *FACTS):
        row[name] = interval.values.get(name)
    for name in PEAKS:
        row[name] = interval.value(name)
    for name in COUNTERS:
        row[name] = interval.increments.get(name)
    counts: list[int] = []
    for name in HISTOGRAMS:
        delta = interval.histograms.get(name)
        if delta is not None:
            row[f"{name}_sum"] = delta.sum
            counts += delta.counts
    row["counts"] = counts
    return row


def frame_of(columns: Mapping[str, NDArray[np.generic]]) -> Frame:
    """What DuckDB's ``fetchnumpy`` answered, as a Frame."""

    def floats(name: str) -> Floats:
        raw = columns[name]
        values = np.asarray(raw, dtype=np.float64)
        if isinstance(raw, np.ma.MaskedArray):
            values = np.where(np.ma.getmaskarray(raw), np.nan, values)
        return values

    counts = columns["counts"]
    mask = np.ma.getmaskarray(counts) if isinstance(counts, np.ma.MaskedArray) else None
    raw_counts = np.ma.getdata(counts)
    return Frame(
        end_s=floats("end_s"),
        engine_id=np.asarray(columns["engine_id"], dtype=np.int64),
        seconds=floats("seconds"),
        counted_s=floats("counted_s"),
        state=[str(s) for s in np.ma.getdata(columns["state"])],
        layout_id=np.asarray(columns["layout_id"], dtype=np.int64),
        counts=[
            None if (mask is not None and mask[i]) or item is None else _ints(item)
            for i, item in enumerate(raw_counts)
        ],
        numbers={name: floats(name) for name in NUMBER_COLUMNS},
    )


def _ints(item: object) -> NDArray[np.int64]:
    if type(item) is np.ndarray:
        return item
    return np.ma.getdata(np.asanyarray(item)).astype(np.int64, copy=False)


def joined(frames: Sequence[Frame]) -> Frame:
    """Frames of consecutive spans as one, ordered by engine and time."""
    if len(frames) == 1:
        return frames[0]
    order = np.lexsort(
        (np.concatenate([f.end_s for f in frames]), np.concatenate([f.engine_id for f in frames]))
    )
    states = [state for f in frames for state in f.state]
    counts = [item for f in frames for item in f.counts]
    return Frame(
        end_s=np.concatenate([f.end_s for f in frames])[order],
        engine_id=np.concatenate([f.engine_id for f in frames])[order],
        seconds=np.concatenate([f.seconds for f in frames])[order],
        counted_s=np.concatenate([f.counted_s for f in frames])[order],
        state=[states[i] for i in order.tolist()],
        layout_id=np.concatenate([f.layout_id for f in frames])[order],
        counts=[counts[i] for i in order.tolist()],
        numbers={n: np.concatenate([f.numbers[n] for f in frames])[order] for n in NUMBER_COLUMNS},
    )


def sum_up(frame: Frame, *, step_s: float) -> Frame:
    """Rows merged into steps of ``step_s`` aligned to the clock, per engine.

    Gauges: mean weighted by seconds; peaks: max; facts: last; counters and buckets: sum. Where an engine
    changed its bucket bounds inside a step, the later bounds' counts stay.
    """
    if len(frame) == 0:
        return frame
    step = np.ceil(frame.end_s / step_s).astype(np.int64)
    new = np.ones(len(frame), dtype=bool)
    new[1:] = (np.diff(step) != 0) | (np.diff(frame.engine_id) != 0)
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(frame))
    seconds = np.add.reduceat(frame.seconds, starts)
    numbers: dict[str, Floats] = {}
    for name in MEAN_COLUMNS:
        values = frame.numbers[name]
        known = ~np.isnan(values)
        weight = np.add.reduceat(np.where(known, np.maximum(frame.seconds, 1e-6), 0.0), starts)
        total = np.add.reduceat(np.where(known, values * np.maximum(frame.seconds, 1e-6), 0.0), starts)
        numbers[name] = np.divide(total, weight, out=np.full(len(starts), np.nan), where=weight > 0)
    for name in MAX_COLUMNS:
        peak = np.maximum.reduceat(
            np.where(np.isnan(frame.numbers[name]), -np.inf, frame.numbers[name]), starts
        )
        numbers[name] = np.where(np.isinf(peak), np.nan, peak)
    for name in (*SUM_COLUMNS, *HISTOGRAM_SUMS):
        values = frame.numbers[name]
        some = np.add.reduceat(~np.isnan(values), starts)
        numbers[name] = np.where(some > 0, np.add.reduceat(np.nan_to_num(values), starts), np.nan)
    order = np.arange(len(frame))
    for name in LAST_COLUMNS:
        values = frame.numbers[name]
        last = np.maximum.reduceat(np.where(np.isnan(values), -1, order), starts)
        numbers[name] = np.where(last >= 0, values[np.maximum(last, 0)], np.nan)
    layouts, counts, states = [], [], []
    for first, end in zip(starts.tolist(), ends.tolist(), strict=True):
        layout, total_counts = _sum_counts(frame, first, end)
        layouts.append(layout)
        counts.append(total_counts)
        states.append(_state(frame.state[first:end]))
    return Frame(
        end_s=frame.end_s[ends - 1],
        engine_id=frame.engine_id[starts],
        seconds=seconds,
        counted_s=np.add.reduceat(frame.counted_s, starts),
        state=states,
        layout_id=np.array(layouts, dtype=np.int64),
        counts=counts,
        numbers=numbers,
    )


def _sum_counts(frame: Frame, first: int, end: int) -> tuple[int, NDArray[np.int64] | None]:
    layout = -1
    picked: list[NDArray[np.int64]] = []
    for i in range(end - 1, first - 1, -1):
        item = frame.counts[i]
        if item is None or not len(item):
            continue
        if layout < 0:
            layout = int(frame.layout_id[i])
        if frame.layout_id[i] == layout:
            picked.append(item)
    if not picked:
        return int(frame.layout_id[end - 1]), None
    return layout, picked[0] if len(picked) == 1 else np.add.reduce(picked, dtype=np.int64)


def _state(states: Sequence[str]) -> str:
    first = states[-1]
    if all(state == first for state in states):
        return first
    return "partial" if any(state in ("ok", "partial") for state in states) else first


def intervals_of(
    frame: Frame, *, engines: Mapping[int, EngineKey], layouts: Mapping[int, Layout]
) -> Iterable[Interval]:
    """Rows as intervals, in the frame's order. Rows of engines that are not in ``engines`` are left out."""
    columns = {name: values.tolist() for name, values in frame.numbers.items()}
    end_s, seconds, counted_s = frame.end_s.tolist(), frame.seconds.tolist(), frame.counted_s.tolist()
    names = (*MEAN_COLUMNS, *MAX_COLUMNS, *LAST_COLUMNS)
    for i, engine_id in enumerate(frame.engine_id.tolist()):
        key = engines.get(engine_id)
        if key is None:
            continue
        values = {name: v for name in names if (v := columns[name][i]) == v}
        increments = {name: v for name in SUM_COLUMNS if (v := columns[name][i]) == v}
        yield Interval(
            target=key.target,
            engine=key.engine,
            model_name=key.model_name,
            release=key.release,
            demo=key.demo,
            end_s=end_s[i],
            seconds=seconds[i],
            counted_s=counted_s[i],
            state=frame.state[i],
            values=values,
            increments=increments,
            histograms=_histograms(frame, i, layouts, columns),
        )


@lru_cache(maxsize=256)
def _width(layout: Layout) -> int:
    return sum(len(bounds) + 1 for _, bounds in layout)


def _histograms(
    frame: Frame, i: int, layouts: Mapping[int, Layout], columns: Mapping[str, list[float]]
) -> dict[str, HistogramDelta]:
    counts = frame.counts[i]
    layout = layouts.get(int(frame.layout_id[i]), ())
    found: dict[str, HistogramDelta] = {}
    if counts is None or len(counts) != _width(layout):
        return found
    flat = counts.tolist()
    at = 0
    for name, bounds in layout:
        size = len(bounds) + 1
        total = columns[f"{name}_sum"][i]
        found[name] = HistogramDelta(
            bounds=bounds, counts=tuple(flat[at : at + size]), sum=total if total == total else None
        )
        at += size
    return found
