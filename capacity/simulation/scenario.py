"""The keys of a simulation scenario: which there are, what they may hold, and the records they become.

Unknown keys are refused with the valid ones. Left out: the planner's own keys (capacity.scenario reads
those).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from capacity.errors import CapacityError
from capacity.simulation.admission import POLICIES, AdaptiveConcurrency, Policy
from capacity.simulation.clients import Client
from capacity.simulation.fleet import Autoscale, Breaker, Failure, FleetSettings
from capacity.simulation.report import Slo
from capacity.simulation.settings import SchedulerSettings, SwapTier
from capacity.simulation.step_time import StepTime
from capacity.speed_words import between

SIMULATION_KEYS = (
    "num_blocks",
    "block_size",
    "step_time",
    "step_time_factors",
    "scheduler",
    "preemption_mode",
    "swap",
    "admission",
    "client",
    "fleet",
    "workload",
    "slo",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "enable_prefix_caching",
    "async_scheduling",
    "warmup_s",
    "until_s",
    "timeline",
    "requests_detail",
    "events",
    "seed",
)
_POLICY_KEYS: dict[str, tuple[str, ...]] = {
    "queue_limit": ("max_num_queued_reqs", "max_num_queued_tokens", "max_waiting"),
    "block_gate": ("min_free_fraction", "expected_output_tokens", "retry_after_s", "status"),
    "token_bucket": ("capacity_tokens", "refill_tokens_per_s", "cost"),
    "saturation": ("queue_threshold", "kv_threshold", "shed_above_priority"),
    "concurrency_limit": ("max_requests", "max_tokens"),
    "adaptive_concurrency": (
        "target_p99_s",
        "rule",
        "initial",
        "minimum",
        "maximum",
        "interval_s",
        "high",
        "low",
    ),
    "priority_shed": ("keep_up_to", "kv_threshold"),
}
_WHOLE = {
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "max_waiting",
    "max_requests",
    "max_tokens",
    "initial",
}
_WHOLE |= {"minimum", "maximum", "expected_output_tokens", "status"}
_RANGES = {
    "min_free_fraction": (0.0, 1.0),
    "high": (0.0, 1.0),
    "low": (0.0, 1.0),
    "status": (400, 599),
    "initial": (1, 1e12),
    "minimum": (1, 1e12),
    "maximum": (1, 1e12),
}
_SIGNED = {"shed_above_priority", "keep_up_to"}
_OPTIONAL = {
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "max_waiting",
    "expected_output_tokens",
    "max_requests",
}
_OPTIONAL |= {"max_tokens", "shed_above_priority"}

T = TypeVar("T")


def mapping(value: Any, where: str) -> dict[str, Any]:
    """A JSON object, or CapacityError."""
    if not isinstance(value, Mapping):
        raise CapacityError(f"{where} is {seen(value)}; expected an object", field=where)
    return {str(key): item for key, item in value.items()}


def seen(value: Any) -> str:
    """A short word for what was given."""
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        text = str(value)
        return text if len(text) <= 24 else f"a number of {len(text.lstrip('-'))} digits"
    kind = {"dict": "object", "list": "list", "tuple": "list"}.get(type(value).__name__)
    if kind is None:
        return f"a {type(value).__name__}"
    if not value:
        return f"an empty {kind}"
    return "an object" if kind == "object" else f"a list of {len(value):,}"


def refuse_unknown(given: Mapping[str, Any], valid: tuple[str, ...], where: str) -> None:
    """Raise CapacityError for the first key that is not valid, naming the valid ones."""
    for key in given:
        if key not in valid:
            near = difflib.get_close_matches(str(key), valid, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise CapacityError(
                f"unknown key {str(key)[:40]!r} in {where}; {hint}valid keys: {', '.join(valid)}",
                field=str(key)[:40],
            )


def build(record: type[T], given: Any, where: str) -> T:
    """A record from a JSON object whose keys are its fields; absent and null keys keep their default."""
    values = mapping(given, where)
    known = fields(record)  # type: ignore[arg-type]
    refuse_unknown(values, tuple(item.name for item in known), where)
    kept: dict[str, Any] = {}
    for item in known:
        value = values.get(item.name)
        if value is None:
            if item.default is MISSING and item.default_factory is MISSING:
                raise CapacityError(f"{where}.{item.name} is missing", field=f"{where}.{item.name}")
            continue
        kept[item.name] = _typed(value, str(item.type), f"{where}.{item.name}")
    return record(**kept)


def _typed(value: Any, kind: str, where: str) -> Any:
    base = kind.removesuffix(" | None")
    if base == "bool":
        if not isinstance(value, bool):
            raise CapacityError(f"{where} is {seen(value)}; expected true or false", field=where)
        return value
    if base in ("int", "float"):
        return _of_kind(value, where, whole=base == "int")
    if base == "str" or base not in ("tuple", "dict"):
        if not isinstance(value, str):
            raise CapacityError(f"{where} is {seen(value)}; expected a text", field=where)
        return value
    return value


def _of_kind(value: Any, where: str, *, whole: bool) -> Any:
    """A number as it is, an integral one as int where whole; which values are valid is the record's to say."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and not beyond_float(value)
    if good and not (whole and math.isfinite(value) and value != int(value)):
        return int(value) if whole and math.isfinite(value) else value
    what = "a whole number" if whole else "a number"
    raise CapacityError(f"{where} is {seen(value)}; expected {what}", field=where)


