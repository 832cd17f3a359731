"""KV capacity and limits of an engine from what it exports (``cache_config_info``) and what the operator
told us.

``kv_cache_size_tokens`` is preferred; ``num_gpu_blocks x block_size`` is wrong for models with several
cache groups (the label is the smallest block), so it is a fallback that says so. Labels differ per
release; "None" means unset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from capacity.telemetry import EngineConfig, Reading, State, Value, unknown
from connectors.readings import LARGEST
from connectors.vocabulary import Row

Series = tuple[str, Mapping[str, str], float, str]
UNSET = unknown(State.MISSING, "cache_config_info is not in this page")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Start-up settings that no release exports; they come from the target's entry."""

    max_num_seqs: float | None = None
    max_num_batched_tokens: float | None = None
    max_model_len: float | None = None


def _number(labels: Mapping[str, str], *names: str) -> float | None:
    for name in names:
        try:
            value = float(labels[name])
        except (KeyError, ValueError):
            continue
        if 0 < value < LARGEST:
            return value
    return None


def _label_value(labels: Mapping[str, str], label: str, metric: str) -> Value:
    number = _number(labels, label)
    if number is not None:
        return Value(value=number, metric=metric)
    if label in labels:
        return unknown(State.MISSING, f"{label} is {labels[label]!r} on {metric}", metric=metric)
    return unknown(State.NOT_EXPORTED, f"no {label} label on {metric}", metric=metric)


def engine_config(
    rows: Mapping[int, list[Series]],
    met: Mapping[int, Row],
    readings: Mapping[str, Reading],
    *,
    limits: Limits | None,
    kind: str = "vllm",
) -> EngineConfig:
    """Capacity of one engine; readings of engines that export blocks or tokens as gauges are used as they
    are.
    """
    limits = limits or Limits()
    infos = [
        one
        for order, series in rows.items()
        if met[order].signal == "cache_config"
        for one in series
        if one[0] == ""
    ]
    infos.sort(key=lambda one: _number(one[1], "num_gpu_blocks") is not None)
    labels: Mapping[str, str] = infos[-1][1] if infos else {}
    metric = infos[-1][3] if infos else ""
    if infos:
        blocks = _label_value(labels, "num_gpu_blocks", metric)
        size = _label_value(labels, "block_size", metric)
    else:
        blocks, size = (_unset(readings, kind, signal) for signal in ("num_blocks", "block_size"))
    blocks = _gauge(readings, "num_blocks") or blocks
    size = _gauge(readings, "block_size") or size
    tokens = _capacity(labels, metric, blocks, size, _gauge(readings, "kv_capacity_tokens"))
    if tokens.number is None and blocks.number is None and kind != "vllm":
        tokens = _unset(readings, kind, "kv_capacity_tokens")
    return EngineConfig(
        block_size=size,
        num_blocks=blocks,
        kv_capacity_tokens=tokens,
        max_concurrency=_concurrency(labels, metric, tokens, limits, kind),
        gpu_memory_utilization=_number(labels, "gpu_memory_utilization"),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
        labels=dict(labels),
    )


def _unset(readings: Mapping[str, Reading], kind: str, signal: str) -> Value:
    """Why an engine without ``cache_config_info`` gives no such number."""
    found = readings.get(signal)
    if kind == "vllm":
        return UNSET
    return (
        found if isinstance(found, Value) else unknown(State.NOT_EXPORTED, f"{kind} exports no such metric")
    )


def _gauge(readings: Mapping[str, Reading], signal: str) -> Value | None:
    found = readings.get(signal)
    return found if isinstance(found, Value) and found.number else None


def _capacity(
    labels: Mapping[str, str], metric: str, blocks: Value, size: Value, gauge: Value | None
) -> Value:
    if gauge is not None:
        return gauge
    stated = _number(labels, "kv_cache_size_tokens")
    if stated is not None:
        return Value(value=stated, metric=metric)
    if blocks.number is None or size.number is None:
        known = blocks if blocks.number is None else size
        return unknown(known.state, known.reason or "not known", metric=known.metric)
    return Value(
        value=blocks.number * size.number,
        metric=blocks.metric,
        reason="blocks x block size, as this release states no token count; wrong for hybrid models",
    )


def _concurrency(labels: Mapping[str, str], metric: str, tokens: Value, limits: Limits, kind: str) -> Value:
    stated = _number(labels, "kv_cache_max_concurrency")
    if stated is not None:
        return Value(value=stated, metric=metric)
    if tokens.number is not None and limits.max_model_len:
        value = tokens.number / limits.max_model_len
        return Value(value=value, metric=tokens.metric, reason="tokens / max_model_len of the target's entry")
    if not labels:
        return _unset({}, kind, "max_concurrency")
    return unknown(State.NOT_EXPORTED, "this release states no concurrency and max_model_len is not known")
