"""What a sizing question holds: a scenario without its GPU, a rate, an SLO, and what may be tried.

Left out: the search (sizing.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from capacity.errors import CapacityError
from capacity.hardware import find_gpu
from capacity.precision import resolve_weight_format
from capacity.scenario import Scenario
from capacity.scenario_keys import for_verb
from capacity.speed_words import between, seen

SLO_KEYS = {"ttft_s", "tpot_s", "percentile"}
RANKS = ("cost", "gpus", "tokens_per_gpu")
KEYS = (
    "arrival_rate_rps",
    "slo_ttft_s",
    "slo_tpot_s",
    "slo_percentile",
    "utilization_ceiling",
    "spare_replicas",
    "max_gpus",
    "gpus",
    "tensor_parallel_sizes",
    "weight_formats",
    "prices_usd_per_gpu_hour",
    "price_usd_per_gpu_hour",
    "rank_by",
    "limit",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """A checked sizing question. Empty ``gpus``, ``tensor_parallel_sizes``, ``weight_formats``: all, 1-8, the scenario's."""

    scenario: Scenario
    arrival_rate_rps: float
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    slo_percentile: float = 50.0
    utilization_ceiling: float = 0.8
    spare_replicas: int = 1
    max_gpus: int = 1024
    gpus: tuple[str, ...] = ()
    tensor_parallel_sizes: tuple[int, ...] = ()
    weight_formats: tuple[str, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)
    price_usd_per_gpu_hour: float | None = None
    rank_by: str = "cost"
    limit: int = 20
    notes: tuple[str, ...] = ()


def parse_size(raw: Mapping[str, Any]) -> SizeRequest:
    """A request from JSON. ``gpu`` and ``tensor_parallel_size`` of the scenario, when given, are the only ones tried.

    Raises CapacityError that names the key, what was seen and what is valid.
    """
    raw, notes = for_verb(_with_slo(raw), "size")
    scenario = Scenario.parse({key: value for key, value in raw.items() if key not in KEYS})
    rate = _number(raw, "arrival_rate_rps", 1e-9, 1e7)
    if rate is None:
        raise CapacityError(
            "arrival_rate_rps is missing; expected requests per second, above 0", field="arrival_rate_rps"
        )
    ttft, tpot = _number(raw, "slo_ttft_s", 1e-12, 1e6), _number(raw, "slo_tpot_s", 1e-12, 1e6)
    for key in ("prompt_tokens", "output_tokens"):
        if getattr(scenario, key) is None:
            raise CapacityError(f"{key} is missing; expected a mean length in tokens", field=key)
    names = _texts(raw, "gpus") or ((scenario.gpu,) if scenario.gpu else ())
    sizes = tuple(int(n) for n in _numbers(raw, "tensor_parallel_sizes"))
    if not sizes and "tensor_parallel_size" in raw:
        sizes = (scenario.tensor_parallel_size,)
    rank = "cost" if raw.get("rank_by") is None else raw["rank_by"]
    if rank not in RANKS:
        raise CapacityError(
            f"rank_by is {str(rank)[:40]!r}; expected one of {', '.join(RANKS)}", field="rank_by"
        )
    formats = _texts(raw, "weight_formats")
    for name in formats:
        resolve_weight_format(name)
    return SizeRequest(
        scenario=scenario,
        arrival_rate_rps=rate,
        slo_ttft_s=ttft,
        slo_tpot_s=tpot,
        slo_percentile=_number(raw, "slo_percentile", 50.0, 99.9) or 50.0,
        utilization_ceiling=_number(raw, "utilization_ceiling", 0.01, 1.0) or 0.8,
        spare_replicas=_whole(raw, "spare_replicas", 0, 1000, 1),
        max_gpus=_whole(raw, "max_gpus", 1, 1_000_000, 1024),
        gpus=tuple(dict.fromkeys(find_gpu(name).id for name in names)),
        tensor_parallel_sizes=sizes,
        weight_formats=formats,
        prices=_prices(raw),
        price_usd_per_gpu_hour=_number(raw, "price_usd_per_gpu_hour", 0.0, 1e6),
        rank_by=rank,
        limit=_whole(raw, "limit", 1, 1000, 20),
        notes=notes,
    )


def _with_slo(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """``slo: {ttft_s, tpot_s, percentile}``, as simulate and the answer spell it, as the keys of this verb."""
    slo = raw.get("slo")
    if slo is None:
        return {key: value for key, value in raw.items() if key != "slo"}
    if not isinstance(slo, Mapping) or not set(slo) <= SLO_KEYS:
        extra = sorted(map(str, set(slo) - SLO_KEYS)) if isinstance(slo, Mapping) else []
        given = f"an object with {extra[0][:40]!r}" if extra else seen(slo)
        raise CapacityError(f"slo is {given}; expected ttft_s, tpot_s and percentile", field="slo")
    spelled = {f"slo_{key}": value for key, value in slo.items()}
    return {**spelled, **{key: value for key, value in raw.items() if key != "slo"}}


def _number(raw: Mapping[str, Any], key: str, low: float, high: float) -> float | None:
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise CapacityError(f"{key} is {seen(value)}; expected a number, {between(low, high)}", field=key)
    return float(value)


def _whole(raw: Mapping[str, Any], key: str, low: int, high: int, default: int) -> int:
    value = _number(raw, key, low, high)
    if value is None:
        return default
    if value != int(value):
        raise CapacityError(f"{key} is {value:g}; expected a whole number, {low:,} to {high:,}", field=key)
    return int(value)


def _texts(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Names from a list, or one alone."""
    return tuple(dict.fromkeys(str(item) for item in _listed(raw, key, 100, "names", str)))


def _numbers(raw: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """Sizes from a list, or one alone."""
    many = _listed(raw, key, 20, "sizes such as [1, 2, 4]", int | float)
    return tuple(dict.fromkeys(_whole({key: item}, key, 1, 1024, 1) for item in many))


def _listed(raw: Mapping[str, Any], key: str, most: int, what: str, kind: Any) -> tuple[Any, ...]:
    value = raw.get(key)
    if value is None:
        return ()
    many = (value,) if isinstance(value, kind) and value != "" else value
    if not isinstance(many, list | tuple) or not 1 <= len(many) <= most:
        raise CapacityError(f"{key} is {seen(value)}; expected a list of 1 to {most} {what}", field=key)
    for place, item in enumerate(many):
        if not isinstance(item, kind) or isinstance(item, bool) or item == "":
            raise CapacityError(
                f"{key}[{place}] is {seen(item)}; expected a list of 1 to {most} {what}", field=key
            )
    return tuple(many)


def _prices(raw: Mapping[str, Any]) -> dict[str, float]:
    value = raw.get("prices_usd_per_gpu_hour")
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > 1000:
        raise CapacityError(
            'prices_usd_per_gpu_hour is not an object; expected {"h100-sxm": 2.5}',
            field="prices_usd_per_gpu_hour",
        )
    found = {}
    for name, price in value.items():
        checked = _number({"prices_usd_per_gpu_hour": price}, "prices_usd_per_gpu_hour", 0.0, 1e6)
        if checked is not None:
            found[_priced(str(name))] = checked
    return found


def _priced(name: str) -> str:
    """The card that a price is for."""
    try:
        return find_gpu(name).id
    except CapacityError as error:
        raise CapacityError(f"prices_usd_per_gpu_hour: {error}", field="prices_usd_per_gpu_hour") from None
