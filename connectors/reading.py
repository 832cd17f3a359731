"""Samples of one page into one record per engine: which series belong together, which name answers.

Rules are those of docs/metrics.md: newest name wins and is never added to the old one, engines are told
apart by their labels, adapters belong to their base model, per-process gauges are not added up. Left out:
anything over time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.samples import Sample

from capacity.telemetry import EngineSnapshot, Histogram, Reading, State, Value, unknown
from connectors import vocabulary
from connectors.engine_config import Limits, engine_config
from connectors.errors import TooLarge
from connectors.readings import LARGEST, absent, read_row, shared_reading
from connectors.releases import infer_release
from connectors.vocabulary import KINDS, Row

IDENTITY = (
    "instance",
    "pod",
    "server",
    "ReplicaId",
    "replica",
    "worker_id",
    "dp_rank",
    "engine",
)

MAX_ENGINES = 512

Series = tuple[str, Mapping[str, str], float, str]  # suffix, labels, value, sample name
Key = tuple[str | None, ...]


@dataclass(slots=True)
class _Group:
    """Series of one engine: row order -> series."""

    key: Key
    rows: dict[int, list[Series]] = field(default_factory=lambda: defaultdict(list))
    sampled_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a page says: engines, readings without an engine, and notes about both."""

    engines: tuple[EngineSnapshot, ...]
    shared: Mapping[str, Reading]
    notes: tuple[str, ...]


def _check_number(engines: int) -> None:
    if engines > MAX_ENGINES:
        raise TooLarge(
            f"the page shows more than {MAX_ENGINES} engines; read so many from a Prometheus server"
        )


def _key(labels: Mapping[str, str]) -> Key:
    return tuple(labels.get(name) for name in IDENTITY)


def _grouped(samples: Iterable[Sample]) -> tuple[dict[Key, _Group], dict[int, list[Series]], dict[int, Row]]:
    """Engine series by identity, other series (GPU, process), and the rows met."""
    groups: dict[Key, _Group] = {}
    others: dict[int, list[Series]] = defaultdict(list)
    met: dict[int, Row] = {}
    found_by_name: dict[str, tuple[tuple[Row, ...], str] | None] = {}
    for sample in samples:
        name = sample.name
        if name not in found_by_name:
            found_by_name[name] = vocabulary.find(name)
        found = found_by_name[name]
        if found is None:
            continue
        for row in found[0]:
            if row.select is not None and sample.labels.get(row.select[0]) != row.select[1]:
                continue
            met[row.order] = row
            series = (found[1], sample.labels, sample.value, name)
            if row.engine in KINDS:
                key = _key(sample.labels)
                group = groups.get(key)
                if group is None:
                    _check_number(len(groups) + 1)
                    group = groups[key] = _Group(key)
                group.rows[row.order].append(series)
                if sample.timestamp is not None:
                    group.sampled_s = max(group.sampled_s or 0.0, float(sample.timestamp))
            else:
                others[row.order].append(series)
    return groups, others, met


def _covers(specific: Key, general: Key) -> bool:
    return all(g is None or s == g for s, g in zip(specific, general, strict=True))


def _settle(groups: dict[Key, _Group], met: Mapping[int, Row]) -> tuple[list[_Group], list[_Group]]:
    """Engines, and groups of series that name no engine among several.

    Series that lack a label the engines carry (admission rejections have no ``engine``) go to the one
    engine they fit.
    """
    engines = [g for g in groups.values() if any(met[order].kind == "gauge" for order in g.rows)]
    if not engines:
        engines = list(groups.values())
    homeless: list[_Group] = []
    labelled: dict[frozenset[int], list[_Group]] = defaultdict(list)
    for group in engines:
        labelled[_labels(group.key)].append(group)

    def general(group: _Group) -> bool:
        mine = _labels(group.key)
        finer = (k.key for labels, found in labelled.items() if labels > mine for k in found)
        return any(_covers(key, group.key) for key in finer)

    specific = [group for group in engines if not general(group)]
    settled = {id(group) for group in specific}
    for group in groups.values():
        if id(group) in settled:
            continue
        homes = [g for g in specific if _covers(g.key, group.key) or _covers(group.key, g.key)]
        if len(homes) == 1:
            for order, series in group.rows.items():
                homes[0].rows[order] += series
        else:
            homeless.append(group)
    return specific, homeless


def _labels(key: Key) -> frozenset[int]:
    """Which of the identity's labels a key has."""
    return frozenset(i for i, value in enumerate(key) if value is not None)


def _kind(group: _Group, met: Mapping[int, Row]) -> str:
    present = {met[order].engine for order in group.rows}
    return next(kind for kind in KINDS if kind in present)


def _split_by_model(group: _Group, met: Mapping[int, Row]) -> list[tuple[str | None, _Group]]:
    """One group per base model: the models that have a gauge of their own. Adapters stay with a single
    base.
    """
    names: dict[str, None] = {}
    for order, series in group.rows.items():
        if met[order].signal in ("running", "waiting", "kv_usage"):
            names |= dict.fromkeys(
                labels["model_name"] for _, labels, _, _ in series if "model_name" in labels
            )
    if len(names) < 2:
        return [(next(iter(names), _any_model(group)), group)]
    _check_number(len(names))
    out: list[tuple[str | None, _Group]] = []
    for name in names:
        part = _Group(group.key, sampled_s=group.sampled_s)
        for order, series in group.rows.items():
            kept = [s for s in series if s[1].get("model_name", name) == name]
            if kept:
                part.rows[order] = kept
        out.append((name, part))
    return out


