"""Which deployments serve a rate within an SLO, what they cost, and how far the others are from it.

Source: estimate.py for each candidate; prices are the user's, else the bundled ranges with their source and date.
Left out: bursts beyond a Poisson-like spread (simulation), network and CPU prices, quality of a format, the answer's words
(sizing_answer.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from capacity.errors import CapacityError
from capacity.hardware import Gpu, find_gpu, gpus
from capacity.parallelism import valid_tensor_parallel_sizes
from capacity.performance.deployment import Planned, planned
from capacity.performance.layout import link_domain
from capacity.performance.predict import forecast
from capacity.performance.records import Forecast
from capacity.resolve import model_of
from capacity.scenario import Scenario
from capacity.size_request import SizeRequest
from capacity.speed_words import seconds_text, times_text
from capacity.verdict import too_old

Array = NDArray[np.float64]

# Spread between requests of one run, in the logarithm: median of p99 / p50 over 206 open-loop rows of AccelMark
# (Apache-2.0) is 3.19 for TTFT and 1.74 for TPOT, that is 0.50 and 0.24 standard deviations.
REQUEST_SPREAD = {"ttft_s": 0.50, "tpot_s": 0.24}
GRID = 33
TENSOR_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The largest load of one replica within the SLO: requests in flight and per second, with the forecast there."""

    concurrency: float
    rate_rps: float
    forecast: Forecast
    stopped_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One deployment that meets the target. ``gpus`` includes spares; speeds are those with the spares away.

    Costs and joules are None with the reason in ``unknown``. ``holds_at_high_end``: the SLO holds at the slow end of the
    80 % interval too.
    """

    gpu: Gpu
    weight_format: str
    tensor_parallel_size: int
    replicas: int
    spare_replicas: int
    gpus: int
    rate_per_replica_rps: float
    most_rate_per_replica_rps: float
    most_concurrency_per_replica: float
    utilization: float
    forecast: Forecast
    holds_at_high_end: bool
    stopped_by: str
    price_low_usd_per_hour: float | None
    price_high_usd_per_hour: float | None
    price_source: str
    usd_per_million_output_tokens: tuple[float, float] | None
    joules_per_output_token: float | None
    unknown: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def output_tokens_per_s_per_gpu(self) -> float:
        """Output tokens/s of the pool at the target rate, over all its GPUs."""
        return (
            float(self.forecast.output_tokens_per_s.value[0])
            * (self.replicas - self.spare_replicas)
            / self.gpus
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Why a candidate is left out. ``by``: how many times the limit it needs, where that is a number (1.5 = half above)."""

    constraint: Literal["ttft", "tpot", "max_gpus", "memory", "hardware", "layout", "input"]
    reason: str
    by: float | None = None


def percentile_factor(quantity: str, percentile: float) -> float:
    """How far the p-th request lies above the median one.

    >>> round(percentile_factor("ttft_s", 99), 2), percentile_factor("tpot_s", 50)
    (3.2, 1.0)
    """
    return math.exp(REQUEST_SPREAD[quantity] * NormalDist().inv_cdf(percentile / 100))


def largest_load(
    found: Planned, *, ttft_s: float | None, tpot_s: float | None, percentile: float = 50.0
) -> Load | None:
    """The largest load of a planned deployment at which the p-th TTFT and TPOT stay within the SLO; None when even one
    request does not meet it. Both grow with load, so this is the edge."""
    most = min(found.deployment.most_running, 1e5)
    grid = np.geomspace(1.0, max(most, 1.0), GRID)
    curve = forecast(found.deployment, grid, found.prompt_tokens, found.output_tokens, open_loop=True)
    room = np.full(grid.shape, np.inf)
    names = np.full(grid.shape, "", dtype=object)
    for name, limit, values in (("TTFT", ttft_s, curve.ttft_s.value), ("TPOT", tpot_s, curve.tpot_s.value)):
        if limit is not None:
            left = np.log(limit / (values * percentile_factor(f"{name.lower()}_s", percentile)))
            left = np.where(
                np.isnan(values), np.inf, left
            )  # no TPOT with one output token, so no limit on it
            names = np.where(left < room, name, names)
            room = np.minimum(room, left)
    if room[0] < 0:
        return None
    over = np.flatnonzero(room < 0)
    if len(over) == 0:
        edge, why = float(grid[-1]), found.deployment.limited_by
    else:
        k = int(over[0])
        share = room[k - 1] / (room[k - 1] - room[k]) if np.isfinite(room[k - 1]) else 0.0
        edge, why = (
            float(np.exp(np.log(grid[k - 1]) + share * (np.log(grid[k]) - np.log(grid[k - 1])))),
            f"{names[k]} SLO",
        )
    if len(over):
        edge = float(edge) if edge >= 1 else 1.0
    at = forecast(
        found.deployment, np.array([edge]), found.prompt_tokens, found.output_tokens, open_loop=True
    )
    return Load(concurrency=edge, rate_rps=float(at.requests_per_s.value[0]), forecast=at, stopped_by=why)


