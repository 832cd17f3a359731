"""One value as it was read: a number or none, how far it can be trusted, and the metric name that answered.

Nothing here is ever NaN, negative infinity or a stand-in zero: an unknown is None with a state and a
reason. Left out: how values are computed (``window``) and how they are drawn (pages).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from capacity.errors import CapacityError

Content = float | str | Mapping[str, Any] | None


class State(StrEnum):
    """How a value came to be. Only OK, RESET, PARTIAL, STALE and the two bucket states may hold a number."""

    OK = "ok"
    NOT_EXPORTED = "not exported by this release"
    MISSING = "missing"
    STALE = "stale"
    RESET = "reset"
    PARTIAL = "partial"
    BELOW_LOWEST = "below lowest bucket"
    ABOVE_HIGHEST = "above highest bucket"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A signal's value. ``low``, ``high``, ``count`` belong to percentiles: the bucket's bounds, the samples.

    ``by_engine`` lists the parts of a pool value. A non-finite number is a programming error here: readers
    turn NaN and infinities into None with a reason before they build a Value.
    """

    value: Content = None
    state: State = State.OK
    metric: str | None = None
    reason: str | None = None
    low: float | None = None
    high: float | None = None
    count: float | None = None
    by_engine: Mapping[str, float | None] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.value, float) and not math.isfinite(self.value):
            raise CapacityError(f"a value must be finite or None, got {self.value}", field=self.metric)

    @property
    def number(self) -> float | None:
        """The value where it is a plain number, else None.

        >>> Value(value=3).number, Value(value="awake").number
        (3.0, None)
        """
        return float(self.value) if isinstance(self.value, int | float) else None

    @property
    def known(self) -> bool:
        """Whether there is anything to show."""
        return self.value is not None

    def as_json(self) -> dict[str, Any]:
        """``{value, state, metric}``, the percentile keys where they apply, a reason where there is one."""
        out: dict[str, Any] = {"value": self.value, "state": self.state.value, "metric": self.metric}
        if self.count is not None:
            out |= {"low": self.low, "high": self.high, "count": self.count}
        if self.reason is not None:
            out["reason"] = self.reason
        if self.by_engine is not None:
            out["by_engine"] = dict(self.by_engine)
        return out


def unknown(state: State, reason: str, *, metric: str | None = None) -> Value:
    """A value that is not known, and why.

    >>> unknown(State.MISSING, "a rate needs two scrapes").as_json()["value"] is None
    True
    """
    return Value(value=None, state=state, reason=reason, metric=metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Numbers by one label: waiting requests by reason, finished requests by ``finished_reason``."""

    parts: Mapping[str, float]
    label: str
    state: State = State.OK
    metric: str | None = None
    reason: str | None = None

    @property
    def total(self) -> float:
        """Sum over the parts."""
        return float(sum(self.parts.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """A cumulative histogram as exposed: ``counts[i]`` observations at or below ``bounds[i]``.

    ``bounds`` are the finite upper bounds read from the payload; ``counts`` has one entry more, the +Inf
    bucket, which is the number of observations. ``sum`` is None where the payload had none that could be
    used.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float | None
    state: State = State.OK
    metric: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1:
            raise CapacityError(
                f"{len(self.bounds)} bounds need {len(self.bounds) + 1} counts, got {len(self.counts)}",
                field=self.metric,
            )
        if list(self.bounds) != sorted(set(self.bounds)):
            raise CapacityError("histogram bounds must rise strictly", field=self.metric)

    @property
    def count(self) -> float:
        """Number of observations."""
        return self.counts[-1]

    @property
    def mean(self) -> float | None:
        """Mean observation, None where nothing was observed or the sum is unknown."""
        if self.count <= 0 or self.sum is None:
            return None
        mean = self.sum / self.count
        return mean if math.isfinite(mean) else None


Reading = Value | Breakdown | Histogram
