"""`python -m capacity estimate` and `size`: scenario keys and a load in, speeds with intervals out.

Left out: the arithmetic (estimate.py, sizing.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from capacity.errors import CapacityError
from capacity.estimate import Estimate, estimate, estimate_at_rate
from capacity.performance.measured import measured_points
from capacity.performance.records import Band, Forecast
from capacity.scenario import Scenario
from capacity.scenario_keys import for_verb
from capacity.speed_words import between, seen

LOAD_KEYS = ("concurrency", "arrival_rate_rps", "measured_points", "speculative_acceptance")
MOST_CONCURRENCY = 1_000_000.0


def run_estimate(raw: Mapping[str, Any]) -> dict[str, Any]:
    """TPOT, ITL, TTFT, E2E and throughput of one scenario at ``concurrency`` or ``arrival_rate_rps``.

    ``concurrency`` may be a list: then ``curve`` holds one answer per value. Raises CapacityError.
    """
    raw, notes = for_verb(raw, "estimate")
    rest = {key: value for key, value in raw.items() if key not in LOAD_KEYS}
    measured = measured_points(raw.get("measured_points"))
    acceptance = _number(raw.get("speculative_acceptance"), "speculative_acceptance", 0.0, 1.0)
    rate = _number(raw.get("arrival_rate_rps"), "arrival_rate_rps", 1e-9, 1e7)
    level = raw.get("concurrency")
    if (rate is None) == (level is None):
        given = "both are given" if rate is not None else "neither is given"
        raise CapacityError(
            f"give concurrency or arrival_rate_rps, one of the two; {given}", field="concurrency"
        )
    scenario = Scenario.parse(rest)
    if acceptance is not None and not scenario.num_speculative_tokens:
        notes = (*notes, "speculative_acceptance: not used without num_speculative_tokens")
    if rate is not None:
        found = estimate_at_rate(scenario, rate, measured=measured, acceptance=acceptance)
        return _answer(found, 0, notes, rate=rate)
    if isinstance(level, list | tuple):
        if not 1 <= len(level) <= 10_000:
            raise CapacityError(
                f"concurrency has {len(level)} values; expected 1 to 10,000", field="concurrency"
            )
        levels = [_needed(item, f"concurrency[{i}]", 1.0, MOST_CONCURRENCY) for i, item in enumerate(level)]
        found = estimate(scenario, levels, measured=measured, acceptance=acceptance)
        return {"curve": [_answer(found, i, notes) for i in range(len(levels))]}
    one = _needed(level, "concurrency", 1.0, MOST_CONCURRENCY)
    return _answer(estimate(scenario, one, measured=measured, acceptance=acceptance), 0, notes)


def _needed(value: Any, key: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise CapacityError(
            f"{key} is {seen(value)}; expected a number, {between(low, high)}", field=key.split("[")[0]
        )
    return float(value)


def _number(value: Any, key: str, low: float, high: float) -> float | None:
    return None if value is None else _needed(value, key, low, high)


def band(values: Band, index: int, scale: float = 1.0) -> dict[str, float] | None:
    """One point of a band as JSON, six significant digits; None where it has no value."""
    if math.isnan(float(values.value[index])):
        return None
    return {name: _short(float(getattr(values, name)[index]) * scale) for name in ("value", "low", "high")}


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _answer(found: Estimate, i: int, notes: tuple[str, ...], rate: float | None = None) -> dict[str, Any]:
    f: Forecast = found.forecast
    planned, layout = found.planned, found.planned.deployment.layout
    warnings = [*f.warnings, *notes, *planned.notes, *planned.plan.warnings]
    answer: dict[str, Any] = {
        "concurrency": _short(float(f.concurrency[i])),
        "running": _short(float(f.running[i])),
        "waiting": _short(float(f.waiting[i])),
        "tpot_s": band(f.tpot_s, i),
        "itl_s": band(f.itl_s, i),
        "ttft_s": band(f.ttft_s, i),
        "e2e_s": band(f.e2e_s, i),
        "output_tokens_per_s": band(f.output_tokens_per_s, i),
        "total_tokens_per_s": band(f.total_tokens_per_s, i),
        "requests_per_s": band(f.requests_per_s, i),
        "output_tokens_per_s_per_gpu": band(f.output_tokens_per_s, i, 1.0 / layout.gpus),
        "output_tokens_per_s_per_replica": band(f.output_tokens_per_s, i, 1.0 / layout.data),
        "bound": f.bound[i],
        "mfu": _short(float(f.mfu[i])),
        "mbu": _short(float(f.mbu[i])),
        "physical_bound_tpot_s": None
        if math.isnan(float(f.tpot_s.value[i]))
        else _short(float(f.floor_s[i])),
        "step_parts_s": {name: _short(float(part[i])) for name, part in f.parts.items()},
        "kv_concurrency_limit": _short(planned.kv_requests),
        "seat_limit": None if math.isinf(planned.seats) else int(planned.seats),
        "gpus": layout.gpus,
        "coefficients": f.knowledge,
        "extrapolated": f.extrapolated,
        "extrapolated_reasons": list(f.reasons),
    }
    if rate is not None:
        answer["arrival_rate_rps"] = rate
        answer["most_requests_per_s"] = _short(found.most_rps or 0.0)
        if found.overloaded:
            answer["bound"] = planned.deployment.limited_by
            for key in ("ttft_s", "e2e_s", "waiting"):
                answer[key] = None
            warnings.insert(
                0,
                f"{rate:g} requests/s is above the {found.most_rps:.4g} that this deployment serves: the queue has no end, "
                "so waiting, TTFT and E2E have no value",
            )
        else:
            answer["requests_per_s"] = {"value": rate, "low": rate, "high": rate}
    answer["warnings"] = list(dict.fromkeys(warnings))
    return answer


def run_size(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Ranked deployments that meet a rate and an SLO. Raises CapacityError."""
    from capacity.sizing_answer import size_from

    return size_from(raw)