def size(request: SizeRequest) -> tuple[list[Option], dict[str, Miss]]:
    """(options, best first; why each other candidate is left out). Raises CapacityError for bad input."""
    options: list[Option] = []
    refused: dict[str, Miss] = {}
    for scenario, gpu in _candidates(request, refused):
        name = f"{gpu.id} TP{scenario.tensor_parallel_size} {scenario.weight_format or 'own format'}"
        try:
            found = planned(scenario)
        except CapacityError as error:
            fit = str(error).startswith("does not fit")
            refused[name] = Miss(constraint="memory" if fit else "input", reason=str(error))
            continue
        option = _option(request, found)
        if isinstance(option, Miss):
            refused[name] = option
        else:
            options.append(option)
    return sorted(options, key=lambda o: _rank(request, o)), refused


def _candidates(request: SizeRequest, refused: dict[str, Miss]) -> Iterable[tuple[Scenario, Gpu]]:
    """Scenarios to try. Sizes that were asked for and cannot be go into ``refused`` with the reason."""
    legal = set(valid_tensor_parallel_sizes(model_of(request.scenario)))
    asked = request.tensor_parallel_sizes
    for tensor in asked:
        if tensor not in legal:
            valid = ", ".join(map(str, sorted(legal)))
            reason = f"{tensor} does not divide the model's heads; valid: {valid}"
            refused[f"TP{tensor}"] = Miss(constraint="layout", reason=reason)
    chosen = [find_gpu(name) for name in request.gpus] if request.gpus else list(gpus().values())
    for gpu in chosen:
        for tensor in (t for t in asked or TENSOR_SIZES if t in legal):
            if tensor > link_domain(gpu):
                if asked:
                    reason = f"leaves the link domain of {link_domain(gpu)} GPUs"
                    refused[f"{gpu.id} TP{tensor}"] = Miss(constraint="layout", reason=reason)
                continue
            for fmt in request.weight_formats or (request.scenario.weight_format,):
                yield (
                    replace(request.scenario, gpu=gpu.id, tensor_parallel_size=tensor, weight_format=fmt),
                    gpu,
                )


def _too_many(gpus_needed: int, request: SizeRequest) -> Miss:
    spare = f" with {request.spare_replicas} spare" if request.spare_replicas else ""
    return Miss(
        constraint="max_gpus",
        reason=f"needs {gpus_needed:,} GPUs{spare}, above max_gpus {request.max_gpus:,}",
        by=gpus_needed / request.max_gpus,
    )


def _slo_miss(request: SizeRequest, found: Planned) -> Miss:
    """How far a single request in flight stays above the SLO."""
    alone = forecast(
        found.deployment, np.array([1.0]), found.prompt_tokens, found.output_tokens, open_loop=True
    )
    misses = []
    for name, limit, band in (
        ("ttft", request.slo_ttft_s, alone.ttft_s),
        ("tpot", request.slo_tpot_s, alone.tpot_s),
    ):
        value = float(band.value[0]) * percentile_factor(f"{name}_s", request.slo_percentile)
        if limit is not None and value > limit:
            misses.append((value / limit, name, value, limit))
    by, name, value, limit = max(misses)
    which = "median " if request.slo_percentile == 50 else f"p{request.slo_percentile:g} "
    others = "".join(
        f"; {other[1].upper()} too, {times_text(other[0])}" for other in misses if other[1] != name
    )
    return Miss(
        constraint="ttft" if name == "ttft" else "tpot",
        reason=f"{which}{name.upper()} is {seconds_text(value)} with a single request in flight, {times_text(by)} "
        f"the {seconds_text(limit)} asked{others}",
        by=by,
    )


