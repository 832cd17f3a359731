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

Array = NDArray[np.float64]

LEVEL_SD, SLOPE_SD, SMOOTH_SD, SMOOTH_OCTAVES, NOISE_SD = 0.3, 0.03, 0.08, 2.0, 0.02
MIDDLE = 16.0
MOST_POINTS = 64
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
        raise CapacityError(
            f"measured_points is {_seen(raw)}; expected a list of at most {MOST_POINTS} points",
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
                f"{name} is {_seen(item)}; expected concurrency and tpot_s", field="measured_points"
            )
        extra = set(item) - {"concurrency", "tpot_s", "ttft_s"}
        if extra:
            raise CapacityError(
                f"{name} has the key {str(sorted(map(str, extra))[0])[:40]!r}; expected concurrency, tpot_s, ttft_s",
                field="measured_points",
            )
        values = {key: _positive(item.get(key), f"{name}.{key}") for key in ("concurrency", "tpot_s")}
        ttft = item.get("ttft_s")
        found.append(
            MeasuredPoint(**values, ttft_s=None if ttft is None else _positive(ttft, f"{name}.ttft_s"))
        )
    return tuple(found)


def _positive(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise CapacityError(f"{name} is {_seen(value)}; expected a number above 0", field="measured_points")
    return float(value)


def _seen(value: Any) -> str:
    if value is None:
        return "missing"
    return repr(value)[:40] if isinstance(value, int | float | str) else f"a {type(value).__name__}"


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
