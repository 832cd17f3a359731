"""Series of one name into one reading: gauges, counters, breakdowns, histograms, and why a reading is absent.

NaN, infinities and negative values of things that cannot be negative become None with what the engine
reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from capacity.telemetry import Breakdown, Histogram, Reading, State, Value, unknown
from connectors import vocabulary
from connectors.vocabulary import Release, Row, release_text

Series = tuple[str, Mapping[str, str], float, str]
FRACTIONS = ("kv_usage", "cpu_kv_usage", "prefix_hit_rate", "spec_acceptance_rate")
FRACTION_LIMIT = 1.001
LARGEST = 1e30


def read_row(row: Row, series: Sequence[Series], notes: list[str]) -> Reading | None:
    """The reading of one row, None where the page has no series of it. ``notes`` collects what should be
    said.
    """
    if row.kind in ("counter", "counter_by"):
        totals = [s for s in series if s[0] == "_total"]
        series = totals or [s for s in series if s[0] == ""]
    elif row.kind != "histogram":
        series = [s for s in series if s[0] == ""]
    if not series:
        return None
    if row.kind == "histogram":
        return _histogram(row, series, notes)
    if row.kind in ("gauge_by", "counter_by"):
        return shared_reading(row, series, part=row.part)
    if row.kind == "info":
        return Value(value=dict(series[0][1]), metric=series[0][3])
    if row.kind == "lora":
        return _lora(series)
    return _scalar(row, series, notes)


def _bad(value: float) -> str | None:
    """What is wrong with a number of something that is counted, None where nothing is. No count, byte total or
    time stamp reaches ``LARGEST``, and sums of what is below it stay finite.
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "an infinite value"
    return f"{value:g}" if value < 0 or value > LARGEST else None


def _scalar(row: Row, series: Sequence[Series], notes: list[str]) -> Value:
    metric = series[0][3]
    values = [value for _, _, value, _ in series]
    if row.kind == "ratio" and all(v == -1 for v in values):
        return unknown(State.MISSING, "switched off: the engine reports -1", metric=metric)
    wrong = next((seen for seen in map(_bad, values) if seen), None)
    if wrong is not None:
        return unknown(State.MISSING, f"the engine reported {wrong}", metric=metric)
    if row.signal in FRACTIONS and max(values) > FRACTION_LIMIT:
        return unknown(State.MISSING, f"the engine reported {max(values):g}, outside 0 to 1", metric=metric)
    if row.kind == "gauge" and len(values) > 1 and any("pid" in labels for _, labels, _, _ in series):
        return _per_process(row, series, notes)
    total = max(values) if row.combine == "max" else math.fsum(values)
    return Value(value=total, metric=metric)


def _per_process(row: Row, series: Sequence[Series], notes: list[str]) -> Value:
    """A gauge with one series per API server process; those of dead or idle processes stay behind."""
    metric = series[0][3]
    seen = ", ".join(f"{labels.get('pid', '?')}: {value:g}" for _, labels, value, _ in series)
    notes.append(f"pid-labelled gauges may be stale, not added up: {metric} by process {seen}")
    live = {value for _, _, value, _ in series if value != 0}
    if row.combine == "max" or len(live) < 2:
        value = max(v for _, _, v, _ in series)
        return Value(value=value, state=State.PARTIAL, metric=metric, reason=f"largest of processes {seen}")
    return unknown(State.PARTIAL, f"processes disagree and may be dead ({seen}): not added up", metric=metric)


def shared_reading(row: Row, series: Sequence[Series], *, part: str) -> Breakdown | None:
    """A breakdown by one label; parts that are no numbers are left out and said. None where no part is
    left.
    """
    parts: dict[str, float] = {}
    dropped: list[str] = []
    usable = [s for s in series if s[0] in ("", "_total")]
    totals = [s for s in usable if s[0] == "_total"]
    if not (totals or usable):
        return None
    for _, labels, value, _ in totals or usable:
        name = labels.get(part, "")
        wrong = _bad(value)
        if wrong is not None:
            dropped.append(f"{name or 'value'} = {wrong}")
        elif row.combine == "max":
            parts[name] = max(parts.get(name, 0.0), value)
        else:
            parts[name] = parts.get(name, 0.0) + value
    return Breakdown(
        parts=parts,
        label=part,
        metric=(totals or usable)[0][3],
        state=State.PARTIAL if dropped else State.OK,
        reason=f"the engine reported {', '.join(dropped)}" if dropped else None,
    )


