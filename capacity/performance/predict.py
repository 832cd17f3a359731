"""Step time, first token and throughput of one deployment at any concurrency, each with an 80 % interval.

Source: terms x coefficients (docs/performance.md); Little's law for rates and waiting. Left out: batching over time,
which the simulator plays step by step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from capacity.errors import CapacityError
from capacity.performance.coefficients import Coefficients, coefficients
from capacity.performance.extrapolation import extrapolation
from capacity.performance.measured import MeasuredPoint, correction, point_warnings
from capacity.performance.records import Band, Deployment, Forecast
from capacity.performance.steps import prepared_for, step_seconds

Array = NDArray[np.float64]

WIDEST = 1.2
ONE_TOKEN = "with 1 output token the first is the last, so TPOT and ITL have no value"
# A measured figure this many times off is another deployment or another unit (milliseconds are 1,000 times off).
FARTHEST = {"tpot_s": 100.0, "ttft_s": 300.0}


def accepted_per_step(tokens: int, acceptance: float | None) -> float:
    """Tokens that one step yields: 1 + a + a^2 + ... for ``tokens`` drafts accepted with probability a.

    >>> round(accepted_per_step(3, 0.7), 3), accepted_per_step(3, None)
    (2.533, 1.0)
    """
    if not tokens or acceptance is None:
        return 1.0
    return float(sum(acceptance**k for k in range(tokens + 1)))


def forecast(
    deployment: Deployment,
    concurrency: Array,
    prompt_tokens: float | Array,
    output_tokens: float | Array,
    *,
    most_running: Array | None = None,
    measured: Sequence[MeasuredPoint] = (),
    open_loop: bool = False,
    shipped: Coefficients | None = None,
) -> Forecast:
    """The operating points at ``concurrency`` requests in flight (whole deployment).

    ``open_loop``: that many on average while requests come by themselves (Poisson), not a fixed number that come back.
    Lengths are one number or one per point; then ``most_running`` gives the limit per point (NaN figures where it is
    below 1). Where one token is all the output, TPOT and ITL are NaN: the first token is the last. Measured points need
    one pair of lengths. Raises CapacityError when a measured point lies below the physical bound or nothing fits.
    """
    shipped = shipped or coefficients()
    limit = np.asarray(deployment.most_running if most_running is None else most_running, dtype=float)
    if float(limit.max()) < 1:
        raise CapacityError(
            "not one request fits: the KV cache left beside the weights is smaller than prompt plus output; use more or "
            "larger GPUs, a smaller format or shorter requests",
            field="gpu",
        )
    wanted = np.maximum(np.atleast_1d(np.asarray(concurrency, dtype=float)), 1.0)
    running = np.where(limit >= 1, np.minimum(wanted, limit), np.nan)
    prompt, output = (
        np.atleast_1d(np.asarray(prompt_tokens, float)),
        np.maximum(np.atleast_1d(np.asarray(output_tokens, float)), 1.0),
    )
    step, first, terms = step_seconds(
        deployment, running, prompt, output, open_loop=open_loop, shipped=shipped
    )
    per_step = accepted_per_step(deployment.speculative_tokens, deployment.acceptance)
    chain = prepared_for(deployment, shipped).chains
    wider, reasons, warnings = extrapolation(
        deployment,
        chain["step"].reasons,
        float(np.nanmax(running)),
        float((prompt + output).max()),
        chain["step"].largest_concurrency,
        chain["step"].rows,
    )
    half = {
        q: np.minimum(WIDEST, c.spread * wider * shipped.load_scale(q, running)) for q, c in chain.items()
    }
    floor = terms.floor_s[0]
    tpot, tpot_half, first, first_half = _with_points(
        deployment,
        measured,
        step / per_step,
        half["step"],
        first,
        half["first_token"],
        running,
        prompt,
        output,
        per_step,
        floor,
        open_loop,
        shipped,
    )
    if measured:
        warnings.append(f"corrected by {len(measured)} measured point{'s' if len(measured) > 1 else ''}")
        warnings.extend(point_warnings(measured, deployment.most_running))
    lower = floor / per_step
    if bool((tpot <= lower * 1.0001).any()):
        warnings.append(
            "at some points the step is held at the physical bound (weights and cache over bandwidth)"
        )

    decode = (output - 1.0) * tpot
    service = first + decode
    waiting = wanted - running
    wait = waiting / running * service
    ttft, e2e = first + wait, service + wait
    share = np.where(service > 0, first / service, 0.0)
    e2e_half = np.sqrt((share * first_half) ** 2 + ((1 - share) * tpot_half) ** 2)
    rate = running / service
    ttft_half = (first * first_half + wait * e2e_half) / ttft  # the wait is made of whole services of others
    values = terms.values[:, 0]
    parts = _parts(values, chain["step"].factors, tpot * per_step, deployment.host_s)
    at_peak = values[3] + values[4] + values[5] + values[11] * terms.prefill_attention[0]
    mfu = np.minimum(at_peak / (tpot * per_step), 1.0)
    mbu = np.minimum(terms.read_bound_s[0] / (tpot * per_step), 1.0)
    single = output * np.ones_like(running) <= 1
    prefill = (parts["prefill"] > 0.5 * sum(parts.values())) | single
    bound = tuple(
        deployment.limited_by if w > 0 else ("prefill-bound" if p else "decode-bound")
        for w, p in zip(waiting.tolist(), prefill.tolist(), strict=True)
    )
    spread, wide = np.exp(tpot_half), np.exp(e2e_half)
    if bool(single.any()):
        warnings.append(ONE_TOKEN)
        tpot = np.where(single, np.nan, tpot)
        prompts = rate / (deployment.layout.data * deployment.layout.pipeline)
        alone = prompts * (terms.prefill_matmul[0] + terms.prefill_attention[0])
        mfu = np.where(single, np.minimum(alone, 1.0), mfu)
    return Forecast(
        concurrency=wanted,
        running=running,
        waiting=waiting,
        tpot_s=_band(tpot, spread, lower),
        itl_s=_band(tpot * per_step, spread, floor),
        ttft_s=_band(ttft, np.exp(ttft_half)),
        e2e_s=_band(e2e, wide),
        requests_per_s=_band(rate, wide),
        output_tokens_per_s=_band(rate * output, wide),
        total_tokens_per_s=_band(rate * (output + prompt), wide),
        mfu=mfu,
        mbu=mbu,
        bound=bound,
        floor_s=lower,
        parts=parts,
        knowledge=chain["step"].knowledge,
        extrapolated=bool(reasons),
        reasons=tuple(reasons),
        warnings=tuple(warnings),
    )


def _band(value: Array, spread: Array, floor: Array | None = None) -> Band:
    low = value / spread
    return Band(
        value=value,
        low=low if floor is None else np.maximum(low, np.minimum(floor, value)),
        high=value * spread,
    )


def _with_points(
    deployment: Deployment,
    measured: Sequence[MeasuredPoint],
    tpot: Array,
    tpot_half: Array,
    first: Array,
    first_half: Array,
    running: Array,
    prompt: Array,
    output: Array,
    per_step: float,
    floor: Array,
    open_loop: bool,
    shipped: Coefficients,
) -> tuple[Array, Array, Array, Array]:
    if not measured:
        return tpot, tpot_half, first, first_half
    at = np.array([min(p.concurrency, deployment.most_running) for p in measured])
    # The whole curve below each point: a correction must not make more load faster, nor throughput fall.
    grid = np.unique(
        np.concatenate([at, running, np.geomspace(1.0, max(float(at.max()), float(running.max()), 2.0), 25)])
    )
    step, ttft, terms = step_seconds(deployment, grid, prompt, output, open_loop=open_loop, shipped=shipped)
    curve, lower = step / per_step, terms.floor_s[0] / per_step
    for point, where in zip(measured, np.searchsorted(grid, at), strict=True):
        if point.tpot_s < 0.98 * lower[where]:
            raise CapacityError(
                f"a measured tpot_s of {point.tpot_s:.4g} at concurrency {point.concurrency:g} lies below the physical bound "
                f"of {lower[where]:.4g} s (weights and cache over bandwidth); check model, format, layout and speculation",
                field="measured_points",
            )
        for name, seen, expected in (
            ("tpot_s", point.tpot_s, curve[where]),
            ("ttft_s", point.ttft_s if point.concurrency <= deployment.most_running else None, ttft[where]),
        ):
            if seen is not None and not expected / FARTHEST[name] <= seen <= expected * FARTHEST[name]:
                raise CapacityError(
                    f"a measured {name} of {seen:.4g} s at concurrency {point.concurrency:g} is far from the {expected:.4g} s "
                    "that this deployment takes; expected seconds, so check the unit, the model and the layout",
                    field="measured_points",
                )
    index = np.searchsorted(grid, running)
    errors = np.log([p.tpot_s for p in measured]) - np.log(curve[np.searchsorted(grid, at)])
    shift, tpot_half = correction(
        at.tolist(), errors.tolist(), grid, np.interp(grid, np.sort(running), tpot_half[np.argsort(running)])
    )
    fixed = np.maximum.accumulate(np.maximum(curve * np.exp(shift), lower))
    fixed = grid * np.minimum.accumulate(fixed / grid)
    # What a monotone curve cannot follow in the points stays in the interval.
    missed = np.abs(np.log(fixed[np.searchsorted(grid, at)]) - np.log([p.tpot_s for p in measured])).max()
    tpot_half = np.minimum(np.maximum(tpot_half, missed), WIDEST)
    first_points = [
        (a, p.ttft_s)
        for a, p in zip(at.tolist(), measured, strict=True)
        if p.ttft_s is not None and p.concurrency <= deployment.most_running
    ]
    if first_points:
        errors = np.array([np.log(t) - np.log(ttft[np.searchsorted(grid, a)]) for a, t in first_points])
        shift, half = correction(
            [a for a, _ in first_points], errors.tolist(), grid, np.full(grid.shape, float(first_half.max()))
        )
        soonest = (terms.prefill_matmul[0] + terms.prefill_attention[0]) * np.ones(grid.shape)
        first, first_half = (
            np.maximum(ttft * np.exp(shift), soonest)[index],
            np.minimum(half[index], first_half),
        )
    return fixed[index], tpot_half[index], first, first_half


def _parts(values: Array, factors: Array, total: Array, host_s: float) -> dict[str, Array]:
    spent = values * factors[:, None]
    host = {"host_memory": np.full(total.shape, host_s)} if host_s else {}
    raw = {
        "weights": spent[0] + spent[1],
        "kv_cache": spent[2],
        "compute": spent[3] + spent[4],
        "prefill": spent[5] + spent[6] + spent[8] + spent[11],
        "links": spent[7] + spent[9],
        "launches": spent[10] + spent[12] + spent[13] + spent[14] + spent[15] + spent[16],
    }
    raw |= host
    whole = sum(raw.values())
    return {name: part / whole * total for name, part in raw.items()}
