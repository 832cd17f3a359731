"""Two factors on the step time that bring a simulation closest to measured requests.

``per_token`` scales what grows with tokens (prompt and context), ``fixed`` what does not (the step itself, each decoding
request). Source: the roofline terms and the overhead terms of a step, which a planner misses in different ways. Left
out: reading timings (measured), the verb (capacity.calibrate_cli).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from capacity.simulation.measured import Measured
from capacity.simulation.record import FINISHED
from capacity.simulation.run import Run

STEPS = (0.25, 0.1, 0.04, 0.015, 0.006)
"""How far a factor moves, as a share; the next when no move helps."""
MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (-1, 1), (1, 1), (-1, -1))
STARTS = ((1.0, 1.0), (0.5, 1.3), (2.0, 0.6), (0.25, 1.2), (3.0, 0.4))
FURTHEST = 1000.0
MOST_RUNS = 300
GRID = 1000
BARS = {"e2e_mean": 0.03, "ttft_p99": 0.05, "tpot_p99": 0.05, "ttft_mean": 0.2, "tpot_mean": 0.2}
"""Errors that the fit makes small, each by the size that still counts as good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Simulated against measured, as shares (0.01 = 1 %); None where nothing was measured.

    ``in_flight`` and ``before_first_token``: mean absolute difference over time of the requests inside and of those without
    a token yet, by their measured peak.
    """

    ttft_mean: float | None
    ttft_p99: float | None
    tpot_mean: float | None
    tpot_p99: float | None
    e2e_mean: float | None
    e2e_p99: float | None
    in_flight: float
    before_first_token: float
    preemptions: int
    unfinished: int

    @property
    def score(self) -> float:
        """What the fit makes small: the errors by their bars, and a wall for requests that never finish."""
        values = asdict(self)
        parts = [abs(values[name]) / bar for name, bar in BARS.items() if values[name] is not None]
        return sum(parts) + 100.0 * self.unfinished

    @property
    def good(self) -> bool:
        """Within every bar."""
        values = asdict(self)
        return not self.unfinished and all(
            values[name] is None or abs(values[name]) <= bar for name, bar in BARS.items()
        )


def figures(first: np.ndarray, end: np.ndarray, arrival: np.ndarray, output: np.ndarray) -> dict[str, float]:
    """Mean and p99 of TTFT, TPOT and E2E in seconds; TPOT only where two tokens came."""
    several = output > 1
    found: dict[str, float] = {}
    for name, values in (
        ("ttft", first - arrival),
        ("tpot", (end - first)[several] / (output[several] - 1)),
        ("e2e", end - arrival),
    ):
        if values.size:
            found[f"{name}_mean"] = float(values.mean())
            found[f"{name}_p99"] = float(np.quantile(values, 0.99))
    return found


def measured_figures(measured: Measured) -> dict[str, float]:
    """The figures of what was measured."""
    rows = measured.answered
    requests = measured.requests
    return figures(
        measured.first_token_s[rows],
        measured.end_s[rows],
        requests.arrival_s[rows],
        requests.output_tokens[rows],
    )


def compare(measured: Measured, run: Run) -> Errors:
    """A simulated run of the measured requests against what was measured."""
    record = run.record
    done = np.frombuffer(record.outcome, dtype=np.int8) == FINISHED
    rows = measured.answered & done
    arrival, output = measured.requests.arrival_s, measured.requests.output_tokens
    first, end = np.frombuffer(record.first_token_s), np.frombuffer(record.end_s)
    got = figures(first[rows], end[rows], arrival[rows], output[rows])
    truth = figures(measured.first_token_s[rows], measured.end_s[rows], arrival[rows], output[rows])
    off = {name: got[name] / truth[name] - 1 if truth.get(name) else None for name in got}
    last = float(np.nanmax(np.concatenate([measured.end_s[rows], end[rows], [0.0]])))
    at = np.linspace(0.0, last, GRID)
    return Errors(
        **{
            name: off.get(name)
            for name in ("ttft_mean", "ttft_p99", "tpot_mean", "tpot_p99", "e2e_mean", "e2e_p99")
        },
        in_flight=_apart(at, arrival[rows], end[rows], measured.end_s[rows]),
        before_first_token=_apart(at, arrival[rows], first[rows], measured.first_token_s[rows]),
        preemptions=sum(engine.meter.preemptions for engine in run.engines),
        unfinished=int((measured.answered & ~done).sum()),
    )


def _apart(at: np.ndarray, start: np.ndarray, simulated: np.ndarray, measured: np.ndarray) -> float:
    """Mean absolute difference over ``at`` between two counts of requests that are past ``start`` and not past the end."""

    def count(end: np.ndarray) -> np.ndarray:
        came = np.searchsorted(np.sort(start), at, side="right")
        gone = np.searchsorted(np.sort(end), at, side="right")
        return np.asarray(came - gone)

    truth = count(measured)
    peak = max(int(truth.max(initial=0)), 1)
    return float(np.abs(count(simulated) - truth).mean() / peak)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The factors found, the errors with them, and how many runs it took."""

    per_token: float
    fixed: float
    errors: Errors
    runs: int


def fit(at: Callable[[float, float], Errors]) -> Fit:
    """Factors (per token, fixed) with the smallest score; ``at`` simulates with a pair of them.

    First one factor for both that brings the mean E2E right, then downhill from there in shares that shrink; from further
    starts when that does not reach the bars.
    """
    tried: dict[tuple[float, float], Errors] = {}

    def ask(per_token: float, fixed: float) -> Errors:
        key = (per_token, fixed)
        if key not in tried:
            tried[key] = at(per_token, fixed)
        return tried[key]

    scale = _scale(ask)
    for per_token, fixed in STARTS:
        _downhill(ask, scale * per_token, scale * fixed, lambda: len(tried) < MOST_RUNS)
        best = min(tried, key=lambda pair: tried[pair].score)
        if tried[best].good or len(tried) >= MOST_RUNS:
            break
    return Fit(per_token=best[0], fixed=best[1], errors=tried[best], runs=len(tried))


def _scale(ask: Callable[[float, float], Errors]) -> float:
    """One factor on everything with the mean E2E about right."""

    def off(scale: float) -> float:
        error = ask(scale, scale)
        return math.inf if error.unfinished or error.e2e_mean is None else error.e2e_mean

    low = high = 1.0
    if off(1.0) > 0:
        while off(low) > 0 and low > 1 / FURTHEST:
            high, low = low, low / 2
    else:
        while off(high) < 0 and high < FURTHEST:
            low, high = high, high * 2
    for _ in range(5):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if off(middle) > 0 else (middle, high)
    return math.sqrt(low * high)


def _downhill(
    ask: Callable[[float, float], Errors], per_token: float, fixed: float, more: Callable[[], bool]
) -> None:
    """Pattern search in the logarithms of the two factors."""
    best = ask(per_token, fixed).score
    for step in STEPS:
        helped = True
        while helped and more():
            helped = False
            for one, two in MOVES:
                pair = per_token * (1 + step) ** one, fixed * (1 + step) ** two
                if not all(1 / FURTHEST <= factor <= FURTHEST for factor in pair):
                    continue
                score = ask(*pair).score
                if score < best:
                    (per_token, fixed), best, helped = pair, score, True
                    break
