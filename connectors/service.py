"""The live side of one process: poller, history file and, without targets, the demonstration pool.

What it answers: what pages and API routes show; ``running()`` is the one instance, started by the server's
lifespan or by the first caller. Left out: drawing, verdicts' rules (diagnosis), the routes (api).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from capacity.intervals import Interval
from capacity.telemetry import TargetSnapshot
from connectors.demo_engine import DemoPool
from connectors.errors import ConnectorError
from connectors.history import History, HistoryError
from connectors.http import HttpClient
from connectors.live_view import LiveView, build
from connectors.moment import TAIL_INTERVALS, TAIL_S, metrics_of, view_at
from connectors.past import Past
from connectors.poller import Poller, PollTarget, TargetView
from connectors.scrape import client_for, scrape, snapshot_of
from connectors.targets import Settings, Target, load, visitor_target

T = TypeVar("T")
DEMO_INTERVAL_S = 2.0
INTERVAL_S = 5.0
SHARE_S = 1.5
DEMO_PAST_S, DEMO_PAST_STEP_S = 300.0, 5.0


class LiveService:
    """``start()`` opens the history file and begins polling; ``stop()`` ends every thread.

    A history file that cannot be opened is said in ``history_problem`` and live readings go on without it.
    ``demo`` None means: show the demonstration pool when there are no targets; ``demo_past_s`` is how much
    of its past is made up at its start.
    """

    def __init__(
        self,
        targets: Sequence[PollTarget] = (),
        *,
        history_path: str | None = None,
        interval_s: float | None = None,
        demo: bool | None = None,
        demo_replicas: int = 3,
        demo_speed: float = 1.0,
        demo_past_s: float = DEMO_PAST_S,
    ) -> None:
        self._targets = tuple(targets)
        self._history_path = history_path
        self._demo_replicas = demo_replicas
        self._demo_speed = demo_speed
        self._demo_past_s = demo_past_s
        self._demo_wanted = (not self._targets) if demo is None else demo
        every_s = interval_s or (DEMO_INTERVAL_S if self._demo_wanted else INTERVAL_S)
        self._lock = threading.RLock()
        self._shared: dict[Hashable, tuple[float, Any]] = {}
        self._share_locks: dict[Hashable, threading.Lock] = {}
        self._demo: DemoPool | None = None
        self._history: History | None = None
        self._history_error: str | None = None
        self.poller = Poller(interval_s=every_s, keep=self._keep)
        self.started = False
        self.settings = Settings()
        self.settings_problem: str | None = None

    def start(self) -> None:
        """Open, start, poll. A second call does nothing."""
        with self._lock:
            if self.started:
                return
            self.started = True
            try:
                self._history = History(self._history_path)
            except HistoryError as error:
                self._history_error = str(error)
            if self._demo_wanted:
                self._start_demo("calm")
            self._apply_targets()
            self.poller.start()
            # Where no lifespan stops it: DuckDB must not be called while the interpreter goes down.
            atexit.register(self.stop)

    def stop(self) -> None:
        """Stop polling, write what is left, close the file."""
        atexit.unregister(self.stop)
        with self._lock:
            self.poller.stop()
            if self._demo is not None:
                self._demo.stop()
                self._demo = None
            if self._history is not None:
                self._history.close()
            self.started = False

    def _keep(self, batch: list[Interval]) -> None:
        if self._history is not None:
            self._history.record(batch)

    def _start_demo(self, incident_name: str) -> None:
        pool = DemoPool(
            replicas=self._demo_replicas, incident_name="calm", speed=self._demo_speed, warm_up_s=60.0
        )
        past = list(pool.rehearse(self._demo_past_s, step_s=DEMO_PAST_STEP_S))
        pool.set_incident(incident_name)
        pool.start()
        self._demo = pool
        self._apply_targets()
        wall, steady = time.time(), time.monotonic()
        for index, target in enumerate(demo_targets(pool)):
            self.poller.backfill(
                target.name,
                (
                    snapshot_of(
                        texts[index].encode(),
                        target=target.name,
                        time_s=wall - age_s,
                        monotonic_s=steady - age_s,
                    )
                    for age_s, texts in past
                ),
            )

    def _apply_targets(self) -> None:
        targets = list(self._targets)
        if self._demo is not None:
            targets += demo_targets(self._demo)
        self.poller.set_targets(targets)

    def set_targets(self, targets: Sequence[PollTarget]) -> None:
        """Watch these from now on."""
        with self._lock:
            self._targets = tuple(targets)
            self._apply_targets()

    def add_target(self, address: str) -> str:
        """Watch what a visitor typed, where the operator allows that; the name it got. ConnectorError if
        not.
        """
        target = visitor_target(address, self.settings)
        with self._lock:
            if all(known.name != target.name for known in self._targets):
                self.set_targets([*self._targets, poll_target(target)])
        return target.name

    @property
    def has_targets(self) -> bool:
        return bool(self._targets)

    @property
    def demo(self) -> DemoPool | None:
        """The demonstration pool while it runs."""
        return self._demo

    def set_demo(self, *, on: bool, incident_name: str = "calm") -> None:
        """Start or stop the demonstration pool, or switch its incident. CapacityError for an unknown one."""
        with self._lock:
            if on and self._demo is None:
                self._start_demo(incident_name)
            elif on and self._demo is not None:
                self._demo.set_incident(incident_name)
                return
            elif not on and self._demo is not None:
                self._demo.stop()
                self._demo = None
            self._apply_targets()

    @property
    def history_problem(self) -> str | None:
        """Why nothing is being kept, or None."""
        if self._history is None:
            return self._history_error or "the history file is not open yet"
        return self._history.problem or self.poller.problem

    @property
    def history(self) -> History | None:
        return self._history

    def views(self) -> list[TargetView]:
        return self.poller.views()

    def view(self) -> LiveView:
        """The pool as it stands, built at most once per ``SHARE_S`` for all who ask."""
        return self.shared("view", lambda: build(self.poller.views(), now_s=time.time()))

    def view_at(self, at_s: float) -> LiveView:
        """The pool as it stood at a past moment, from what is kept of the minutes before it."""
        every_s = self.poller.interval_s
        found = self.window(at_s - max(TAIL_S, TAIL_INTERVALS * every_s), at_s, step_s=1.2 * every_s)
        return view_at(found, at_s=at_s, metrics=metrics_of(self.poller.views()))

    def window(
        self, start_s: float, end_s: float, *, points: int = 300, step_s: float | None = None
    ) -> list[Interval]:
        """Intervals of the current targets, by target, engine and time: memory where it is fine enough;
        before that what a target's Prometheus server remembers, or the history file.

        ``step_s`` is how fine they must be; left out, it follows from ``points``.
        """
        step_s = step_s or max((end_s - start_s) / points, 2.5 * self.poller.interval_s)
        borders = {name: self._border_s(name, start_s, end_s, step_s=step_s) for name in self.poller.names}
        older = self._older(start_s, borders, step_s=step_s, end_s=end_s)
        found: list[Interval] = []
        for name in borders:
            before = older.get(name, [])
            found += before
            since_s = max((i.end_s for i in before), default=start_s)
            found += [i for i in self.poller.intervals(since_s, target=name) if i.end_s <= end_s]
        return found

    def _border_s(self, name: str, start_s: float, end_s: float, *, step_s: float) -> float:
        fine_s = self.poller.fine_since_s(step_s, target=name)
        return end_s if fine_s is None else min(max(fine_s, start_s), end_s)

    def _older(
        self, start_s: float, borders: Mapping[str, float], *, step_s: float, end_s: float
    ) -> dict[str, list[Interval]]:
        """Target -> what is known of it between ``start_s`` and its border."""
        found: dict[str, list[Interval]] = {}
        wanted = {name: border_s for name, border_s in borders.items() if border_s > start_s + step_s}
        for name, past in self.poller.pasts.items():
            if name not in wanted:
                continue
            # One step into memory: its first interval has no increments yet.
            until_s = min(wanted[name] + step_s, end_s)
            if remembered := past.window(start_s, until_s, step_s=step_s):
                found[name] = remembered
        names = [name for name in wanted if name not in found]
        if names and self._history is not None:
            until_s = max(wanted[name] for name in names)
            points = max(1, round((until_s - start_s) / step_s))
            with contextlib.suppress(HistoryError):
                for one in self._history.window(start_s, until_s, points=points, targets=names):
                    if one.end_s <= wanted[one.target] + step_s:
                        found.setdefault(one.target, []).append(one)
        return found

    @property
    def past_problems(self) -> list[str]:
        """Why the past of a target cannot be read from its Prometheus server, one sentence each."""
        return [
            f"{name}: its past cannot be read from its server now: {past.problem}"
            for name, past in self.poller.pasts.items()
            if past.problem is not None
        ]

    def shared(self, key: Hashable, compute: Callable[[], T], *, for_s: float = SHARE_S) -> T:
        """``compute()`` once for all who ask within ``for_s``, so that ten browsers cost as much as one."""
        with self._lock:
            lock = self._share_locks.setdefault(key, threading.Lock())
        with lock:
            found = self._shared.get(key)
            now = time.monotonic()
            if found is None or now - found[0] >= for_s:
                found = (now, compute())
                self._shared[key] = found
                self._forget_shared(now)
        value: T = found[1]
        return value

    def _forget_shared(self, now: float) -> None:
        with self._lock:
            for key in [k for k, (at, _) in self._shared.items() if now - at > 60.0]:
                del self._shared[key]


def poll_target(target: Target) -> PollTarget:
    """A target as the poller asks it, with one HTTP session kept between scrapes."""
    clients: list[HttpClient] = []

    def once() -> TargetSnapshot:
        if not clients:
            clients.append(client_for(target))
        return scrape(target, client=clients[0])

    past = Past(target) if target.kind == "prometheus" else None
    return PollTarget(name=target.name, scrape=once, demo=target.demo, past=past)


def demo_targets(pool: DemoPool) -> list[PollTarget]:
    """The demonstration pool's URLs under names that stay the same when its ports change."""
    return [
        poll_target(Target(name=f"demo-{index}", url=url, demo=True)) for index, url in enumerate(pool.urls)
    ]


_running: list[LiveService] = []
_running_lock = threading.Lock()


def running() -> LiveService:
    """This process' service. Without a lifespan (a bare script run) the first caller starts it."""
    with _running_lock:
        if not _running:
            _running.append(_from_settings())
        service = _running[0]
    service.start()
    return service


def install(service: LiveService | None) -> None:
    """Make ``service`` the one that ``running()`` answers (tests, lifespan); None forgets it."""
    with _running_lock:
        _running[:] = [] if service is None else [service]


def _from_settings() -> LiveService:
    try:
        settings = load()
    except ConnectorError as error:
        service = LiveService(demo=False)
        service.settings_problem = str(error)
        return service
    service = LiveService([poll_target(target) for target in settings.targets])
    service.settings = settings
    return service


@contextlib.asynccontextmanager
async def lifespan(_app: object) -> AsyncIterator[dict[str, object]]:
    """For the server's ``lifespan``: polling starts with the process and ends with it."""
    service = running()
    try:
        yield {"live": service}
    finally:
        install(None)
        await asyncio.to_thread(service.stop)
