"""What counters and histograms of one engine rose by over a window of its snapshots, safe against restarts.

Rates are differences over elapsed time inside the window, without extrapolation. A restart counts from
zero, as Prometheus does, and marks the result. A single snapshot gives what happened since the engine
started, never a rate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from capacity.errors import CapacityError
from capacity.telemetry.snapshot import EngineSnapshot
from capacity.telemetry.values import Breakdown, Histogram, Reading, State, Value, unknown

START_TOLERANCE_S = 1.0
ONE_SCRAPE = "a rate needs two scrapes"
SINCE_START = "since the engine started, not a window: there is one scrape only"
RESTARTED = "the engine restarted in the window: counted from zero again, so at least this much"
CANARIES = ("prompt_tokens", "generation_tokens", "preemptions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Increase:
    """How much a counter rose in ``seconds``. ``amount`` None: not known, with state and reason.

    ``seconds`` is None when the amount is since the engine started.
    """

    amount: float | None
    seconds: float | None
    state: State = State.OK
    metric: str | None = None
    reason: str | None = None

    def rate(self) -> Value:
        """Amount per second; unknown where there is no window."""
        if self.amount is None:
            return unknown(self.state, self.reason or "not known", metric=self.metric)
        if self.seconds is None:
            return unknown(State.MISSING, ONE_SCRAPE, metric=self.metric)
        return Value(
            value=self.amount / self.seconds, state=self.state, metric=self.metric, reason=self.reason
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWindow:
    """One engine over a window: its snapshots (oldest first) and, per signal, what it rose by.

    ``seconds`` is the elapsed time from first to last snapshot, None for a single one. ``restarts`` counts
    restarts seen between snapshots; ``last_restart`` is how many intervals ago the newest was (0 = in the
    last interval).
    """

    target: str
    snapshots: tuple[EngineSnapshot, ...]
    seconds: float | None
    increases: Mapping[str, Increase]
    parts: Mapping[str, Mapping[str, Increase]]
    histograms: Mapping[str, Histogram | Value]
    restarts: int = 0
    last_restart: int | None = None

    @property
    def latest(self) -> EngineSnapshot:
        """The newest snapshot."""
        return self.snapshots[-1]

    @property
    def engine(self) -> str:
        """The engine's label."""
        return self.latest.engine

    def increase(self, signal: str) -> Increase:
        """The increase of a counter; an absent one says why."""
        found = self.increases.get(signal)
        if found is not None:
            return found
        value = self.latest.value(signal)
        return Increase(
            amount=None, seconds=None, state=value.state, metric=value.metric, reason=value.reason
        )


def elapsed_s(before: EngineSnapshot, after: EngineSnapshot) -> float:
    """Seconds between two snapshots: by the scraper's steady clock where both have it, else by the wall
    clock.
    """
    if before.monotonic_s is not None and after.monotonic_s is not None:
        return after.monotonic_s - before.monotonic_s
    return after.time_s - before.time_s


def _number(reading: Reading | None) -> float | None:
    """What a counter stood at; the total of a breakdown with a part that could not be read is not known."""
    if isinstance(reading, Value):
        return reading.number
    return reading.total if isinstance(reading, Breakdown) and reading.state is not State.PARTIAL else None


def restarted(before: EngineSnapshot, after: EngineSnapshot) -> bool:
    """Whether the engine started anew between two snapshots: another start time, or a counter that fell."""
    old, new = before.started_at_s, after.started_at_s
    if old is not None and new is not None and abs(new - old) > START_TOLERANCE_S:
        return True
    for signal in CANARIES:
        was, now = _number(before.readings.get(signal)), _number(after.readings.get(signal))
        if was is not None and now is not None and now < was:
            return True
    return False


def _ordered(snapshots: Sequence[EngineSnapshot]) -> tuple[EngineSnapshot, ...]:
    """Snapshots whose time moves on; one that does not (clock set back, scraped twice) gives way to the
    newer.
    """
    kept: list[EngineSnapshot] = []
    for snapshot in snapshots:
        while kept and elapsed_s(kept[-1], snapshot) <= 0:
            kept.pop()
        kept.append(snapshot)
    return tuple(kept)


def open_window(
    snapshots: Sequence[EngineSnapshot],
    *,
    target: str = "",
    single: Literal["since start", "unknown"] = "unknown",
    only: Collection[str] | None = None,
) -> EngineWindow:
    """The window over snapshots of one engine, oldest first. CapacityError without any.

    ``single``: what a lone snapshot gives for amounts and percentiles: what happened since the engine
    started (marked), or nothing.
    """
    if not snapshots:
        raise CapacityError("a window needs at least one snapshot")
    kept = _ordered(snapshots)
    pairs = [restarted(a, b) for a, b in pairwise(kept)]
    seconds = elapsed_s(kept[0], kept[-1]) if len(kept) > 1 else None
    signals = dict.fromkeys(s for snapshot in kept for s in snapshot.readings if only is None or s in only)
    increases: dict[str, Increase] = {}
    parts: dict[str, dict[str, Increase]] = {}
    histograms: dict[str, Histogram | Value] = {}
    for signal in signals:
        newest = next((r for s in reversed(kept) if _usable(r := s.readings.get(signal))), None)
        if isinstance(newest, Histogram):
            histograms[signal] = _histogram(signal, kept, pairs, single)
        elif isinstance(newest, Breakdown):
            parts[signal] = _parts(signal, kept, pairs, single)
            increases[signal] = _increase(signal, kept, pairs, single)
        elif newest is not None:
            increases[signal] = _increase(signal, kept, pairs, single)
    return EngineWindow(
        target=target,
        snapshots=kept,
        seconds=seconds,
        increases=increases,
        parts=parts,
        histograms=histograms,
        restarts=sum(pairs),
        last_restart=next((i for i, reset in enumerate(reversed(pairs)) if reset), None),
    )


