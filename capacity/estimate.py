"""Speed of a scenario: at a concurrency, over a curve, or at an arrival rate, with intervals and reasons.

Source: performance.predict for each point; Little's law ties concurrency and rate. Left out: bursts (simulation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capacity.errors import CapacityError
from capacity.performance.deployment import Planned, planned
from capacity.performance.measured import MeasuredPoint
from capacity.performance.predict import forecast
from capacity.performance.records import Forecast
from capacity.scenario import Scenario

Array = NDArray[np.float64]
RATE_GRID = 97


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A forecast with the deployment it is for. ``overloaded``: the rate is above what the deployment can serve;
    ``most_rps`` is that limit."""

    planned: Planned
    forecast: Forecast
    overloaded: bool = False
    most_rps: float | None = None


def estimate(
    scenario: Scenario,
    concurrency: Array | Sequence[float] | float,
    *,
    measured: Sequence[MeasuredPoint] = (),
    acceptance: float | None = None,
) -> Estimate:
    """The scenario at one or many concurrencies (whole deployment). Raises CapacityError where it does not fit."""
    found = planned(scenario, acceptance=acceptance)
    return Estimate(
        planned=found, forecast=_forecast(found, np.atleast_1d(np.asarray(concurrency, float)), measured)
    )


def estimate_at_rate(
    scenario: Scenario,
    rate_rps: float,
    *,
    measured: Sequence[MeasuredPoint] = (),
    acceptance: float | None = None,
) -> Estimate:
    """The scenario at a steady arrival rate: the smallest concurrency whose throughput is the rate.

    Above the largest throughput the point at the limit is given and ``overloaded`` is set: the queue has no end.
    """
    found = planned(scenario, acceptance=acceptance)
    point, rate, over = at_rate(found, rate_rps, measured=measured)
    return Estimate(
        planned=found,
        forecast=_forecast(found, np.array([point]), measured, open_loop=True),
        overloaded=over,
        most_rps=rate,
    )


def at_rate(
    found: Planned, rate_rps: float, *, measured: Sequence[MeasuredPoint] = ()
) -> tuple[float, float, bool]:
    """(concurrency, largest rate, overloaded) of a planned deployment at ``rate_rps``."""
    if not rate_rps > 0:
        raise CapacityError(
            f"arrival_rate_rps is {rate_rps:g}; expected a number above 0", field="arrival_rate_rps"
        )
    most = min(found.deployment.most_running, 1e5)
    grid = np.geomspace(1.0, max(most, 1.0), RATE_GRID)
    rates = np.maximum.accumulate(_forecast(found, grid, measured, open_loop=True).requests_per_s.value)
    if rate_rps >= rates[-1]:
        return float(most), float(rates[-1]), True
    if rate_rps <= rates[0]:
        return 1.0, float(rates[-1]), False
    return float(np.exp(np.interp(np.log(rate_rps), np.log(rates), np.log(grid)))), float(rates[-1]), False


def _forecast(
    found: Planned, concurrency: Array, measured: Sequence[MeasuredPoint], *, open_loop: bool = False
) -> Forecast:
    return forecast(
        found.deployment,
        concurrency,
        found.prompt_tokens,
        found.output_tokens,
        measured=measured,
        open_loop=open_loop,
    )