def _option(request: SizeRequest, found: Planned) -> Option | Miss:
    old = too_old(found.plan.resolved)
    if old is not None:
        return Miss(constraint="hardware", reason=old)
    load = largest_load(
        found, ttft_s=request.slo_ttft_s, tpot_s=request.slo_tpot_s, percentile=request.slo_percentile
    )
    if load is None:
        return _slo_miss(request, found)
    gpu, layout = found.deployment.gpu, found.deployment.layout
    replicas = max(
        1, math.ceil(request.arrival_rate_rps / (load.rate_rps * request.utilization_ceiling) - 1e-9)
    )
    total = (replicas + request.spare_replicas) * layout.gpus
    if total > request.max_gpus:
        return _too_many(total, request)
    rate = request.arrival_rate_rps / replicas
    at = _at_rate(found, rate)
    low, high, source, unknown = _price(request, gpu)
    served = request.arrival_rate_rps * found.output_tokens
    cost = None
    if low is not None and high is not None:
        cost = (low * total / 3600 / served * 1e6, high * total / 3600 / served * 1e6)
    joules = None
    if gpu.tdp_w:
        joules = gpu.tdp_w * total / served
    else:
        unknown = (*unknown, f"joules: the power limit of {gpu.name} is not stated")
    holds = _holds(request, at)
    return Option(
        gpu=gpu,
        weight_format=found.deployment.work.format_id,
        tensor_parallel_size=layout.tensor,
        replicas=replicas + request.spare_replicas,
        spare_replicas=request.spare_replicas,
        gpus=total,
        rate_per_replica_rps=rate,
        most_rate_per_replica_rps=load.rate_rps,
        most_concurrency_per_replica=load.concurrency,
        utilization=rate / load.rate_rps,
        forecast=at,
        holds_at_high_end=holds,
        stopped_by=load.stopped_by,
        price_low_usd_per_hour=None if low is None else low * total,
        price_high_usd_per_hour=None if high is None else high * total,
        price_source=source,
        usd_per_million_output_tokens=cost,
        joules_per_output_token=joules,
        unknown=unknown,
        notes=(*found.notes, *at.reasons),
    )


def _at_rate(found: Planned, rate: float) -> Forecast:
    from capacity.estimate import at_rate

    point, _, _ = at_rate(found, rate)
    return forecast(
        found.deployment, np.array([point]), found.prompt_tokens, found.output_tokens, open_loop=True
    )


def _holds(request: SizeRequest, at: Forecast) -> bool:
    pairs = (
        (request.slo_ttft_s, at.ttft_s.high[0], "ttft_s"),
        (request.slo_tpot_s, at.tpot_s.high[0], "tpot_s"),
    )
    return all(
        limit is None or math.isnan(value) or value * percentile_factor(name, request.slo_percentile) <= limit
        for limit, value, name in pairs
    )


def _price(request: SizeRequest, gpu: Gpu) -> tuple[float | None, float | None, str, tuple[str, ...]]:
    own = request.prices.get(gpu.id, request.price_usd_per_gpu_hour)
    if own is not None:
        return own, own, "yours", ()
    if gpu.price_low_usd_per_hour is None or gpu.price_high_usd_per_hour is None:
        return None, None, "", (f"cost: no price of {gpu.name} is bundled; give price_usd_per_gpu_hour",)
    return gpu.price_low_usd_per_hour, gpu.price_high_usd_per_hour, gpu.price_source, ()


def _rank(request: SizeRequest, option: Option) -> tuple[float, ...]:
    low, high = option.price_low_usd_per_hour, option.price_high_usd_per_hour
    cost = math.inf if low is None or high is None else math.sqrt(low * high)
    if request.rank_by == "gpus":
        return (option.gpus, cost)
    if request.rank_by == "tokens_per_gpu":
        return (-option.output_tokens_per_s_per_gpu, cost)
    return (cost, option.gpus)
