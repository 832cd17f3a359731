"""A scenario: everything a person can ask the planner, with vLLM's names, checked once and then frozen.

The keys, types, ranges and texts are rows of catalog/scenario_fields.csv; the record, the CLI's flags, the page's
widgets and the link all read that one table. Left out: what a key means (plan.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

from capacity.catalog.table import read_table
from capacity.engine_names import engine_name
from capacity.errors import CapacityError

# What people and other tools call a key, to the key: only to answer an unknown one.
OTHER_NAMES = {
    "quantization": "weight_format",
    "tp": "tensor_parallel_size",
    "tp_size": "tensor_parallel_size",
    "num_gpus": "tensor_parallel_size",
    "gpu_count": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "dp_size": "data_parallel_size",
    "ep": "enable_expert_parallel",
    "dcp": "decode_context_parallel_size",
    "context_length": "max_model_len",
    "max_seq_len": "max_model_len",
    "kv_dtype": "kv_cache_dtype",
    "input_len": "prompt_tokens",
    "isl": "prompt_tokens",
    "output_len": "output_tokens",
    "osl": "output_tokens",
    "speculative_config": "num_speculative_tokens",
    "version": "engine_version",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Lengths of a workload in tokens: lognormal by ``mean`` and ``cv`` (0 = constant), or observed ``values``."""

    mean: float
    cv: float = 0.0
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of the field table. ``minimum`` and ``maximum`` include their ends; None = no bound."""

    key: str
    type: str
    minimum: float | None
    maximum: float | None
    group: str
    label: str
    help: str

    @property
    def choices(self) -> tuple[str, ...]:
        """Allowed values of a choice field, else empty."""
        return tuple(self.type.removeprefix("choice:").split("|")) if self.type.startswith("choice:") else ()

    @property
    def bounds(self) -> str:
        """The valid range in words."""
        low = _number_text(self.minimum) if self.minimum is not None else "-"
        return f"{low} to {_number_text(self.maximum)}" if self.maximum is not None else f"at least {low}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A checked scenario. None means "not given": the engine's default for that release, which the plan names."""

    model: str | None = None
    model_config: str | None = None
    accept_upper_bound: bool = False
    parameters: float | None = None
    weight_format: str | None = None
    dtype: str | None = None
    weights_gib: float | None = None
    gpu: str | None = None
    gpu_memory_gib: float | None = None
    other_memory_gib: float | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    pipeline_layer_split: tuple[int, ...] | None = None
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    decode_context_parallel_size: int = 1
    engine: str = "vllm"
    engine_version: str | None = None
    usage: str = "api_server"
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    kv_cache_dtype: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    disable_hybrid_kv_cache_manager: bool | None = None
    mamba_ssm_cache_dtype: str | None = None
    num_speculative_tokens: int = 0
    speculative_method: str | None = None
    draft_model: str | None = None
    draft_tensor_parallel_size: int | None = None
    cpu_offload_gib: float = 0.0
    kv_offloading_size_gib: float | None = None
    max_loras: int = 0
    max_lora_rank: int = 16
    images_per_request: int | None = None
    image_tokens: int | None = None
    cuda_graph_gib: float | None = None
    kv_cache_gib: tuple[float, ...] | None = None
    kv_cache_memory_bytes: tuple[int, ...] | None = None
    num_gpu_blocks_override: int | None = None
    prompt_tokens: Length | None = None
    output_tokens: Length | None = None
    shared_prefix_tokens: int = 0
    safe_percentile: float = 99.0

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Scenario:
        """A scenario from a JSON object. Raises CapacityError that names the key, what was seen and what is valid."""
        if not isinstance(raw, Mapping):
            raise CapacityError(f"a scenario is a JSON object; seen {_seen(raw)}")
        table = field_table()
        values: dict[str, Any] = {}
        for key, value in raw.items():
            if key not in table:
                near = closest_key(str(key), table)
                hint = f"did you mean {near!r}?" if near else "python -m capacity fields lists the valid ones"
                raise CapacityError(f"unknown key {str(key)[:40]!r}; {hint}", field=str(key)[:40])
            if value is not None:
                values[key] = _check(table[key], value)
        if "model" in values and "model_config" in values:
            raise CapacityError("give model or model_config, not both", field="model_config")
        if "kv_cache_gib" in values and "kv_cache_memory_bytes" in values:
            raise CapacityError("give kv_cache_gib or kv_cache_memory_bytes, not both", field="kv_cache_gib")
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """The scenario as a JSON object without the keys that hold their default. parse(to_json(x)) == x."""
        out: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if value == item.default:
                continue
            if item.name == "model_config":
                value = json.loads(value)
            elif isinstance(value, Length):
                value = _length_json(value)
            elif isinstance(value, tuple):
                value = list(value)
            out[item.name] = value
        return out


@lru_cache(maxsize=1)
def field_table() -> dict[str, Field]:
    """All scenario keys in order."""
    return {
        row["key"]: Field(
            key=row["key"],
            type=row["type"],
            minimum=float(row["minimum"]) if row["minimum"] else None,
            maximum=float(row["maximum"]) if row["maximum"] else None,
            group=row["group"],
            label=row["label"],
            help=row["help"],
        )
        for row in read_table("scenario_fields")
    }