def _usable(reading: Reading | None) -> bool:
    return isinstance(reading, Histogram | Breakdown) or (
        isinstance(reading, Value) and reading.number is not None
    )


Point = tuple[int, float]


def _rise(
    points: Sequence[Point],
    kept: Sequence[EngineSnapshot],
    pairs: Sequence[bool],
    single: str,
    metric: str | None,
) -> Increase:
    """Increase over (index, value) points of one counter."""
    if len(kept) == 1:
        if single == "since start" and points:
            return Increase(amount=points[-1][1], seconds=None, metric=metric, reason=SINCE_START)
        return Increase(
            amount=None,
            seconds=None,
            state=State.MISSING,
            metric=metric,
            reason=("one scrape: a window needs two"),
        )
    if len(points) < 2:
        reason = "it appeared in the window: what it rose by before its first scrape is not known"
        return Increase(amount=None, seconds=None, state=State.PARTIAL, metric=metric, reason=reason)
    amount, reset = 0.0, False
    for (i, before), (j, after) in pairwise(points):
        if any(pairs[i:j]) or after < before:
            amount += after
            reset = True
        else:
            amount += after - before
    first, last = points[0][0], points[-1][0]
    state, reason_ = (State.RESET, RESTARTED) if reset else (State.OK, None)
    if not reset and last < len(kept) - 1:
        state, reason_ = State.PARTIAL, "missing in the newest scrapes of the window"
    return Increase(
        amount=amount, seconds=elapsed_s(kept[first], kept[last]), state=state, metric=metric, reason=reason_
    )


def _increase(signal: str, kept: Sequence[EngineSnapshot], pairs: Sequence[bool], single: str) -> Increase:
    points: list[Point] = []
    metric = None
    for i, snapshot in enumerate(kept):
        reading = snapshot.readings.get(signal)
        value = _number(reading)
        if value is not None and reading is not None:
            points.append((i, value))
            metric = reading.metric
    newest = kept[-1].readings.get(signal)
    if isinstance(newest, Breakdown) and newest.state is State.PARTIAL and len(points) < 2:
        return Increase(
            amount=None, seconds=None, state=newest.state, metric=newest.metric, reason=newest.reason
        )
    return _rise(points, kept, pairs, single, metric)


def _parts(
    signal: str, kept: Sequence[EngineSnapshot], pairs: Sequence[bool], single: str
) -> dict[str, Increase]:
    """Increases by label value."""
    seen = [(i, b) for i, s in enumerate(kept) if (b := s.breakdown(signal)) is not None]
    names = dict.fromkeys(name for _, b in seen for name in b.parts)
    metric = seen[-1][1].metric
    return {name: _rise(_part(name, seen, pairs), kept, pairs, single, metric) for name in names}


def _part(name: str, seen: Sequence[tuple[int, Breakdown]], pairs: Sequence[bool]) -> list[Point]:
    """Points of one label value. It counts from zero until it first appears beside its family, and after a
    restart; one that is gone without a restart, or could not be read, is a gap.
    """
    points: list[Point] = []
    last: int | None = None
    for i, found in seen:
        value = found.parts.get(name)
        if value is not None:
            last = i
        elif found.state is State.PARTIAL or (last is not None and not any(pairs[last:i])):
            continue
        points.append((i, value or 0.0))
    return points


def _histogram(
    signal: str, kept: Sequence[EngineSnapshot], pairs: Sequence[bool], single: str
) -> Histogram | Value:
    """What a histogram rose by, as a cumulative histogram of the window."""
    points = [(i, h) for i, s in enumerate(kept) if (h := s.histogram(signal)) is not None]
    newest = points[-1][1]
    if len(kept) == 1:
        if single == "since start":
            return Histogram(
                bounds=newest.bounds,
                counts=newest.counts,
                sum=newest.sum,
                metric=newest.metric,
                reason=SINCE_START,
            )
        return unknown(State.MISSING, "one scrape: a window needs two", metric=newest.metric)
    if len(points) < 2:
        return unknown(State.PARTIAL, "it appeared in the window: not counted yet", metric=newest.metric)
    same = [p for p in points if p[1].bounds == newest.bounds]
    counts = [0.0] * len(newest.counts)
    total: float | None = 0.0
    reset = len(same) < len(points)
    if len(same) < 2:
        return unknown(State.RESET, "the buckets changed in the window", metric=newest.metric)
    for (i, before), (j, after) in pairwise(same):
        fresh = any(pairs[i:j]) or any(b < a for a, b in zip(before.counts, after.counts, strict=True))
        reset = reset or fresh
        base = (0.0,) * len(counts) if fresh else before.counts
        counts = [c + (b - a) for c, a, b in zip(counts, base, after.counts, strict=True)]
        start = 0.0 if fresh else before.sum
        known = total is not None and start is not None and after.sum is not None and after.sum >= start
        total = total + after.sum - start if known else None  # type: ignore[operator]
    return Histogram(
        bounds=newest.bounds,
        counts=tuple(accumulate(counts, max)),
        sum=total,
        metric=newest.metric,
        state=State.RESET if reset else State.OK,
        reason=RESTARTED if reset else None,
    )
