"""/metrics as a vLLM server of a given release would write it, for demonstration engines.

What it answers: which names, labels, types and bucket bounds a release exports (``families.csv``). Source:
docs/metrics.md, which was read in the published packages. Left out: process gauges beyond a few.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from capacity.errors import CapacityError
from connectors.demo.engine import DemoEngine
from connectors.demo.recorder import Histogram

ENGINE_LABEL_FROM = (0, 8, 5)
NO_ENGINE_LABEL = frozenset({"admission_rejections"})
SIZE_LABELS_FROM = (0, 24)
OLDEST, NEWEST = (0, 4, 0), (0, 33, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One exported family. ``first`` and ``last`` are releases; ``last`` None means still there."""

    name: str
    kind: str
    value: str
    extra_label: str
    first: tuple[int, ...]
    last: tuple[int, ...] | None


def parse_release(text: str) -> tuple[int, ...]:
    """Release as numbers; CapacityError outside 0.4 to 0.33.

    >>> parse_release("0.16.0")
    (0, 16, 0)
    """
    try:
        found = tuple(int(part) for part in text.removeprefix("v").split("."))
    except ValueError:
        found = ()
    if not OLDEST <= found <= NEWEST:
        raise CapacityError(f"release {text!r} is not known; valid: 0.4.0 to 0.33.0", field="release")
    return found


