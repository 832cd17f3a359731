"""The verb ``calibrate``: a scenario and measured requests in, two step-time parameters and the calibrated scenario out.

Left out: files (the command line reads them).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from capacity.errors import CapacityError
from capacity.simulate_cli import Prepared, prepare, simulate
from capacity.simulation import scenario as keys
from capacity.simulation.calibration import BARS, Errors, Fit, compare, figures, fit, measured_figures
from capacity.simulation.measured import Measured, parse_measured
from capacity.simulation.record import FINISHED, REJECTED
from capacity.simulation.run import Run
from capacity.simulation.step_time import StepTime

LEFT_OUT = {
    "admission": "the measured requests had passed the door",
    "client": "the measured requests were answered",
    "warmup_s": "every measured request counts",
    "until_s": "every measured request counts",
    "workload": "the measured requests are the load",
    "step_time_factors": "the fit takes their place",
}
WORK = ("per_prefill_token_s", "per_context_token_s", "per_prefill_context_token_s")
OVERHEAD = ("fixed_s", "per_decode_token_s", "host_s")
DIGITS = 6


def run_calibrate(
    scenario: dict[str, Any], *, measured_text: str | None = None, seed: int | None = None
) -> dict[str, Any]:
    """Two factors on the step time, fitted on measured requests, as a JSON object. Raises CapacityError for bad input.

    ``parameters``: the factors on the terms per token and on the fixed terms. ``scenario`` is the one given with the
    calibrated ``step_time`` (and the measured requests where it had no workload), ready for ``simulate``. Without a
    step time and without the planner's keys the fit starts from one read off the timings.
    """
    started = time.perf_counter()
    if measured_text is None:
        raise CapacityError(
            "measured is missing; expected a file of single requests: arrival_s, prompt_tokens, output_tokens, ttft_s, e2e_s",
            field="measured",
        )
    given = keys.mapping(scenario, "scenario")
    seed = given.get("seed", 0) if seed is None else seed
    measured = parse_measured(measured_text)
    base, notes = fit_scenario(given, measured)
    found = prepare(base, seed=seed)
    step = found.engine.step_time
    before = compare(measured, _checked(simulate(found, seed=seed), measured))

    def at(per_token: float, fixed: float) -> Errors:
        return compare(measured, simulate(with_step_time(found, _rounded(step, per_token, fixed)), seed=seed))

    best = fit(at)
    calibrated = _rounded(step, best.per_token, best.fixed)
    after = simulate(with_step_time(found, calibrated), seed=seed)
    requests = measured.requests
    return {
        "parameters": {"per_token": best.per_token, "fixed": best.fixed},
        "step_time": _as_keys(calibrated),
        "step_time_before": _as_keys(step),
        "warnings": [*_findings(step, best), *notes, *measured.notes, *found.notes],
        "fitted_on": {
            "requests": len(requests),
            "answered": int(measured.answered.sum()),
            "columns": list(measured.columns),
            "span_s": float(requests.arrival_s[-1] - requests.arrival_s[0]),
            "prompt_tokens": int(requests.prompt_tokens.sum()),
            "output_tokens": int(requests.output_tokens.sum()),
            "num_blocks": found.engine.num_blocks,
            "runs": best.runs,
        },
        "error_before": asdict(before),
        "error_after": asdict(best.errors),
        "measured_s": measured_figures(measured),
        "simulated_s": _simulated(measured, after),
        "scenario": _ready(given, base, calibrated),
        "wall_s": time.perf_counter() - started,
    }


def fit_scenario(given: Mapping[str, Any], measured: Measured) -> tuple[dict[str, Any], list[str]]:
    """The scenario that is fitted: the measured requests as its workload, nothing that refuses or cuts; and what was
    left out of it.
    """
    base = {key: value for key, value in given.items() if key not in LEFT_OUT}
    notes = [
        f"{key} was left out of the fit: {why}"
        for key, why in LEFT_OUT.items()
        if given.get(key) is not None and key != "workload"
    ]
    requests = measured.requests
    base["workload"] = {
        "requests": [
            {"arrival_s": float(at), "prompt_tokens": int(prompt), "output_tokens": int(output)}
            for at, prompt, output in zip(
                requests.arrival_s, requests.prompt_tokens, requests.output_tokens, strict=True
            )
        ]
    }
    planned = any(key in base for key in ("model", "model_config", "gpu"))
    if not planned and base.get("step_time") is None:
        base["step_time"] = _first_guess(measured)
        notes.append("step_time is not given: the fit started from one read off the timings")
    return base, notes


def with_step_time(found: Prepared, step: StepTime) -> Prepared:
    """The same scenario with another step time."""
    return replace(found, engine=replace(found.engine, step_time=step))


def _first_guess(measured: Measured) -> dict[str, float]:
    """A step time to start from: half of it fixed, the rest by what ran beside, prompts at the pace of the fastest."""
    rows = measured.answered
    requests = measured.requests
    output = requests.output_tokens[rows]
    first, end = measured.first_token_s[rows], measured.end_s[rows]
    several = output > 1
    pace = (
        (end - first)[several] / (output[several] - 1) if several.any() else first - requests.arrival_s[rows]
    )
    step = max(float(np.median(pace)), 1e-6)
    span = max(float(end.max() - requests.arrival_s[rows].min()), 1e-6)
    running = max(float((end - first).sum()) / span, 1.0)
    prompt = np.quantile((first - requests.arrival_s[rows]) / requests.prompt_tokens[rows], 0.1)
    return {
        "fixed_s": step / 2,
        "per_decode_token_s": step / 2 / running,
        "per_prefill_token_s": max(float(prompt), 1e-9),
    }


def _checked(run: Run, measured: Measured) -> Run:
    """Refuse a scenario that cannot hold what was measured."""
    outcome = np.frombuffer(run.record.outcome, dtype=np.int8)
    lost = measured.answered & (outcome == REJECTED)
    if lost.any():
        why = run.record.reasons[run.record.reason[int(np.nonzero(lost)[0][0])]]
        raise CapacityError(
            f"the scenario refuses {int(lost.sum()):,} of {len(outcome):,} measured requests that were answered ({why}); "
            "expected the pool and the limits that the engine had",
            field="num_blocks",
        )
    return run


def _rounded(step: StepTime, per_token: float, fixed: float) -> StepTime:
    """Scaled, to as many digits as the answer shows: its scenario gives the very same run."""
    scaled = step.scaled(work=per_token, overhead=fixed)
    terms: dict[str, Any] = {name: _digits(getattr(scaled, name)) for name in (*WORK, *OVERHEAD)}
    return replace(scaled, **terms)


def _digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _as_keys(step: StepTime) -> dict[str, Any]:
    """A step time as a scenario gives it."""
    found: dict[str, Any] = {name: getattr(step, name) for name in (*OVERHEAD, *WORK)}
    if step.host_s:
        found["overlap"] = step.overlap
    return {
        name: value
        for name, value in found.items()
        if value or name in ("fixed_s", "per_prefill_token_s", "per_decode_token_s", "per_context_token_s")
    }


def _findings(step: StepTime, best: Fit) -> list[str]:
    said = []
    values = asdict(best.errors)
    missed = [
        f"{name} {values[name]:+.1%}"
        for name, bar in BARS.items()
        if values[name] is not None and abs(values[name]) > bar
    ]
    if best.errors.unfinished:
        missed.append(f"{best.errors.unfinished:,} requests without an answer")
    if missed:
        said.append(
            f"the fit stays apart from what was measured: {', '.join(missed)}; look for what the scenario does not say (blocks, "
            "seats, token budget, prefix caching, other load)"
        )
    for names, what in ((WORK, "per_token"), (OVERHEAD, "fixed")):
        if not any(getattr(step, name) for name in names):
            said.append(
                f"{what} has nothing to scale: {', '.join(names)} are all 0 in the scenario's step time"
            )
    return said


def _simulated(measured: Measured, run: Run) -> dict[str, float]:
    """The same figures of the calibrated run."""
    record = run.record
    rows = measured.answered & (np.frombuffer(record.outcome, dtype=np.int8) == FINISHED)
    return figures(
        np.frombuffer(record.first_token_s)[rows],
        np.frombuffer(record.end_s)[rows],
        measured.requests.arrival_s[rows],
        measured.requests.output_tokens[rows],
    )


def _ready(given: Mapping[str, Any], base: Mapping[str, Any], step: StepTime) -> dict[str, Any]:
    """The scenario given, with the calibrated step time."""
    ready = {key: value for key, value in given.items() if key != "step_time_factors"}
    ready["step_time"] = _as_keys(step)
    if ready.get("workload") is None:
        ready["workload"] = base["workload"]
    return ready