def _lora(series: Sequence[Series]) -> Value:
    """The newest of the info series: their value is a unix timestamp, their labels are comma lists."""
    real = [s for s in series if math.isfinite(s[2])]
    if not real:
        return unknown(State.MISSING, "the engine reported no usable timestamp", metric=series[0][3])
    _, labels, _, metric = max(real, key=lambda s: s[2])
    limit = labels.get("max_lora", "")
    return Value(
        value={
            "max_lora": int(limit) if limit.isdigit() else None,
            "running": _list(labels.get("running_lora_adapters", "")),
            "waiting": _list(labels.get("waiting_lora_adapters", "")),
        },
        metric=metric,
    )


def _list(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _one_histogram(series: Sequence[Series]) -> dict[float, float] | str:
    """Bound -> cumulative count of one labelled histogram, or why it cannot be used."""
    buckets: dict[float, float] = {}
    for suffix, labels, value, _ in series:
        if suffix != "_bucket":
            continue
        try:
            bound = float(labels.get("le", ""))
        except ValueError:
            return f"bucket bound {labels.get('le')!r} is no number"
        if math.isnan(bound) or _bad(value) is not None:
            return "a bucket is not a number"
        buckets[bound] = value
    if not buckets:
        return "no buckets"
    if math.inf not in buckets:
        return "the +Inf bucket is missing"
    ordered = [buckets[b] for b in sorted(buckets)]
    if any(after < before for before, after in pairwise(ordered)):
        return "buckets are not cumulative"
    return buckets


def _histogram(row: Row, series: Sequence[Series], notes: list[str]) -> Histogram | Value | None:
    groups: dict[tuple[tuple[str, str], ...], list[Series]] = {}
    cached: dict[int, tuple[tuple[str, str], ...]] = {}
    for one in series:
        if one[0] == "_created":
            continue
        labels = one[1]
        key = cached.get(id(labels))
        if key is None:
            key = tuple(sorted(item for item in labels.items() if item[0] != "le"))
        groups.setdefault(key, []).append(one)
    metric = row.name if not series else series[0][3].rsplit("_", 1)[0]
    if not groups:
        return None
    counts: dict[float, float] | None = None
    total: float | None = 0.0
    for part in groups.values():
        found = _one_histogram(part)
        if isinstance(found, str):
            notes.append(f"{metric} is left out: {found}")
            return unknown(State.PARTIAL, f"left out: {found}", metric=metric)
        if counts is None:
            counts = found
        elif found.keys() != counts.keys():
            notes.append(f"{metric} is left out: its series have different buckets")
            return unknown(State.PARTIAL, "series with different buckets cannot be added", metric=metric)
        else:
            counts = {bound: counts[bound] + value for bound, value in found.items()}
        sums = [value for suffix, _, value, _ in part if suffix == "_sum"]
        good = len(sums) == 1 and _bad(sums[0]) is None
        total = total + sums[0] if good and total is not None else None
    assert counts is not None
    bounds = tuple(sorted(b for b in counts if not math.isinf(b)))
    return Histogram(
        bounds=bounds,
        counts=(*(counts[b] for b in bounds), counts[math.inf]),
        sum=total,
        metric=metric,
    )


def absent(signal: str, kind: str, lowest: Release | None, *, complete: bool) -> Value:
    """Why a signal has no reading: cut page, not exported by this engine or release, or missing although
    due.
    """
    candidates = vocabulary.rows_of(kind).get(signal, ())
    if not complete:
        return unknown(
            State.PARTIAL, "the page was cut or damaged; this signal may be in the part that is gone"
        )
    if not candidates:
        return unknown(State.NOT_EXPORTED, f"{kind} exports no such metric")
    newest = candidates[0]
    if all(row.gone for row in candidates):
        return unknown(State.NOT_EXPORTED, f"{newest.name} is not in this page: {newest.source}")
    due = [row for row in candidates if _exported(row, lowest)]
    if lowest is not None and not due:
        if newest.first is not None and newest.first > lowest:
            reason = f"not in this page; {newest.name} is exported from {release_text(newest.first)} on"
            return unknown(State.NOT_EXPORTED, reason)
        return unknown(State.NOT_EXPORTED, f"{newest.name} is gone: {newest.source}")
    named = " or ".join(row.name for row in due or candidates[:1])
    if all(row.optional for row in due or candidates[:1]) and candidates[0].optional:
        return unknown(State.MISSING, f"{named} is not in this page: {newest.source}")
    return unknown(State.MISSING, f"{named} is not in this page although it should be")


def _exported(row: Row, lowest: Release | None) -> bool:
    """Whether the release a page is known to be at least of may export this name."""
    if lowest is None:
        return not row.gone
    return (row.first is None or row.first <= lowest) and (row.last is None or row.last >= lowest)
