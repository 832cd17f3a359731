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
GAP = 0.02
FURTHEST = (1 / 64, 64.0)


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
    refine: int = 0,
) -> list[SweepPoint]:
    """Runs with the arrivals ``factors`` times as fast (1 = as given), slowest first. Raises CapacityError.

    The requests are the same in every run; only the gaps between them shrink. Up to ``refine`` further runs close in on
    the knee: rates double while all meet the objective and halve while none does, then the gap between the fastest
    that meets it and the next that misses it is halved until it is 2 %. ``progress`` gets the share done, also within a
    run, and may return False: the points so far are returned.
    """
    found = prepare(scenario, trace_text=trace_text, seed=seed)
    if found.closed_loop is not None:
        raise CapacityError("a closed loop has no arrival rate to sweep", field="workload.arrival")
    for factor in factors:
        if not 0 < factor < 1e6:
            raise CapacityError(f"a rate factor is {factor:g}; expected a number above 0", field="factors")
    arrival = found.requests.arrival_s
    if len(arrival) < 2 or float(arrival[-1]) <= float(arrival[0]):
        raise CapacityError(
            "all requests arrive at once, so there is no arrival rate to sweep; expected requests spread over time",
            field="workload.arrival",
        )
    points: dict[float, SweepPoint] = {}
    most = len(factors) + refine
    queue = list(factors)
    while len(points) < most:
        wanted = queue.pop(0) if queue else _closer(points)
        if wanted is None:
            break
        if wanted in points:
            most -= 1
            continue
        point = _point(found, wanted, seed, _within(progress, len(points), most))
        if point is None:
            break
        points[wanted] = point
        if progress is not None and not progress(len(points) / most):
            break
    return [points[factor] for factor in sorted(points)]


def _within(progress: Callable[[float], bool] | None, done: int, most: int) -> Callable[[float], bool] | None:
    """Progress of one run as a share of all of them (never all: the run's report is still to be made)."""
    if progress is None:
        return None
    return lambda share: progress((done + 0.99 * min(share, 1.0)) / most)


def _closer(points: dict[float, SweepPoint]) -> float | None:
    """The next factor to try for the knee, None when it is known to ``GAP`` or out of reach."""
    if not points:
        return None
    good = [factor for factor, point in points.items() if meets(point)]
    if not good:
        slowest = min(points)
        return slowest / 2 if slowest > FURTHEST[0] else None
    best = max(good)
    above = [factor for factor in points if factor > best]
    if not above:
        return best * 2 if best < FURTHEST[1] else None
    miss = min(above)
    return None if miss / best <= 1 + GAP else float(np.sqrt(best * miss))


def _point(
    found: Prepared, factor: float, seed: int, progress: Callable[[float], bool] | None
) -> SweepPoint | None:
    """The run at a factor, None when it was cancelled."""
    arrival = found.requests.arrival_s
    first = float(arrival[0])
    faster = replace(found.requests, arrival_s=np.asarray(first + (arrival - first) / factor))
    run = simulate(replace(found, requests=faster), seed=seed, progress=progress)
    if run.cancelled:
        return None
    answer = report(run, slo=found.slo, warmup_s=found.warmup_s / factor)
    span = float(faster.arrival_s[-1] - faster.arrival_s[0])
    return SweepPoint(
        rate_rps=len(faster) / span,
        goodput_rps=answer["goodput_rps"],
        ttft_p99_s=answer["ttft_s"]["p99"],
        tpot_p99_s=answer["tpot_s"]["p99"],
        kv_peak=answer["kv_usage"]["peak"],
        preemptions=answer["requests"]["preemptions"],
        answer=answer,
    )


def meets(point: SweepPoint) -> bool:
    """Whether at least 95 % of the arrived requests met the objective."""
    counts = point.answer["requests"]
    good = (point.answer["slo_attainment"] or 0.0) * counts["finished"]
    return bool(counts["arrived"]) and good >= KNEE * counts["arrived"]


def knee(points: Sequence[SweepPoint]) -> SweepPoint | None:
    """The fastest point that meets the objective; None when none did."""
    return max((point for point in points if meets(point)), key=lambda point: point.rate_rps, default=None)


def miss(points: Sequence[SweepPoint]) -> SweepPoint | None:
    """The slowest point beyond the knee, which misses the objective; None when the knee is the fastest point."""
    best = knee(points)
    beyond = [point for point in points if best is None or point.rate_rps > best.rate_rps]
    return min(beyond, key=lambda point: point.rate_rps, default=None)
