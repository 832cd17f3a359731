"""Engine snapshots from a Prometheus-compatible server: the stored samples with their own times, grouped
by scrape.

Prometheus gives all samples of one scrape one time stamp, so a raw range selector returns past metrics
pages. Targets that are down or whose samples are old are marked, and keep their last values as stale. Left
out: long histories.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from prometheus_client.samples import Sample

from capacity.telemetry import EngineSnapshot, Histogram, Reading, State, TargetSnapshot, Value
from connectors import vocabulary
from connectors.engine_config import Limits
from connectors.errors import NotMetrics
from connectors.prometheus_api import PrometheusClient, Result, Series, parse_answer
from connectors.reading import read
from connectors.selectors import matchers
from connectors.targets import Target

LOOKBACK_S = 120.0
STALE_INTERVALS = 3.0
STALE_AT_LEAST_S = 30.0
PLACE_LABELS = ("instance", "pod", "server", "ReplicaId")


def place(labels: Mapping[str, str]) -> str:
    """Where a series comes from: its instance, pod or server label."""
    return next((labels[name] for name in PLACE_LABELS if labels.get(name)), "")


def name_pattern() -> str:
    """A regular expression for every sample name that the vocabulary reads, with layered prefixes."""
    names = []
    for row in vocabulary.rows():
        if row.engine == "process":
            continue
        base = row.name.replace(":", "[:_]", 1)
        suffix = {"histogram": "_(bucket|sum|count)", "counter": "(_total)?", "counter_by": "(_total)?"}
        names.append(base + suffix.get(row.kind, ""))
    return f"([a-z]+_)?({'|'.join(dict.fromkeys(names))})|process_start_time_seconds"


def raw_selector(selector: str | None, *, seconds: float) -> str:
    """The stored samples of all known names in the last ``seconds``."""
    extra = matchers(selector)
    name = f'__name__=~"{name_pattern()}"'
    return f"{{{name}{',' if extra else ''}{extra}}}[{int(seconds)}s]"


def _pages(series: Iterable[Series]) -> dict[str, dict[float, list[Sample]]]:
    """Place -> time -> the samples stored there."""
    out: dict[str, dict[float, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for one in series:
        chosen = next((name for name in PLACE_LABELS if one.labels.get(name)), "")
        labels = {k: v for k, v in one.labels.items() if k not in ("__name__", "job", chosen)}
        pages = out[one.labels.get(chosen, "")]
        for when, value in one.points:
            pages[when].append(Sample(one.name, labels, value, None, None))
    return out


def _ups(series: Iterable[Series]) -> dict[str, float]:
    return {place(s.labels): s.points[-1][1] for s in series if s.name == "up" and s.points}


def _interval(times: Sequence[float]) -> float | None:
    gaps = [b - a for a, b in pairwise(sorted(times))]
    return median(gaps) if gaps else None


def stale(engine: EngineSnapshot, reason: str, *, reachable: bool) -> EngineSnapshot:
    """The engine with its last values marked as stale."""

    def mark(reading: Reading) -> Reading:
        if isinstance(reading, Value) and not reading.known:
            return reading
        if isinstance(reading, Histogram):
            return replace(reading, reason=reason)
        return replace(reading, state=State.STALE, reason=reason)

    readings = {name: mark(reading) for name, reading in engine.readings.items()}
    return replace(engine, readings=readings, reachable=reachable, notes=(*engine.notes, reason))


def timelines(
    result: Result,
    *,
    ups: Mapping[str, float],
    now_s: float,
    limits: Limits | None = None,
    depth: int | None = None,
) -> dict[str, list[TargetSnapshot]]:
    """Place -> its scrapes, oldest first, the newest ``depth`` of them. Only times with an engine count."""
    out: dict[str, list[TargetSnapshot]] = {}
    for where, pages in sorted(_pages(s for s in result.series if s.name != "up").items()):
        snapshots: list[TargetSnapshot] = []
        interval = _interval(list(pages))
        for when, samples in sorted(pages.items(), reverse=True):
            if depth is not None and len(snapshots) >= depth:
                break
            found = read(samples, time_s=when, limits=limits)
            if found.engines or found.shared:
                state = State.PARTIAL if result.partial else State.OK
                reason = result.notes[-1] if result.partial else None
                snapshots.append(
                    TargetSnapshot(
                        target=where,
                        time_s=when,
                        state=state,
                        reason=reason,
                        engines=found.engines,
                        shared=found.shared,
                    )
                )
        if snapshots:
            out[where] = _aged(snapshots[::-1], up=ups.get(where), now_s=now_s, interval=interval)
    for where, up in ups.items():
        if where not in out and up == 0:
            reason = "target down: up is 0 and no sample is stored"
            out[where] = [TargetSnapshot(target=where, time_s=now_s, state=State.DOWN, reason=reason)]
    return out


def _aged(
    snapshots: list[TargetSnapshot], *, up: float | None, now_s: float, interval: float | None
) -> list[TargetSnapshot]:
    newest = snapshots[-1]
    age = now_s - newest.time_s
    limit = max(STALE_AT_LEAST_S, STALE_INTERVALS * (interval or 0.0))
    if up == 0:
        reason = f"target down: up is 0, last sample {age:.0f} s old" if age >= 1 else "target down: up is 0"
    elif age > limit:
        reason = f"stale: the last sample is {age:.0f} s old"
    else:
        return snapshots
    engines = tuple(stale(engine, reason, reachable=up != 0) for engine in newest.engines)
    return [*snapshots[:-1], replace(newest, engines=engines, reason=reason, notes=(*newest.notes, reason))]


def recent(
    target: Target,
    *,
    client: PrometheusClient | None = None,
    seconds: float = LOOKBACK_S,
    now_s: float | None = None,
    depth: int | None = None,
) -> tuple[dict[str, list[TargetSnapshot]], tuple[str, ...]]:
    """The scrapes of the last ``seconds`` per place (the newest ``depth`` of them), and what the server said.

    Raises ConnectorError.
    """
    client = client or PrometheusClient(target)
    now = time.time() if now_s is None else now_s
    found = client.query(raw_selector(target.selector, seconds=seconds), time_s=now_s)
    extra = matchers(target.selector)
    ups = _ups(client.query(f"up{{{extra}}}", time_s=now_s).series)
    lines = timelines(found, ups=ups, now_s=now, limits=target.limits, depth=depth)
    if not any(s.engines or s.shared for snapshots in lines.values() for s in snapshots):
        raise NotMetrics("the server stores no recent sample of a known engine for this selector")
    return lines, found.notes


def engine_name(where: str, label: str, *, alone: bool) -> str:
    """An engine's name behind a Prometheus server: its place, with the engine label where it has several.

    >>> engine_name("gpu-1:8000", "0", alone=True), engine_name("gpu-1:8000", "1", alone=False)
    ('gpu-1:8000', 'gpu-1:8000/1')
    """
    return where if alone and where else f"{where}/{label}".lstrip("/")


def combined(
    name: str, lines: Mapping[str, Sequence[TargetSnapshot]], *, time_s: float, notes: Sequence[str] = ()
) -> TargetSnapshot:
    """The newest scrape of every place as one snapshot; engines are named after their place."""
    engines: list[EngineSnapshot] = []
    shared: dict[str, Reading] = {}
    said = list(notes)
    away: list[str] = []
    for where, snapshots in lines.items():
        newest = snapshots[-1]
        said += newest.notes
        if not newest.up or newest.reason:
            away.append(f"{where}: {newest.reason}")
        for engine in newest.engines:
            alone = len(newest.engines) == 1
            engines.append(replace(engine, engine=engine_name(where, engine.engine, alone=alone)))
        for signal, reading in newest.shared.items():
            shared.setdefault(signal, reading)
    return TargetSnapshot(
        target=name,
        time_s=time_s,
        state=State.PARTIAL if away else State.OK,
        reason="; ".join(away) or None,
        engines=tuple(engines),
        shared=shared if len(lines) == 1 else {},
        notes=tuple(dict.fromkeys(said)),
    )


def instant_snapshot(
    target: Target,
    *,
    wall: Callable[[], float] = time.time,
    steady: Callable[[], float] = time.monotonic,
) -> TargetSnapshot:
    """Every engine behind a selector at its newest stored scrape. Raises ConnectorError."""
    started = steady()
    lines, notes = recent(target, depth=1)
    found = combined(target.name, lines, time_s=wall(), notes=notes)
    return replace(found, scrape_s=steady() - started)


def answer_timelines(
    body: bytes, *, limits: Limits | None = None
) -> tuple[dict[str, list[TargetSnapshot]], tuple[str, ...]]:
    """The scrapes in a recorded answer of the query API, judged at the newest time in it. Raises
    ConnectorError.
    """
    found = parse_answer(body)
    now = max((s.points[-1][0] for s in found.series if s.points), default=0.0)
    lines = timelines(found, ups=_ups(found.series), now_s=now, limits=limits)
    if not lines:
        raise NotMetrics("the answer holds no sample of a known engine")
    return lines, found.notes
