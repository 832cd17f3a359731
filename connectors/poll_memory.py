"""What is known about each target: its newest snapshots, its engines, and rings of their recent intervals.

The poller's memory, bounded for any number of targets. Left out: when to scrape and threads (``poller``, which
locks).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from capacity.interval_steps import between, gone
from capacity.intervals import Interval
from capacity.telemetry import EngineSnapshot, TargetSnapshot
from connectors.poll_records import PollTarget
from connectors.ring import Ring

MAX_APART_S = 60.0
# An interval takes about 5 kB, a snapshot about 40: these keep fifty replicas under 150 MB.
RING_BUDGET, RING_PER_ENGINE = 1200, (16, 600)
SNAPSHOT_BUDGET, SNAPSHOTS_PER_TARGET = 300, (6, 32)


@dataclass(slots=True)
class TargetState:
    """One target as the poller knows it; ``costs`` are (when, seconds, bytes) of its recent scrapes."""

    target: PollTarget
    recent: deque[TargetSnapshot] = field(default_factory=deque)
    last_ok: TargetSnapshot | None = None
    engines: dict[str, EngineSnapshot] = field(default_factory=dict)
    rings: dict[str, Ring] = field(default_factory=dict)
    failures: int = 0
    due_s: float = 0.0
    attempted_s: float | None = None
    scrape_s: float = 0.0
    costs: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=20))
    scrapes: int = 0


class Memory:
    """Of all targets: ``states`` by name. ``interval_s`` is the time that a first interval covers."""

    def __init__(self, interval_s: float) -> None:
        self.states: dict[str, TargetState] = {}
        self._interval_s = interval_s
        self._recent_size = SNAPSHOTS_PER_TARGET[1]
        self._ring_size = RING_PER_ENGINE[1]

    def resize(self) -> None:
        """Share the budget of intervals and snapshots among the engines and targets there are."""
        engines = max(1, sum(max(1, len(s.rings)) for s in self.states.values()))
        size = _between(RING_BUDGET // engines, RING_PER_ENGINE)
        self._recent_size = _between(SNAPSHOT_BUDGET // max(1, len(self.states)), SNAPSHOTS_PER_TARGET)
        for state in self.states.values():
            for ring in state.rings.values():
                ring.size = size
        self._ring_size = size

    def take_in(self, state: TargetState, snapshot: TargetSnapshot) -> list[Interval]:
        """Add one scrape of a target; the intervals that it ends."""
        if snapshot.up:
            engines = tuple(_sharing(state.engines.get(e.engine), e) for e in snapshot.engines)
            snapshot = replace(snapshot, engines=engines)
        found = self._intervals(state, snapshot)
        state.recent.append(snapshot)
        while len(state.recent) > self._recent_size:
            state.recent.popleft()
        if snapshot.up:
            state.failures = 0
            state.last_ok = snapshot
            state.engines = {engine.engine: engine for engine in snapshot.engines}
        else:
            state.failures += 1
        return found

    def _intervals(self, state: TargetState, snapshot: TargetSnapshot) -> list[Interval]:
        at = snapshot.monotonic_s if snapshot.monotonic_s is not None else snapshot.time_s
        seconds = self._interval_s if state.attempted_s is None else max(0.0, at - state.attempted_s)
        state.attempted_s = at
        name = state.target.name
        found: list[Interval] = []
        if snapshot.up:
            for index, engine in enumerate(snapshot.engines):
                before = state.engines.get(engine.engine)
                if _seen_already(before, engine):
                    continue
                found.append(
                    between(
                        before,
                        engine,
                        target=name,
                        seconds=max(seconds, _apart_s(before, engine)),
                        previous_shared=state.last_ok.shared if state.last_ok and index == 0 else None,
                        current_shared=snapshot.shared if index == 0 else None,
                        scrape_s=snapshot.scrape_s,
                        demo=state.target.demo,
                    )
                )
        else:
            lost: list[EngineSnapshot | None] = list(state.engines.values()) or [None]
            reason = snapshot.reason or "no answer"
            found = [
                replace(
                    gone(last, target=name, end_s=snapshot.time_s, seconds=seconds, reason=reason),
                    demo=state.target.demo,
                )
                for last in lost
            ]
        for interval in found:
            if interval.engine not in state.rings:
                state.rings[interval.engine] = Ring(self._ring_size)
                self.resize()
            state.rings[interval.engine].append(interval)
        return found

    def intervals(self, start_s: float, *, target: str | None = None) -> list[Interval]:
        """Intervals of every engine since ``start_s``, by target, engine and time."""
        return [
            interval
            for name, state in self.states.items()
            if target is None or name == target
            for _, ring in sorted(state.rings.items())
            for interval in ring.since(start_s)
        ]

    def fine_since_s(self, step_s: float, *, target: str | None = None) -> float | None:
        """The moment from which all rings have steps of at most ``step_s``, time that a target was down apart."""
        rings = [
            r.items
            for name, s in self.states.items()
            if target is None or name == target
            for r in s.rings.values()
            if r.items
        ]
        starts = []
        for items in rings:
            first = items[-1]
            for item in reversed(items):
                if item.seconds > step_s and not item.state.startswith("down"):
                    break
                first = item
            starts.append(first.end_s - first.seconds)
        return max(starts, default=None)

    @property
    def oldest_s(self) -> float | None:
        """Start of the oldest interval; None where there is none."""
        starts = [
            ring.items[0].end_s - ring.items[0].seconds
            for state in self.states.values()
            for ring in state.rings.values()
            if ring.items
        ]
        return min(starts, default=None)


def _sharing(before: EngineSnapshot | None, after: EngineSnapshot) -> EngineSnapshot:
    """``after`` with the earlier objects wherever a reading did not change: half the memory of a quiet
    engine.
    """
    if before is None:
        return after
    old = before.readings
    readings = {name: old[name] if old.get(name) == new else new for name, new in after.readings.items()}
    config = before.config if before.config == after.config else after.config
    return replace(after, readings=readings, config=config)


def _seen_already(before: EngineSnapshot | None, after: EngineSnapshot) -> bool:
    """Whether a server that stores samples gave the same ones as last time."""
    return before is not None and after.monotonic_s is None and after.time_s <= before.time_s


def _apart_s(before: EngineSnapshot | None, after: EngineSnapshot) -> float:
    """Seconds between two stored samples, which may be longer than between two questions."""
    if before is None or after.monotonic_s is not None:
        return 0.0
    return min(after.time_s - before.time_s, MAX_APART_S)


def _between(value: int, limits: tuple[int, int]) -> int:
    return min(max(value, limits[0]), limits[1])