def beyond_float(value: float) -> bool:
    """Whether a whole number of JSON has so many digits that no float holds it."""
    return isinstance(value, int) and value.bit_length() > 1023


def number(
    value: Any,
    where: str,
    *,
    whole: bool = False,
    low: float = 0.0,
    high: float = 1e12,
    optional: bool = False,
) -> Any:
    """A finite number within [low, high], whole where asked."""
    if value is None and optional:
        return None
    what = "a whole number" if whole else "a number"
    good = isinstance(value, int | float) and not isinstance(value, bool)
    good = good and not beyond_float(value) and math.isfinite(value)
    if not good or not low <= value <= high or (whole and value != int(value)):
        raise CapacityError(f"{where} is {seen(value)}; expected {what}, {between(low, high)}", field=where)
    return int(value) if whole else value


def flag(value: Any, where: str, default: bool) -> bool:
    """true, false, or the default for null."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CapacityError(f"{where} is {seen(value)}; expected true or false", field=where)
    return value


def step_time(given: Any) -> StepTime:
    """``step_time`` of a scenario."""
    found = build(StepTime, given, "step_time")
    if found.is_zero:
        raise CapacityError(
            "step_time is zero in every term; give fixed_s, or seconds per prompt token and per decoding request",
            field="step_time",
        )
    return found


def scaled(step: StepTime, given: Any) -> StepTime:
    """``step_time_factors``: {"per_token": 1.1, "fixed": 0.9} from a calibration, times the step time."""
    if given is None:
        return step
    values = mapping(given, "step_time_factors")
    refuse_unknown(values, ("per_token", "fixed"), "step_time_factors")
    factors = {
        name: number(values.get(name, 1.0), f"step_time_factors.{name}", low=1e-3, high=1e3)
        for name in ("per_token", "fixed")
    }
    return step.scaled(work=factors["per_token"], overhead=factors["fixed"])


def scheduler(given: Any, limits: Mapping[str, int]) -> SchedulerSettings:
    """``scheduler`` of a scenario; ``limits`` are the seats and the token budget given beside it."""
    values = mapping(given if given is not None else {}, "scheduler")
    names = tuple(item.name for item in fields(SchedulerSettings))
    refuse_unknown(values, names, "scheduler")
    for name, value in limits.items():
        values.setdefault(name, value)
    return build(SchedulerSettings, values, "scheduler")


def swap(given: Any) -> SwapTier:
    """``swap``: host_blocks and block_s."""
    values = mapping(given, "swap")
    refuse_unknown(values, ("host_blocks", "block_s"), "swap")
    return SwapTier(
        host_blocks=number(values.get("host_blocks"), "swap.host_blocks", whole=True),
        block_s=number(values.get("block_s"), "swap.block_s", high=3600),
    )


def policies(given: Any) -> list[Policy]:
    """``admission``: a list of objects, each with "policy" and its keys."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise CapacityError(f"admission is {seen(given)}; expected a list of policies", field="admission")
    if len(given) > 20:
        raise CapacityError(f"admission has {len(given)} policies; expected at most 20", field="admission")
    return [_policy(item, f"admission[{index}]") for index, item in enumerate(given)]


