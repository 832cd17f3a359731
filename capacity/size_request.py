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
from capacity.speed_words import seen, with_engine

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


def parse_size(raw: Mapping[str, Any]) -> SizeRequest:
    """A request from JSON. ``gpu`` and ``tensor_parallel_size`` of the scenario, when given, are the only ones tried.

    Raises CapacityError that names the key, what was seen and what is valid.
    """
    scenario = Scenario.parse(with_engine({key: value for key, value in raw.items() if key not in KEYS}))
    rate = _number(raw, "arrival_rate_rps", 1e-9, 1e7)
    if rate is None:
        raise CapacityError(
            "arrival_rate_rps is missing; expected requests per second, above 0", field="arrival_rate_rps"
        )
    ttft, tpot = _number(raw, "slo_ttft_s", 1e-6, 1e6), _number(raw, "slo_tpot_s", 1e-6, 1e6)
    for key in ("prompt_tokens", "output_tokens"):
        if getattr(scenario, key) is None:
            raise CapacityError(f"{key} is missing; expected a mean length in tokens", field=key)
    names = _texts(raw, "gpus") or ((scenario.gpu,) if scenario.gpu else ())
    sizes = tuple(int(n) for n in _numbers(raw, "tensor_parallel_sizes"))
    if not sizes and "tensor_parallel_size" in raw:
        sizes = (scenario.tensor_parallel_size,)
    rank = raw.get("rank_by", "cost")
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
    )


def _number(raw: Mapping[str, Any], key: str, low: float, high: float) -> float | None:
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise CapacityError(f"{key} is {seen(value)}; expected a number, {low:g} to {high:,.10g}", field=key)
    return float(value)


def _whole(raw: Mapping[str, Any], key: str, low: int, high: int, default: int) -> int:
    value = _number(raw, key, low, high)
    if value is None:
        return default
    if value != int(value):
        raise CapacityError(f"{key} is {value:g}; expected a whole number, {low:,} to {high:,}", field=key)
    return int(value)


def _texts(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = raw.get(key)
    if value is None:
        return ()
    if (
        not isinstance(value, list | tuple)
        or not value
        or len(value) > 100
        or not all(isinstance(v, str) and v for v in value)
    ):
        raise CapacityError(f"{key} is {seen(value)}; expected a list of 1 to 100 names", field=key)
    return tuple(dict.fromkeys(value))


def _numbers(raw: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = raw.get(key)
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= 20:
        raise CapacityError(f"{key} is {seen(value)}; expected a list of sizes such as [1, 2, 4]", field=key)
    return tuple(dict.fromkeys(_whole({key: item}, key, 1, 1024, 1) for item in value))


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
            found[find_gpu(str(name)).id] = checked
    return found