def _any_model(group: _Group) -> str | None:
    for series in group.rows.values():
        for _, labels, _, _ in series:
            for label in ("model_name", "model", "model_id"):
                if labels.get(label):
                    return labels[label]
    return None


def _names(group: _Group) -> tuple[str, ...]:
    seen: dict[str, None] = {}
    for series in group.rows.values():
        seen |= dict.fromkeys(labels["model_name"] for _, labels, _, _ in series if "model_name" in labels)
    return tuple(seen)


def labels_of(keys: Sequence[Key]) -> list[str]:
    """A short name per key: the labels that differ; the engine label, or "0", where nothing differs."""
    varying = [i for i in range(len(IDENTITY)) if len({key[i] for key in keys}) > 1]
    if not varying:
        return [key[IDENTITY.index("engine")] or "0" for key in keys]
    return ["/".join(key[i] or "-" for i in varying) for key in keys]


def _by_model(rows: Mapping[int, list[Series]], met: Mapping[int, Row]) -> dict[str, Reading]:
    """Token counters by model name, where adapters are served beside their base."""
    out: dict[str, Reading] = {}
    for order, series in rows.items():
        row = met[order]
        if row.signal in ("prompt_tokens", "generation_tokens"):
            found = shared_reading(row, series, part="model_name")
            if found is not None and len(found.parts) > 1:
                out[f"{row.signal}_by_model"] = found
    return out


def _sequences_note(readings: Mapping[str, Reading]) -> list[str]:
    """What to say where clients ask for several answers (``n`` above 1): the engine counts each of them."""
    found = readings.get("request_params_n")
    if not isinstance(found, Histogram) or found.mean is None or found.mean <= 1.0:
        return []
    prompts = readings.get("prompt_tokens")
    mean = prompts.number / found.sum if isinstance(prompts, Value) and prompts.number and found.sum else None
    said = "" if mean is None else f"; {mean:.4g} prompt tokens per sequence since the start"
    return [
        f"n above 1: {found.count:.0f} user requests with {found.mean:.2g} sequences each; latencies, finished "
        f"requests and prompt tokens count sequences{said}"
    ]


def read(
    samples: Iterable[Sample],
    *,
    time_s: float,
    monotonic_s: float | None = None,
    complete: bool = True,
    limits: Limits | None = None,
) -> Read:
    """Engines behind one page. An empty result means that no name of a known engine was found. Raises TooLarge."""
    groups, others, met = _grouped(samples)
    specific, homeless = _settle(groups, met)
    split = [(name, part) for group in specific for name, part in _split_by_model(group, met)]
    ids = labels_of([part.key for _, part in split])
    if len(set(ids)) < len(ids):
        ids = [f"{label}/{name}" for label, (name, _) in zip(ids, split, strict=True)]
    process_start = next(
        (v for o, s in others.items() for _, _, v, _ in s if met[o].kind == "time" and 0 < v < LARGEST), None
    )
    shared = _shared(homeless, others, met)
    engines: list[EngineSnapshot] = []
    for label, (model, group) in zip(ids, split, strict=True):
        kind = _kind(group, met)
        notes: list[str] = []
        readings: dict[str, Reading] = {}
        present: set[int] = set()
        for signal, candidates in vocabulary.rows_of(kind).items():
            for row in candidates:
                found = read_row(row, group.rows.get(row.order, ()), notes)
                if found is not None:
                    readings[signal] = found
                    present.add(row.order)
                    break
            present |= {row.order for row in candidates if group.rows.get(row.order)}
        release = infer_release(kind, present, complete=complete)
        for signal in vocabulary.signals():
            if signal in readings:
                continue
            if signal in shared:
                reason = "carries no label of one engine: it counts for the pool"
                readings[signal] = unknown(State.MISSING, reason, metric=shared[signal].metric)
            else:
                readings[signal] = absent(signal, kind, release.lowest, complete=complete)
        readings |= _by_model(group.rows, met)
        notes += _sequences_note(readings)
        created = [
            v
            for order, series in group.rows.items()
            if met[order].signal in ("prompt_tokens", "generation_tokens")
            for suffix, _, v, _ in series
            if suffix == "_created" and 0 < v < LARGEST
        ]
        engines.append(
            EngineSnapshot(
                engine=label,
                kind=kind,
                model_name=model,
                release=release.text,
                time_s=time_s,
                monotonic_s=monotonic_s,
                sampled_s=group.sampled_s,
                started_at_s=min(created) if created else process_start,
                readings=readings,
                config=engine_config(group.rows, met, readings, limits=limits, kind=kind),
                names=_names(group),
                notes=tuple(notes),
                complete=complete,
            )
        )
    return Read(engines=tuple(engines), shared=shared, notes=())


def _shared(
    homeless: Sequence[_Group], others: Mapping[int, list[Series]], met: Mapping[int, Row]
) -> dict[str, Reading]:
    shared: dict[str, Reading] = {}
    merged: dict[int, list[Series]] = defaultdict(list)
    for group in homeless:
        for order, series in group.rows.items():
            merged[order] += series
    for order, series in sorted(merged.items()):
        found = read_row(met[order], series, [])
        if found is not None:
            shared.setdefault(met[order].signal, found)
    for order, series in others.items():
        row = met[order]
        if row.engine == "gpu":
            found = shared_reading(row, series, part=row.part)
            if found is not None:
                shared[row.signal] = found
    return shared
