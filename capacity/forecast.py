"""How long until an engine's KV cache is full, from how its occupancy moved: an interval, or why there is
none.

A straight line is fitted to KV usage over the recent scrapes (least squares, the slope's error widened for
correlated residuals). Where it cannot be judged over all of them and the pool is over half full, the newest
half, quarter, ... is tried: a rise that has just begun must be steep and clear to count. Token inflow, where
known, gives the pool's size in tokens as a check. Left out: arrivals that change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capacity.errors import CapacityError

MIN_POINTS = 5
MIN_SPAN_S = 10.0
MIN_RISE = 0.005
T_VALUES = (
    (5, 3.2),
    (6, 2.8),
    (8, 2.4),
    (12, 2.2),
    (30, 2.05),
    (10**9, 1.96),
)  # 95 % two-sided, n - 2 degrees
WIDEST_RATIO = 10.0
FAR_SPANS, FAR_CERTAINTY = 2.0, 4.0
STEEP_FROM, STEEP_RISE, STEEP_CERTAINTY = 0.5, 0.10, 3.0
HORIZON_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds until full: ``low_s`` to ``high_s`` around ``expected_s``; all None where refused, and
    ``reason`` why.

    ``slope_per_s`` is the rise of the used share per second. ``pool_tokens`` is the pool's size as the
    inflow and the slope imply it, and ``inflow_tokens_per_s`` the inflow used; None where not known.
    """

    expected_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    slope_per_s: float | None = None
    points: int = 0
    span_s: float = 0.0
    pool_tokens: float | None = None
    inflow_tokens_per_s: float | None = None
    reason: str | None = None


def time_to_full(
    times_s: Sequence[float],
    usage: Sequence[float | None],
    *,
    inflow_tokens_per_s: float | None = None,
    capacity_tokens: float | None = None,
    full: float = 1.0,
) -> Forecast:
    """Forecast for one engine from (time, KV usage 0..1) of its scrapes, oldest first.

    Unknown usages are left out. ``inflow_tokens_per_s``: prompt plus output tokens written per second.
    Refused with a reason when there are too few scrapes, when usage falls or stands, or when the scatter
    hides the trend. CapacityError where the two sequences differ in length.

    >>> used = [0.912, 0.916, 0.919, 0.924, 0.928, 0.932]
    >>> f = time_to_full([0, 10, 20, 30, 40, 50], used, inflow_tokens_per_s=240)
    >>> round(f.expected_s), round(f.pool_tokens, -5)
    (169, 600000.0)
    """
    if len(times_s) != len(usage):
        raise CapacityError(f"{len(times_s)} times for {len(usage)} usages; equal numbers are expected")
    known = [
        (t, u)
        for t, u in zip(times_s, usage, strict=True)
        if u is not None and math.isfinite(u) and math.isfinite(t)
    ]
    points = len(known)
    span = known[-1][0] - known[0][0] if known else 0.0
    if points < MIN_POINTS or span < MIN_SPAN_S:
        return Forecast(
            points=points,
            span_s=span,
            reason=(
                f"too few scrapes: {points} over {span:.0f} s; {MIN_POINTS} over {MIN_SPAN_S:.0f} "
                f"s are needed"
            ),
        )
    t = np.array([p[0] for p in known]) - known[0][0]
    u = np.array([p[1] for p in known])
    if np.any(np.diff(t) <= 0):
        return Forecast(points=points, span_s=span, reason="the scrapes are not in order of time")
    slope, error, now = _fit(t, u)
    seen = Forecast(points=points, span_s=span, slope_per_s=slope)
    if now >= full:
        return Forecast(
            points=points, span_s=span, slope_per_s=slope, expected_s=0.0, low_s=0.0, high_s=0.0,
            reason="full now",
        )  # fmt: skip
    found = _judge(
        seen, slope=slope, error=error, room=full - now, inflow=inflow_tokens_per_s, size=capacity_tokens
    )
    if found.expected_s is not None or float(u[-1]) < STEEP_FROM:
        return found
    return _steep(t, u, full=full, inflow=inflow_tokens_per_s, size=capacity_tokens) or found


def _steep(
    t: np.ndarray, u: np.ndarray, *, full: float, inflow: float | None, size: float | None
) -> Forecast | None:
    """A forecast from the newest scrapes alone, where they rise steeply and clearly; None where not."""
    points = len(t) // 2
    while points >= MIN_POINTS:
        times, usage = t[-points:], u[-points:]
        span = float(times[-1] - times[0])
        if span < MIN_SPAN_S:
            return None
        slope, error, now = _fit(times, usage)
        if slope * span >= STEEP_RISE and slope >= STEEP_CERTAINTY * error and now < full:
            seen = Forecast(points=points, span_s=span, slope_per_s=slope)
            found = _judge(seen, slope=slope, error=error, room=full - now, inflow=inflow, size=size)
            if found.expected_s is not None:
                return found
        points //= 2
    return None


def _fit(t: np.ndarray, u: np.ndarray) -> tuple[float, float, float]:
    """Slope, half of its 95 % interval, and the level now: the line's end or the last reading, whichever
    is higher.
    """
    centred = t - t.mean()
    spread = float(np.sum(centred**2))
    slope = float(np.sum(centred * (u - u.mean())) / spread)
    residual = u - (u.mean() + slope * centred)
    n = len(t)
    variance = float(np.sum(residual**2)) / (n - 2)
    if variance > 0 and n > MIN_POINTS:
        lag = float(np.sum(residual[1:] * residual[:-1]) / np.sum(residual**2))
        lag = min(max(lag, 0.0), 0.9)
        variance *= (1 + lag) / (1 - lag)
    factor = next(value for limit, value in T_VALUES if n <= limit)
    error = factor * math.sqrt(variance / spread)
    line_end = float(u.mean() + slope * centred[-1])
    return slope, error, max(float(u[-1]), line_end) if abs(float(u[-1]) - line_end) < 0.02 else float(u[-1])


def _judge(
    seen: Forecast, *, slope: float, error: float, room: float, inflow: float | None, size: float | None
) -> Forecast:
    rise = slope * seen.span_s
    if slope <= 0 or (rise < MIN_RISE and slope - error <= 0):
        trend = "falling" if slope + error < 0 else "not rising"
        return _refused(seen, f"KV usage is {trend}")
    if slope - error <= 0:
        return _refused(seen, "too noisy: the scatter of KV usage hides its trend")
    low, expected, high = room / (slope + error), room / slope, room / (slope - error)
    if size is not None and inflow is not None and inflow > 0:
        low = max(low, min(expected, room * size / inflow))
    if high / low > WIDEST_RATIO:
        return _refused(seen, f"too noisy: anything from {low:.0f} to {high:.0f} s fits")
    if expected > FAR_SPANS * seen.span_s and slope < FAR_CERTAINTY * error:
        return _refused(seen, f"too noisy to look further than {FAR_SPANS * seen.span_s:.0f} s ahead")
    if expected > HORIZON_S:
        return _refused(seen, f"not within {HORIZON_S / 3600:.0f} h at this pace")
    return Forecast(
        expected_s=expected,
        low_s=low,
        high_s=high,
        slope_per_s=slope,
        points=seen.points,
        span_s=seen.span_s,
        pool_tokens=inflow / slope if inflow is not None and inflow > 0 else None,
        inflow_tokens_per_s=inflow,
    )


def _refused(seen: Forecast, reason: str) -> Forecast:
    return Forecast(points=seen.points, span_s=seen.span_s, slope_per_s=seen.slope_per_s, reason=reason)