@cache
def families() -> tuple[Family, ...]:
    """The table, in the order of the payload."""
    text = resources.files("connectors.demo").joinpath("families.csv").read_text(encoding="utf-8")
    return tuple(
        Family(
            name=row["name"],
            kind=row["type"],
            value=row["value"],
            extra_label=row["extra_label"],
            first=parse_release(row["first"] + ".0" * (2 - row["first"].count("."))),
            last=parse_release(row["last"]) if row["last"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    )


def exported(release: tuple[int, ...]) -> list[Family]:
    """The families a release shows without extra flags."""
    return [f for f in families() if f.first <= release and (f.last is None or release <= f.last)]


def _labels(pairs: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{pairs[name]}"' for name in sorted(pairs)) + "}" if pairs else ""


def _value(engine: DemoEngine, key: str) -> float | dict[str, float]:
    count, gauges = engine.recorder.count, engine.gauges
    size = engine.config.block_size
    uptime = max(1e-3, engine.now_s - engine.recorder.started_s)
    waiting = gauges["waiting"]
    cached = count["prefix_hits"]
    if key in gauges:
        return gauges[key]
    table: dict[str, float | dict[str, float]] = {
        "zero": 0.0,
        "waiting_by_reason": {"capacity": waiting, "deferred": 0.0},
        "sleep_state": {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0},
        "hit_rate": cached / count["prefix_queries"] if count["prefix_queries"] else 0.0,
        "prefix_query_blocks": float(count["prefix_queries"] // size),
        "prefix_hit_blocks": float(cached // size),
        "prompt_tokens_by_source": {
            "local_compute": max(0.0, count["prompt_tokens"] - cached),
            "local_cache_hit": cached,
            "external_kv_transfer": 0.0,
        },
        "prompt_tokens_cached_by_source": {"device": cached, "host": 0.0, "p2p": 0.0, "disk": 0.0},
        "finished": {name: float(n) for name, n in engine.recorder.finished.items()},
        "rejections": {"max_num_queued_reqs": count["rejections"], "max_num_queued_tokens": 0.0},
        "avg_prompt_throughput": count["prompt_tokens"] / uptime,
        "avg_generation_throughput": count["generation_tokens"] / uptime,
    }
    return table[key] if key in table else float(count[key])


def _histogram_lines(name: str, labels: dict[str, str], histogram: Histogram) -> Iterator[str]:
    running = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        running += count
        le = "+Inf" if bound == float("inf") else repr(float(bound))
        yield f"{name}_bucket{_labels({**labels, 'le': le})} {float(running)}"
    yield f"{name}_count{_labels(labels)} {float(running)}"
    yield f"{name}_sum{_labels(labels)} {histogram.sum!r}"


def _scalar_lines(
    name: str, labels: dict[str, str], value: float | dict[str, float], extra: str
) -> Iterator[str]:
    parts = value.items() if isinstance(value, dict) else [("", value)]
    for part, number in parts:
        yield f"{name}{_labels({**labels, extra: part} if extra else labels)} {float(number)}"


def _config_info(engine: DemoEngine, labels: dict[str, str]) -> str:
    config = engine.config
    tokens = config.num_gpu_blocks * config.block_size
    pairs = {
        **labels,
        "block_size": str(config.block_size),
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.92" if config.release >= (0, 20) else "0.9",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(config.num_gpu_blocks),
        "num_gpu_blocks_override": "None",
        "sliding_window": "None",
    }
    if config.release >= SIZE_LABELS_FROM:
        pairs["kv_cache_max_concurrency"] = str(tokens / config.max_model_len)
        pairs["kv_cache_size_tokens"] = str(tokens)
    return f"vllm:cache_config_info{_labels(pairs)} 1.0"


def _totals(engines: Sequence[DemoEngine], key: str) -> float | dict[str, float]:
    values = [_value(engine, key) for engine in engines]
    first = values[0]
    if isinstance(first, dict):
        return {part: sum(v[part] for v in values if isinstance(v, dict)) for part in first}
    return sum(v for v in values if not isinstance(v, dict))


def render(engines: Sequence[DemoEngine], *, first_index: int = 0, wall_offset_s: float = 0.0) -> str:
    """The payload of one URL behind which ``engines`` run, labelled from ``first_index`` on.

    ``wall_offset_s`` is the wall clock at engine time 0, for start times.
    """
    config = engines[0].config
    started = min(engine.recorder.started_s for engine in engines) + wall_offset_s
    lines = [
        "# HELP process_start_time_seconds Start time of the process since the epoch in seconds.",
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {started!r}",
        "# HELP process_cpu_seconds_total CPU time of the process in seconds.",
        "# TYPE process_cpu_seconds_total counter",
        f"process_cpu_seconds_total {round(0.3 * (engines[0].now_s + wall_offset_s - started), 2)!r}",
    ]
    base = []
    for index, engine in enumerate(engines):
        labels = {"model_name": config.model_name}
        if config.release >= ENGINE_LABEL_FROM:
            labels["engine"] = str(first_index + index)
        base.append((engine, labels))
    for family in exported(config.release):
        name = f"vllm:{family.name}" + ("_total" if family.kind == "counter" else "")
        lines += [f"# HELP {name} Demonstration engine: {family.value}.", f"# TYPE {name} {family.kind}"]
        if family.name in NO_ENGINE_LABEL:
            labels = {"model_name": config.model_name}
            total = _totals(engines, family.value)
            lines += _scalar_lines(name, labels, total, family.extra_label)
            lines.append(f"# TYPE vllm:{family.name}_created gauge")
            since = dict.fromkeys(total, started) if isinstance(total, dict) else started
            lines += _scalar_lines(f"vllm:{family.name}_created", labels, since, family.extra_label)
            continue
        for engine, labels in base:
            if family.kind == "histogram":
                lines += _histogram_lines(name, labels, engine.recorder.histogram[family.value])
            else:
                lines += _scalar_lines(name, labels, _value(engine, family.value), family.extra_label)
        if family.kind != "gauge":
            created = f"vllm:{family.name}_created"
            lines.append(f"# TYPE {created} gauge")
            for engine, labels in base:
                when = engine.recorder.started_s + wall_offset_s
                parts = (
                    _scalar_lines(
                        created, labels, dict.fromkeys(_keys(engine, family), when), family.extra_label
                    )
                    if family.extra_label
                    else [f"{created}{_labels(labels)} {when!r}"]
                )
                lines += parts
    lines.append("# TYPE vllm:cache_config_info gauge")
    lines += [_config_info(engine, labels) for engine, labels in base]
    return "\n".join(lines) + "\n"


def _keys(engine: DemoEngine, family: Family) -> list[str]:
    value = _value(engine, family.value)
    return list(value) if isinstance(value, dict) else []
