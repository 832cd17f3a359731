"""One poller per process: scrapes every target on its own schedule and hands the intervals on.

What it answers: the latest snapshot and the recent intervals of every engine, whatever the number of
browsers. A slow target never delays another; a failing or slowing one is asked less often. Left out: how to
scrape (scrape).
"""

from __future__ import annotations

import heapq
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from capacity.intervals import Interval
from capacity.telemetry import TargetSnapshot, down
from connectors.errors import ConnectorError
from connectors.past import Past
from connectors.poll_memory import Memory, TargetState
from connectors.poll_records import Load, PollTarget, TargetView

__all__ = ["Load", "PollTarget", "Poller", "TargetView"]
MAX_BACKOFF_S = 60.0
MAX_DUTY = 0.2
MAX_WORKERS = 64


class Poller:
    """Polls ``targets`` every ``interval_s`` between ``start()`` and ``stop()``.

    ``keep`` gets each batch of new intervals, about once per ``interval_s``, in a thread of its own; what it
    raises is reported by ``problem`` and never stops the polling. ``now`` and ``steady`` are the wall and
    monotonic clocks.
    """

    def __init__(
        self,
        targets: Sequence[PollTarget] = (),
        *,
        interval_s: float = 5.0,
        keep: Callable[[list[Interval]], object] | None = None,
        now: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_s = interval_s
        self.problem: str | None = None
        self._keep = keep
        self._now = now
        self._steady = steady
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._memory = Memory(interval_s)
        self._states = self._memory.states
        self._heap: list[tuple[float, str]] = []
        self._pending: list[Interval] = []
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._workers: ThreadPoolExecutor | None = None
        self.set_targets(targets)

    def set_targets(self, targets: Sequence[PollTarget]) -> None:
        """Replace the targets; those that stay keep what is known about them."""
        with self._wake:
            wanted = {t.name: t for t in targets}
            for name in [n for n in self._states if n not in wanted]:
                del self._states[name]
            start = self._steady()
            for name, target in wanted.items():
                if name in self._states:
                    self._states[name].target = target
                    continue
                state = TargetState(target=target, due_s=start + _jitter(name) * self.interval_s)
                self._states[name] = state
                heapq.heappush(self._heap, (state.due_s, name))
            self._memory.resize()
            self._wake.notify_all()

    def start(self) -> None:
        """Begin polling. A second call does nothing."""
        if self._threads:
            return
        self._workers = ThreadPoolExecutor(max_workers=MAX_WORKERS, thread_name_prefix="poll")
        for name, run in (("poller", self._schedule), ("poll-keep", self._keeper)):
            thread = threading.Thread(target=run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop scheduling, let running scrapes end (they have a deadline), keep what is left."""
        self._stopping.set()
        with self._wake:
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()
        if self._workers is not None:
            self._workers.shutdown(wait=True, cancel_futures=True)
        self._flush()
        self._threads = []

    def _schedule(self) -> None:
        while not self._stopping.is_set():
            with self._wake:
                while self._heap and self._heap[0][1] not in self._states:
                    heapq.heappop(self._heap)
                if not self._heap:
                    self._wake.wait(1.0)
                    continue
                due_s, name = self._heap[0]
                wait_s = due_s - self._steady()
                if wait_s > 0:
                    self._wake.wait(min(wait_s, 1.0))
                    continue
                heapq.heappop(self._heap)
                state = self._states[name]
            assert self._workers is not None
            try:
                self._workers.submit(self._poll, state)
            except RuntimeError:  # the interpreter ends and nobody called stop(): no more scrapes
                return

    def _poll(self, state: TargetState) -> None:
        if self._stopping.is_set():
            return
        began = self._steady()
        try:
            snapshot = state.target.scrape()
        except ConnectorError as error:
            snapshot = down(
                state.target.name, time_s=self._now(), monotonic_s=self._steady(), reason=str(error)
            )
        except Exception as error:
            snapshot = down(
                state.target.name,
                time_s=self._now(),
                monotonic_s=self._steady(),
                reason=f"scraping failed inside Waterline: {type(error).__name__}",
            )
        self.accept(state.target.name, snapshot, took_s=self._steady() - began)

    def backfill(self, name: str, snapshots: Iterable[TargetSnapshot]) -> None:
        """Take in older snapshots of a target, oldest first, before its first scrape."""
        with self._lock:
            state = self._states.get(name)
            if state is not None:
                for snapshot in snapshots:
                    self._pending += self._memory.take_in(state, snapshot)

    def accept(self, name: str, snapshot: TargetSnapshot, *, took_s: float) -> None:
        """Take in one scrape's result and plan the next, as the worker threads do; also for tests."""
        with self._wake:
            state = self._states.get(name)
            if state is None:
                return
            self._pending += self._memory.take_in(state, snapshot)
            state.scrapes += 1
            state.scrape_s = took_s if state.scrapes == 1 else 0.7 * state.scrape_s + 0.3 * took_s
            state.costs.append((self._steady(), took_s, snapshot.payload_bytes or 0))
            now = self._steady()
            state.due_s = max(state.due_s + self.pause_s(state.failures, state.scrape_s), now)
            heapq.heappush(self._heap, (state.due_s, name))
            self._wake.notify_all()

    def pause_s(self, failures: int, scrape_s: float) -> float:
        """Seconds between scrapes after ``failures`` in a row, or when a scrape takes long.

        The first two failures change nothing, so that a restart is seen at once; then the pause doubles, to
        at most a minute. A target never spends more than a fifth of its time answering us.
        """
        backoff = self.interval_s * 2.0 ** max(0, min(failures - 2, 8))
        wanted = max(backoff, scrape_s / MAX_DUTY)
        return max(self.interval_s, min(wanted, MAX_BACKOFF_S))

    def _keeper(self) -> None:
        while not self._stopping.wait(self.interval_s):
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            batch, self._pending = self._pending, []
        if self._keep is None or not batch:
            return
        try:
            self._keep(batch)
            self.problem = None
        except Exception as error:
            self.problem = f"readings could not be kept: {type(error).__name__}: {error}"

    def views(self) -> list[TargetView]:
        """Every target as it stands, in the order they were given."""
        with self._lock:
            return [self._view(state) for state in self._states.values()]

    def _view(self, state: TargetState) -> TargetView:
        pause = self.pause_s(state.failures, state.scrape_s)
        slowed = None
        if state.failures > 2:
            slowed = f"asked every {pause:.0f} s after {state.failures} failures in a row"
        elif pause > self.interval_s * 1.01:
            slowed = f"asked every {pause:.0f} s, because one answer takes {state.scrape_s:.1f} s"
        costs = list(state.costs)
        span = costs[-1][0] - costs[0][0] if len(costs) > 1 else 0.0
        later = costs[1:]
        return TargetView(
            name=state.target.name,
            demo=state.target.demo,
            snapshots=tuple(state.recent),
            last_ok=state.last_ok,
            failures=state.failures,
            interval_s=pause,
            slowed=slowed,
            load=Load(
                scrapes=state.scrapes,
                scrapes_per_s=len(later) / span if span > 0 else None,
                busy_share=sum(took for _, took, _ in later) / span if span > 0 else None,
                bytes_per_s=sum(size for _, _, size in later) / span if span > 0 else None,
            ),
        )

    @property
    def pasts(self) -> dict[str, Past]:
        """Target name -> what its server remembers, of the targets whose server does."""
        with self._lock:
            return {name: s.target.past for name, s in self._states.items() if s.target.past is not None}

    @property
    def names(self) -> list[str]:
        """The targets' names in the order they were given."""
        with self._lock:
            return list(self._states)

    def intervals(self, start_s: float, *, target: str | None = None) -> list[Interval]:
        """What the rings hold of every engine since ``start_s``, by target, engine and time."""
        with self._lock:
            return self._memory.intervals(start_s, target=target)

    def fine_since_s(self, step_s: float, *, target: str | None = None) -> float | None:
        """The moment from which every engine's memory has steps of at most ``step_s``; None before a
        scrape. Steps in which a target was down do not count: they are as long as the pauses between tries.
        """
        with self._lock:
            return self._memory.fine_since_s(step_s, target=target)

    @property
    def oldest_s(self) -> float | None:
        """Start of the oldest interval in memory; None before the first scrape."""
        with self._lock:
            return self._memory.oldest_s


def _jitter(name: str) -> float:
    """A share of the interval that is the target's own, so that scrapes spread out and stay spread.

    >>> 0.0 <= _jitter("http://a/metrics") < 1.0
    True
    """
    return (zlib.crc32(name.encode()) % 1000) / 1000.0
