"""The same scenario at several arrival rates: where goodput stops following the load (the knee).

Left out: searching for the best settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capacity.errors import CapacityError
from capacity.simulate_cli import Prepared, prepare, simulate
from capacity.simulation.report import report

KNEE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One arrival rate. ``answer`` is the whole report."""

    rate_rps: float
    goodput_rps: float | None
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    kv_peak: float | None
    preemptions: int
    answer: dict[str, Any]


def sweep_rates(
    scenario: dict[str, Any],
    factors: Sequence[float],
    *,
    trace_text: str | None = None,
    seed: int = 0,
    progress: Callable[[float], bool] | None = None,
) -> list[SweepPoint]:
    """Runs with the arrivals ``factors`` times as fast (1 = as given), in that order. Raises CapacityError.

    The requests are the same in every run; only the gaps between them shrink. Stops early when ``progress`` says so.
    """
    found = prepare(scenario, trace_text=trace_text, seed=seed)
    if found.closed_loop is not None:
        raise CapacityError("a closed loop has no arrival rate to sweep", field="workload.arrival")
    points: list[SweepPoint] = []
    for place, factor in enumerate(factors):
        if not 0 < factor < 1e6:
            raise CapacityError(f"a rate factor is {factor:g}; expected a number above 0", field="factors")
        points.append(_point(found, factor, seed))
        if progress is not None and not progress((place + 1) / len(factors)):
            break
    return points


def _point(found: Prepared, factor: float, seed: int) -> SweepPoint:
    arrival = found.requests.arrival_s
    first = float(arrival[0])
    faster = replace(found.requests, arrival_s=np.asarray(first + (arrival - first) / factor))
    answer = report(
        simulate(replace(found, requests=faster), seed=seed), slo=found.slo, warmup_s=found.warmup_s / factor
    )
    span = float(faster.arrival_s[-1] - faster.arrival_s[0])
    return SweepPoint(
        rate_rps=len(faster) / span if span > 0 else float("inf"),
        goodput_rps=answer["goodput_rps"],
        ttft_p99_s=answer["ttft_s"]["p99"],
        tpot_p99_s=answer["tpot_s"]["p99"],
        kv_peak=answer["kv_usage"]["peak"],
        preemptions=answer["requests"]["preemptions"],
        answer=answer,
    )


def knee(points: Sequence[SweepPoint]) -> SweepPoint | None:
    """The fastest point at which at least 95 % of the arrived requests met the objective; None when none did."""
    good = [
        point
        for point in points
        if point.answer["requests"]["arrived"]
        and (point.answer["slo_attainment"] or 0.0) * point.answer["requests"]["finished"]
        >= KNEE * point.answer["requests"]["arrived"]
    ]
    return max(good, key=lambda point: point.rate_rps, default=None)
