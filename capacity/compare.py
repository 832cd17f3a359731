"""Scenarios side by side: one column of figures each, what differs from the first, and each one's Pareto front.

Source: plan.py and estimate.py per scenario, the GPU table's prices. Left out: drawing, and a quality figure of a format.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from capacity.compare_set import Entry
from capacity.errors import CapacityError
from capacity.estimate import Estimate, estimate
from capacity.hardware import Gpu
from capacity.performance.predict import ONE_TOKEN
from capacity.plan import Plan, plan
from capacity.speed_grid import ParetoPoint, front
from capacity.speed_options import QUALITY
from capacity.units import GIB

FRONT_POINTS = 128
MOST_RUNNING = 1e5


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A value with the ends of its 80 % interval (None: exact), or None with ``reason``."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the comparison. ``better``: "lower", "higher" or "" where neither is. ``unit``: gib, count, s, rate, usd."""

    key: str
    label: str
    unit: str
    better: str = ""


ROWS = (
    Row(key="gpus", label="GPUs", unit="count", better="lower"),
    Row(key="weights_gib", label="Weights per GPU, GiB", unit="gib", better="lower"),
    Row(key="kv_gib", label="KV cache per GPU, GiB", unit="gib", better="higher"),
    Row(key="kv_tokens", label="KV tokens", unit="count", better="higher"),
    Row(key="guaranteed", label="Guaranteed requests", unit="count", better="higher"),
    Row(key="typical", label="Typical requests", unit="count", better="higher"),
    Row(key="running", label="Running at this load", unit="count", better="higher"),
    Row(key="tpot_s", label="TPOT", unit="s", better="lower"),
    Row(key="ttft_s", label="TTFT", unit="s", better="lower"),
    Row(key="e2e_s", label="E2E", unit="s", better="lower"),
    Row(key="output_tokens_per_s", label="Output tokens/s", unit="per_s", better="higher"),
    Row(key="tokens_per_s_per_gpu", label="Output tokens/s per GPU", unit="per_s", better="higher"),
    Row(key="usd_per_million", label="$ per 1M output tokens", unit="usd", better="lower"),
)
SPEEDS = (
    "running",
    "tpot_s",
    "ttft_s",
    "e2e_s",
    "output_tokens_per_s",
    "tokens_per_s_per_gpu",
    "usd_per_million",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One scenario's answers. ``figures`` by row key; ``fit`` and ``bound`` in words; ``load``: requests in flight."""

    entry: Entry
    fit: str
    figures: dict[str, Figure]
    load: float | None
    bound: str
    quality: str
    extrapolated: tuple[str, ...]
    price: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """A scenario's front, and the most loaded point within the SLO (None: not even one request meets it)."""

    entry: Entry
    points: tuple[ParetoPoint, ...] = field(default=())
    corner: ParetoPoint | None = None
    reason: str = ""


def column(entry: Entry, *, concurrency: float | None) -> Column:
    """The figures of ``entry`` at ``concurrency`` requests in flight; None: at its own limit. Never raises for bad input:
    the reason is in the column."""
    try:
        found = plan(entry.scenario)
    except CapacityError as error:
        none = Figure(value=None, reason=str(error))
        return _column(entry, f"cannot be planned: {error}", {row.key: none for row in ROWS})
    figures = _memory(found)
    fit = {"yes": "fits", "marginal": f"marginal: {found.reason}", "no": f"does not fit: {found.reason}"}[
        found.fit
    ]
    try:
        if found.fit == "no":
            raise CapacityError(f"does not fit: {found.reason}")
        speed = at_load(entry, concurrency)
    except CapacityError as error:
        figures |= {key: Figure(value=None, reason=str(error)) for key in SPEEDS}
        return _column(entry, fit, figures)
    gpu = speed.planned.deployment.gpu
    figures |= _speed(speed, entry, gpu)
    return _column(entry, fit, figures, speed=speed, price=_price(entry, gpu)[2])


def at_load(entry: Entry, concurrency: float | None) -> Estimate:
    """The forecast of ``entry`` at a load, or at the most it holds. Raises CapacityError."""
    if concurrency is not None:
        return estimate(entry.scenario, concurrency, measured=entry.measured)
    most = estimate(entry.scenario, 1.0).planned.deployment.most_running
    return estimate(entry.scenario, math.floor(min(max(most, 1.0), MOST_RUNNING)), measured=entry.measured)


def _column(
    entry: Entry, fit: str, figures: dict[str, Figure], *, speed: Estimate | None = None, price: str = ""
) -> Column:
    return Column(
        entry=entry,
        fit=fit,
        figures=figures,
        load=float(speed.forecast.concurrency[0]) if speed else None,
        bound=speed.forecast.bound[0] if speed else "",
        quality=_quality(speed) if speed else "",
        extrapolated=speed.forecast.reasons if speed and speed.forecast.extrapolated else (),
        price=price,
    )


def _memory(found: Plan) -> dict[str, Figure]:
    pool, counted = found.pool, found.concurrency
    stage = pool.stage if pool else 0
    replicas = found.resolved.parallel.data
    usual = counted.typical
    none = f"does not fit: {found.reason}" if found.reason else "no KV cache is left"
    return {
        "gpus": Figure(value=float(found.resolved.parallel.gpus)),
        "weights_gib": Figure(value=max(one.total for one in found.weights.stages) / GIB),
        "kv_gib": Figure(
            value=found.kv_bytes[stage] / GIB,
            low=found.kv_low_bytes[stage] / GIB,
            high=found.kv_high_bytes[stage] / GIB,
        ),
        "kv_tokens": Figure(value=float(pool.tokens_logged)) if pool else Figure(value=None, reason=none),
        "guaranteed": Figure(
            value=float(counted.guaranteed * replicas),
            low=float(counted.low * replicas),
            high=float(counted.high * replicas),
        ),
        "typical": Figure(value=float(math.floor(usual.mean * replicas)))
        if usual
        else Figure(value=None, reason="no prompt_tokens or output_tokens given"),
    }


def _speed(found: Estimate, entry: Entry, gpu: Gpu) -> dict[str, Figure]:
    one, gpus = found.forecast, found.planned.deployment.layout.gpus

    def figure(name: str, scale: float = 1.0) -> Figure:
        band = getattr(one, name)
        if math.isnan(float(band.value[0])):
            return Figure(value=None, reason=ONE_TOKEN)
        return Figure(
            value=float(band.value[0]) * scale,
            low=float(band.low[0]) * scale,
            high=float(band.high[0]) * scale,
        )

    tokens = figure("output_tokens_per_s")
    return {
        "running": Figure(value=float(one.running[0])),
        "tpot_s": figure("tpot_s"),
        "ttft_s": figure("ttft_s"),
        "e2e_s": figure("e2e_s"),
        "output_tokens_per_s": tokens,
        "tokens_per_s_per_gpu": figure("output_tokens_per_s", 1.0 / gpus),
        "usd_per_million": _cost(_price(entry, gpu), gpu, gpus, tokens),
    }


def _price(entry: Entry, gpu: Gpu) -> tuple[float | None, float | None, str]:
    """(low, high, source) in $ per GPU and hour."""
    own = entry.price_usd_per_gpu_hour
    if own is not None:
        return own, own, f"${own:,.2f} per GPU hour, yours"
    low, high = gpu.price_low_usd_per_hour, gpu.price_high_usd_per_hour
    if low is None or high is None:
        return None, None, ""
    return low, high, f"${low:,.2f}-{high:,.2f} per GPU hour: {gpu.price_source}"


def _cost(price: tuple[float | None, float | None, str], gpu: Gpu, gpus: int, tokens: Figure) -> Figure:
    low, high, _ = price
    if low is None or high is None or not tokens.value or not tokens.low or not tokens.high:
        return Figure(value=None, reason=f"no price of {gpu.name} is bundled; give price_usd_per_gpu_hour")
    share = gpus / 3600 * 1e6
    return Figure(
        value=math.sqrt(low * high) * share / tokens.value,
        low=low * share / tokens.high,
        high=high * share / tokens.low,
    )


def _quality(found: Estimate) -> str:
    size = found.planned.deployment.work.precision
    words = QUALITY["16 bit" if size == "bf16" else "8 bit" if size in ("fp8", "int8") else "4 bit"]
    if str(found.planned.plan.resolved.kv_dtype).startswith("fp8"):
        words += f"; fp8 cache: {QUALITY['fp8 cache']}"
    return words


def change(first: Figure, other: Figure) -> float | None:
    """``other`` as a share above ``first`` (-0.2: a fifth lower); None where one is unknown or the first is 0.

    >>> round(change(Figure(value=10.0), Figure(value=8.0)), 2)
    -0.2
    """
    if first.value is None or other.value is None or first.value == 0:
        return None
    return other.value / first.value - 1


def different_inputs(entries: Sequence[Entry]) -> list[tuple[str, list[Any]]]:
    """(scenario key, value per entry) of the keys that are not the same in all; None: not given."""
    raws = [entry.scenario.to_json() for entry in entries]
    keys = dict.fromkeys(key for raw in raws for key in raw)
    found = [(key, [raw.get(key) for raw in raws]) for key in keys]
    return [(key, values) for key, values in found if any(value != values[0] for value in values)]


def frontier(entry: Entry, *, ttft_s: float | None = None, tpot_s: float | None = None) -> Frontier:
    """The front from one request to the most that runs, and its corner under the median TTFT and TPOT limits."""
    try:
        most = estimate(entry.scenario, 1.0).planned.deployment.most_running
        grid = np.geomspace(1.0, max(min(most, MOST_RUNNING), 1.0), FRONT_POINTS)
        found = estimate(entry.scenario, grid, measured=entry.measured)
    except CapacityError as error:
        return Frontier(entry=entry, reason=str(error))
    one, gpus = found.forecast, found.planned.deployment.layout.gpus
    if bool(np.isnan(one.tpot_s.value).any()):
        return Frontier(entry=entry, reason=ONE_TOKEN)
    per_gpu, per_user = one.output_tokens_per_s.value / gpus, 1.0 / one.tpot_s.value
    within = np.ones(grid.shape, bool)
    for limit, band in ((ttft_s, one.ttft_s), (tpot_s, one.tpot_s)):
        if limit is not None:
            within &= band.value <= limit
    corner, reason = None, ""
    if (ttft_s is not None or tpot_s is not None) and within.any():
        i = int(np.flatnonzero(within)[np.argmax(per_gpu[within])])
        corner = ParetoPoint(
            concurrency=float(grid[i]),
            tokens_per_s_per_gpu=float(per_gpu[i]),
            tokens_per_s_per_user=float(per_user[i]),
        )
    elif not within.any():
        reason = "misses the SLO with a single request in flight"
    return Frontier(entry=entry, points=tuple(front(grid, per_gpu, per_user)), corner=corner, reason=reason)
