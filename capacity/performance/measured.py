"""Corrects a predicted curve by points that the user measured, and narrows the interval near them.

Source: Gaussian process on the log error over log2(concurrency): a level, a slope and a smooth rest. The sizes of the
three were chosen on split curves (benchmarks/accuracy_performance.py). Left out: points at another workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capacity.errors import CapacityError
from capacity.speed_words import seen

Array = NDArray[np.float64]

LEVEL_SD, SLOPE_SD, SMOOTH_SD, SMOOTH_OCTAVES, NOISE_SD = 0.3, 0.03, 0.08, 2.0, 0.02
MIDDLE = 16.0
MOST_POINTS = 64
MOST_CONCURRENCY = 1e6
# Runs of one load differ by percents, releases by up to 60 %; twice is another deployment.
CONTRADICTION = 2.0
HALF_80 = 1.2816
# Curves err in jumps more than a smooth process says; this factor brings the band back to 80 % on split curves.
BAND_SCALE = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One measured operating point of the same deployment and workload. TTFT may be unknown."""

    concurrency: float
    tpot_s: float
    ttft_s: float | None = None


def measured_points(raw: Any) -> tuple[MeasuredPoint, ...]:
    """Points from JSON: ``[{"concurrency": 8, "tpot_s": 0.011, "ttft_s": null}]``. Raises CapacityError.

    >>> measured_points([{"concurrency": 8, "tpot_s": 0.011}])[0].tpot_s
    0.011
    """
    if raw is None:
        return ()
    if not isinstance(raw, list | tuple) or len(raw) > MOST_POINTS:
        given = f"has {len(raw):,} points" if isinstance(raw, list | tuple) else f"is {seen(raw)}"
        raise CapacityError(
            f"measured_points {given}; expected a list of at most {MOST_POINTS} points",
            field="measured_points",
        )
    found = []
    for number, item in enumerate(raw):
        if isinstance(item, MeasuredPoint):
            found.append(item)
            continue
        name = f"measured_points[{number}]"
        if not isinstance(item, Mapping):
            raise CapacityError(
                f"{name} is {seen(item)}; expected concurrency and tpot_s", field="measured_points"
            )
        extra = set(item) - {"concurrency", "tpot_s", "ttft_s"}
        if extra:
            raise CapacityError(
                f"{name} has the key {str(sorted(map(str, extra))[0])[:40]!r}; expected concurrency, tpot_s, ttft_s",
                field="measured_points",
            )
        at = item.get("concurrency")
        if isinstance(at, bool) or not isinstance(at, int | float) or not 1 <= at <= MOST_CONCURRENCY:
            raise CapacityError(
                f"{name}.concurrency is {seen(at)}; expected a number, 1 to {MOST_CONCURRENCY:,.0f}",
                field="measured_points",
            )
        ttft = item.get("ttft_s")
        found.append(
            MeasuredPoint(
                concurrency=float(at),
                tpot_s=_seconds(item.get("tpot_s"), f"{name}.tpot_s"),
                ttft_s=None if ttft is None else _seconds(ttft, f"{name}.ttft_s"),
            )
        )
    _agreeing(found)
    return tuple(found)


def _agreeing(points: Sequence[MeasuredPoint]) -> None:
    """Raises CapacityError for points that cannot be of one deployment: far apart at one load, or far faster at more."""
    ordered = sorted(points, key=lambda p: (p.concurrency, -p.tpot_s))
    slowest = None
    for point in ordered:
        if slowest is not None and slowest.tpot_s > CONTRADICTION * point.tpot_s:
            if slowest.concurrency == point.concurrency:
                raise CapacityError(
                    f"measured_points contradict each other: tpot_s is {point.tpot_s:g} s and {slowest.tpot_s:g} s, both at "
                    f"concurrency {point.concurrency:g}; expected points of one deployment and workload",
                    field="measured_points",
                )
            where = f"{slowest.tpot_s:g} s at concurrency {slowest.concurrency:g}"
            raise CapacityError(
                f"measured_points contradict each other: tpot_s is {where} and {point.tpot_s:g} s at "
                f"{point.concurrency:g}; expected one deployment, where more load never makes a token much faster",
                field="measured_points",
            )
        if slowest is None or point.tpot_s > slowest.tpot_s:
            slowest = point


def point_warnings(points: Sequence[MeasuredPoint], most_running: float) -> list[str]:
    """What of the points cannot be followed: TTFT beyond ``most_running`` requests, TPOT that falls with load."""
    found = []
    if any(p.ttft_s is not None and p.concurrency > most_running for p in points):
        found.append(
            f"a measured ttft_s above {most_running:,.0f} running requests holds the wait for a place, so it does not "
            "correct the curve"
        )
    ordered = sorted(points, key=lambda p: (p.concurrency, -p.tpot_s))
    if any(later.tpot_s < 0.9 * one.tpot_s for k, one in enumerate(ordered) for later in ordered[k + 1 :]):
        found.append(
            "measured tpot_s falls with load or differs at one load: the curve goes between the points and the interval "
            "holds what it misses"
        )
    return found


def _seconds(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise CapacityError(
            f"{name} is {seen(value)}; expected seconds, above 0 and below 1,000,000",
            field="measured_points",
        )
    return float(value)


def _kernel(a: Array, b: Array) -> Array:
    apart = a[:, None] - b[None, :]
    smooth = SMOOTH_SD**2 * np.exp(-(apart**2) / (2 * SMOOTH_OCTAVES**2))
    return np.asarray(LEVEL_SD**2 + SLOPE_SD**2 * a[:, None] * b[None, :] + smooth)


def correction(
    measured_at: Sequence[float], log_errors: Sequence[float], concurrency: Array, half_range: Array
) -> tuple[Array, Array]:
    """(log correction, 80 % half-range) at ``concurrency`` from log(measured / predicted) at a few concurrencies.

    The half-range never exceeds ``half_range``, what the prediction had without points.

    >>> shift, half = correction([8.0], [0.2], np.array([8.0, 64.0]), np.array([0.3, 0.3]))
    >>> bool(0.18 < shift[0] < 0.2), bool(half[0] < half[1] < 0.3)
    (True, True)
    """
    at = np.log2(np.asarray(measured_at, float) / MIDDLE)
    x = np.log2(np.maximum(np.asarray(concurrency, float), 1e-3) / MIDDLE)
    gram = _kernel(at, at) + NOISE_SD**2 * np.eye(len(at))
    cross = _kernel(x, at)
    weights = np.linalg.solve(gram, cross.T).T
    shift = weights @ np.asarray(log_errors, float)
    own = LEVEL_SD**2 + SLOPE_SD**2 * x * x + SMOOTH_SD**2
    variance = np.maximum(own - (weights * cross).sum(1), 0.0) + NOISE_SD**2
    return shift, np.minimum(np.asarray(half_range, float), BAND_SCALE * HALF_80 * np.sqrt(variance))