def _check(field: Field, value: Any) -> Any:
    kind = field.type
    if kind == "text":
        if not isinstance(value, str) or not value.strip():
            raise CapacityError(f"{field.key} is {_seen(value)}; expected a text", field=field.key)
        if len(value) > 300:
            raise CapacityError(
                f"{field.key} has {len(value)} characters; expected at most 300", field=field.key
            )
        return value.strip()
    if field.choices:
        if field.key == "engine" and isinstance(value, str):
            spelled, note = engine_name(value)
            value = value if note else spelled
        if value not in field.choices:
            raise CapacityError(
                f"{field.key} is {_seen(value)}; expected one of {', '.join(field.choices)}", field=field.key
            )
        return value
    if kind == "flag":
        if not isinstance(value, bool):
            raise CapacityError(f"{field.key} is {_seen(value)}; expected true or false", field=field.key)
        return value
    if kind == "object":
        if not isinstance(value, Mapping):
            raise CapacityError(
                f"{field.key} is {_seen(value)}; expected a config.json object", field=field.key
            )
        return _frozen_json(field.key, value)
    if kind in ("numbers", "integers"):
        many = value if isinstance(value, list | tuple) else [value]
        if not 1 <= len(many) <= 256:
            raise CapacityError(f"{field.key} has {len(many)} entries; expected 1 to 256", field=field.key)
        return tuple(_number(field, item, whole=kind == "integers") for item in many)
    if kind == "length":
        return _length(field, value)
    return _number(field, value, whole=kind == "integer")


def _number(field: Field, value: Any, *, whole: bool) -> Any:
    what = "a whole number" if whole else "a number"
    if field.key == "max_model_len" and value in (-1, "-1", "auto"):
        what = "the length itself (search max_model_len finds the longest that fits), a whole number"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CapacityError(
            f"{field.key} is {_seen(value)}; expected {what}, {field.bounds}", field=field.key
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise CapacityError(
            f"{field.key} is {value}; expected a finite number, {field.bounds}", field=field.key
        )
    low, high = field.minimum, field.maximum
    if (
        (low is not None and value < low)
        or (high is not None and value > high)
        or (whole and value != int(value))
    ):
        raise CapacityError(
            f"{field.key} is {_number_text(value)}; expected {what}, {field.bounds}", field=field.key
        )
    return int(value) if whole else float(value)


def _length(field: Field, value: Any) -> Length:
    if isinstance(value, Length):
        return value
    if not isinstance(value, Mapping):
        return Length(mean=_number(field, value, whole=False))
    extra = set(value) - {"mean", "cv", "values"}
    if extra:
        raise CapacityError(
            f"{field.key} has the key {sorted(map(str, extra))[0][:40]!r}; expected mean and cv, or values",
            field=field.key,
        )
    if "values" in value:
        many = value["values"]
        if not isinstance(many, list | tuple) or not 1 <= len(many) <= 100_000:
            given = f"has {len(many):,} entries" if isinstance(many, list | tuple) else f"is {_seen(many)}"
            raise CapacityError(f"{field.key}.values {given}; expected 1 to 100,000 lengths", field=field.key)
        lengths = tuple(_number(field, item, whole=False) for item in many)
        return Length(mean=sum(lengths) / len(lengths), values=lengths)
    if "mean" not in value:
        raise CapacityError(f"{field.key} has no mean; expected mean and cv, or values", field=field.key)
    spread = Field(key=f"{field.key}.cv", type="number", minimum=0, maximum=20, group="", label="", help="")
    return Length(
        mean=_number(field, value["mean"], whole=False), cv=_number(spread, value.get("cv", 0), whole=False)
    )


def _length_json(value: Length) -> Any:
    if value.values:
        return {"values": list(value.values)}
    return {"mean": value.mean, "cv": value.cv} if value.cv else value.mean


def _frozen_json(key: str, value: Any) -> str:
    try:
        text = json.dumps(value, sort_keys=False, allow_nan=True)
    except (TypeError, ValueError, RecursionError):
        raise CapacityError(f"{key} is not plain JSON or is nested too deeply", field=key) from None
    if len(text) > 5_000_000:
        raise CapacityError(f"{key} has {len(text):,} characters; expected at most 5,000,000", field=key)
    return text


def _seen(value: Any) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    if isinstance(value, bool | type(None)):
        return json.dumps(value)
    if isinstance(value, int | float):
        return _number_text(value)
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else f"a {type(value).__name__}"


def _number_text(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        number = float(value)
    except OverflowError:
        return f"a number of {len(str(value))} digits"
    return f"{number:,.0f}" if number == int(number) and abs(number) < 1e15 else f"{number:.6g}"


def closest_key(key: str, table: Mapping[str, Field]) -> str | None:
    """The key to write in place of an unknown one: what it is called elsewhere, else the nearest spelling.

    >>> closest_key("quantization", field_table()), closest_key("tensor_paralel_size", field_table())
    ('weight_format', 'tensor_parallel_size')
    """
    import difflib

    other = OTHER_NAMES.get(key.lower())
    if other in table:
        return other
    return next(iter(difflib.get_close_matches(key, list(table), n=1)), None)


def as_plain(record: Any) -> Any:
    """A frozen record as plain dicts and lists, for JSON."""
    return asdict(record)
