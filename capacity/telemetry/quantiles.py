"""Percentiles of bucket increases, equal to Prometheus' ``histogram_quantile``, with the bucket's bounds
and the count.

Source: the bucketQuantile rule of Prometheus (linear inside a bucket, lower edge 0 for the first, the
highest finite bound for the +Inf bucket). Left out: native histograms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from capacity.errors import CapacityError
from capacity.telemetry.values import Histogram, State, Value, unknown

NO_OBSERVATIONS = "no observations in the window"


def quantile(q: float, histogram: Histogram) -> Value:
    """The ``q`` quantile (0 < q < 1) with ``low`` and ``high`` of its bucket and the number of observations.

    In the lowest bucket the number is Prometheus' interpolation from 0 and the state says so; in the +Inf
    bucket it is the highest finite bound, which is only "at least", and ``high`` is None. Without
    observations it is unknown.

    >>> h = Histogram(bounds=(0.5, 0.75, 1.0), counts=(2.0, 6.0, 10.0, 10.0), sum=None)
    >>> v = quantile(0.9, h)
    >>> v.value, v.low, v.high, v.count
    (0.9375, 0.75, 1.0, 10.0)
    """
    if not 0 < q < 1:
        raise CapacityError(f"quantile {q} is not valid; valid: between 0 and 1", field="q")
    count = histogram.count
    rank = q * count
    if rank <= 0 or not histogram.bounds:
        reason = NO_OBSERVATIONS if rank <= 0 else "the histogram has no finite bucket"
        return Value(value=None, state=State.MISSING, metric=histogram.metric, reason=reason, count=count)
    counts = histogram.counts
    index = bisect_left(counts, rank, 0, len(counts) - 1)
    if index == len(counts) - 1:
        highest = histogram.bounds[-1]
        return Value(
            value=highest,
            state=State.ABOVE_HIGHEST,
            metric=histogram.metric,
            reason=f"at least {highest:g}: beyond the highest bucket",
            low=highest,
            high=None,
            count=count,
        )
    high = histogram.bounds[index]
    low = histogram.bounds[index - 1] if index else 0.0
    below = counts[index - 1] if index else 0.0
    if index == 0 and high <= 0:
        return Value(value=high, metric=histogram.metric, low=None, high=high, count=count)
    value = low + (high - low) * ((rank - below) / (counts[index] - below))
    return Value(
        value=value,
        state=State.BELOW_LOWEST if index == 0 else histogram.state,
        metric=histogram.metric,
        reason=f"below {high:g}: inside the lowest bucket" if index == 0 else histogram.reason,
        low=low,
        high=high,
        count=count,
    )


def merge(histograms: Sequence[Histogram]) -> Histogram | Value:
    """The sum of several engines' histograms.

    Different buckets are merged on the bounds that all share (cumulative counts there are exact); without
    a shared bound it cannot be done and the result says so.

    >>> a = Histogram(bounds=(1.0, 2.0), counts=(1.0, 2.0, 3.0), sum=4.0)
    >>> b = Histogram(bounds=(2.0, 4.0), counts=(5.0, 6.0, 6.0), sum=9.0)
    >>> merge([a, b]).bounds, merge([a, b]).counts
    ((2.0,), (7.0, 9.0))
    """
    if not histograms:
        return unknown(State.MISSING, "no engine has this histogram")
    shared = set(histograms[0].bounds)
    for one in histograms[1:]:
        shared &= set(one.bounds)
    if not shared and any(one.bounds for one in histograms):
        reason = "the engines have different buckets and share no bound: not merged"
        return unknown(State.PARTIAL, reason, metric=histograms[0].metric)
    bounds = tuple(sorted(shared))
    counts = [0.0] * (len(bounds) + 1)
    for one in histograms:
        at = dict(zip(one.bounds, one.counts, strict=False))
        for i, bound in enumerate(bounds):
            counts[i] += at[bound]
        counts[-1] += one.count
    same = all(one.bounds == histograms[0].bounds for one in histograms)
    sums = [one.sum for one in histograms]
    worst = next((one for one in histograms if one.state is not State.OK), histograms[0])
    return Histogram(
        bounds=bounds,
        counts=tuple(counts),
        sum=None if any(s is None for s in sums) else sum(s for s in sums if s is not None),
        state=worst.state,
        metric=histograms[0].metric,
        reason=worst.reason if same else f"merged on the {len(bounds)} bounds that all engines share",
    )