def _policy(item: Any, where: str) -> Policy:
    values = mapping(item, where)
    name = values.pop("policy", None)
    if not isinstance(name, str) or name not in POLICIES:
        raise CapacityError(
            f"{where}.policy is {seen(name)}; expected one of {', '.join(POLICIES)}", field=where
        )
    refuse_unknown(values, _POLICY_KEYS[name], where)
    kept: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{where}.{key}"
        if key in ("cost", "rule"):
            allowed = ("prompt", "total") if key == "cost" else ("aimd", "utilisation")
            if value not in allowed:
                raise CapacityError(
                    f"{path} is {seen(value)}; expected one of {', '.join(allowed)}", field=path
                )
            kept[key] = value
            continue
        low = -1e9 if key in _SIGNED else 0.0
        low, top = _RANGES.get(key, (low, 1e12))
        kept[key] = number(
            value, path, whole=key in _WHOLE | _SIGNED, low=low, high=top, optional=key in _OPTIONAL
        )
    for key in ("queue_threshold", "kv_threshold", "interval_s", "target_p99_s"):
        if key in kept and kept[key] <= 0:
            raise CapacityError(
                f"{where}.{key} is {kept[key]}; expected a number above 0", field=f"{where}.{key}"
            )
    if name == "adaptive_concurrency" and "target_p99_s" not in kept:
        raise CapacityError(f"{where}.target_p99_s is missing", field=f"{where}.target_p99_s")
    for least, most in (("minimum", "maximum"), ("low", "high")):
        lower, upper = (kept.get(key, getattr(AdaptiveConcurrency, key)) for key in (least, most))
        if name == "adaptive_concurrency" and lower > upper:
            raise CapacityError(
                f"{where}.{least} is {lower} and {most} {upper}; expected {least} at most {most}",
                field=f"{where}.{least if least in kept else most}",
            )
    if name == "token_bucket":
        kept.setdefault("capacity_tokens", 10_000)
        kept.setdefault("refill_tokens_per_s", 1_000)
    return POLICIES[name](**kept)


def client(given: Any) -> Client:
    """``client`` of a scenario."""
    return Client() if given is None else build(Client, given, "client")


def slo(given: Any) -> Slo:
    """``slo``: ttft_s, tpot_s, e2e_s."""
    return Slo() if given is None else build(Slo, given, "slo")


def fleet(given: Any, *, replicas: int = 1) -> FleetSettings:
    """``fleet``: replicas, router, slow_replica, failures, breaker, autoscale. ``replicas``: default count."""
    if given is None:
        return FleetSettings(replicas=replicas)
    values = mapping(given, "fleet")
    refuse_unknown(
        values, ("replicas", "router", "slow_replica", "failures", "breaker", "autoscale"), "fleet"
    )
    slow: dict[int, int] = {}
    if values.get("slow_replica") is not None:
        one = mapping(values["slow_replica"], "fleet.slow_replica")
        refuse_unknown(one, ("replica", "factor"), "fleet.slow_replica")
        place = number(one.get("replica", 0), "fleet.slow_replica.replica", whole=True)
        slow[place] = number(one.get("factor"), "fleet.slow_replica.factor", whole=True, low=1, high=1000)
    failures = values.get("failures")
    failures = [] if failures is None else failures
    if not isinstance(failures, list):
        raise CapacityError(f"fleet.failures is {seen(failures)}; expected a list", field="fleet.failures")
    router = values.get("router")
    return FleetSettings(
        replicas=number(values.get("replicas", replicas), "fleet.replicas", whole=True, low=1, high=1000),
        router=router if router is not None else "round_robin",
        slowdown=slow,
        failures=tuple(build(Failure, item, f"fleet.failures[{i}]") for i, item in enumerate(failures)),
        breaker=build(Breaker, values["breaker"], "fleet.breaker")
        if values.get("breaker") is not None
        else None,
        autoscale=build(Autoscale, values["autoscale"], "fleet.autoscale")
        if values.get("autoscale") is not None
        else None,
    )
