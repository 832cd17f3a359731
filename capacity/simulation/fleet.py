"""Several engines behind a router: who gets the next request, which engine is left out, and when another one
starts.

Source: the usual router policies (round robin, least loaded, affinity, two random choices). Left out: network
latency.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal, get_args

from capacity.simulation.replica import Replica
from capacity.simulation.sequence import Sequence
from capacity.simulation.step_time import to_ticks
from capacity.workload import choice, number

Router = Literal["round_robin", "least_loaded", "session_affinity", "prefix_affinity", "power_of_two"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Replica ``replica`` (from 0) dies at ``at_s``; its requests are sent to the others; back ``restart_s``
    later.
    """

    replica: int
    at_s: float
    restart_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """Ejects an engine whose seconds per output token are ``factor`` x the median of the others, for
    ``eject_s``.
    """

    factor: float = 2.0
    eject_s: float = 30.0
    min_answers: int = 10

    def __post_init__(self) -> None:
        number("fleet.breaker.factor", self.factor, 1, 1e6)
        number("fleet.breaker.eject_s", self.eject_s, 0, 1e9)
        number("fleet.breaker.min_answers", self.min_answers, 1, 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscale:
    """Every ``check_s``: more than ``waiting_per_replica`` waiting per engine (or KV use over
    ``kv_threshold``) starts one more, up to ``max_replicas``, ready ``start_delay_s`` later."""

    max_replicas: int = 4
    waiting_per_replica: float = 5.0
    kv_threshold: float = 0.9
    start_delay_s: float = 60.0
    check_s: float = 5.0

    def __post_init__(self) -> None:
        number("fleet.autoscale.max_replicas", self.max_replicas, 1, 1000)
        number("fleet.autoscale.waiting_per_replica", self.waiting_per_replica, 0, 1e9)
        number("fleet.autoscale.kv_threshold", self.kv_threshold, 0, 1)
        number("fleet.autoscale.start_delay_s", self.start_delay_s, 0, 1e9)
        number("fleet.autoscale.check_s", self.check_s, 0.01, 1e6)

    def crowded(self, waiting: int, kv_usage: float, engines: int) -> bool:
        """Whether one more is wanted."""
        return waiting > self.waiting_per_replica * max(engines, 1) or kv_usage > self.kv_threshold

    def next_check(self, now: int, ahead: int) -> int:
        """The next tick of a check, or the last one up to ``ahead`` when nothing can happen before it."""
        step = to_ticks(self.check_s)
        return now + max((ahead - now) // step, 1) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Engines and router. ``slowdown``: replica number -> factor on its step time (whole number, 1 = none)."""

    replicas: int = 1
    router: Router = "round_robin"
    slowdown: dict[int, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    breaker: Breaker | None = None
    autoscale: Autoscale | None = None

    def __post_init__(self) -> None:
        number("fleet.replicas", self.replicas, 1, 1000)
        choice("fleet.router", self.router, get_args(Router))
        for replica, factor in self.slowdown.items():
            number("fleet.slow_replica.replica", replica, 0, self.replicas - 1)
            number("fleet.slow_replica.factor", factor, 1, 1000)
        for failure in self.failures:
            number("fleet.failures.replica", failure.replica, 0, self.replicas - 1)
            number("fleet.failures.at_s", failure.at_s, 0, 1e9)
            if failure.restart_s is not None:
                number("fleet.failures.restart_s", failure.restart_s, 0, 1e9)


def load(engine: Replica) -> tuple[float, int]:
    """Waiting first, then the share of blocks in use and promised to the line."""
    return engine.waiting.count + len(engine.swapped) + engine.used_blocks / engine.pool.total, engine.number


class Dispatcher:
    """Picks an engine for each request."""

    def __init__(self, router: Router, rng: random.Random) -> None:
        self.router = router
        self.rng = rng
        self.turn = 0
        self.homes: dict[object, int] = {}

    def pick(self, engines: list[Replica], seq: Sequence) -> Replica:
        """One of ``engines`` (not empty)."""
        if len(engines) == 1:
            return engines[0]
        if self.router == "round_robin":
            self.turn += 1
            return engines[(self.turn - 1) % len(engines)]
        if self.router == "power_of_two":
            return min(self.rng.sample(engines, 2), key=load)
        if self.router == "session_affinity" and seq.session is not None:
            return engines[seq.session % len(engines)]
        if self.router == "prefix_affinity" and seq.prefix is not None and seq.prefix.keys:
            return self._home(engines, seq.prefix.keys[0])
        return min(engines, key=load)

    def _home(self, engines: list[Replica], key: object) -> Replica:
        """The engine that saw this prefix last, unless its line is much longer than the shortest."""
        best = min(engines, key=load)
        home = next((engine for engine in engines if engine.number == self.homes.get(key)), None)
        if home is None or home.waiting.count > best.waiting.count + 8:
            home = best
        self.homes[key] = home.number
        return home


class Health:
    """Seconds per output token of each engine (a running mean) and who is ejected until when."""

    def __init__(self, breaker: Breaker | None) -> None:
        self.breaker = breaker
        self.pace: dict[int, float] = {}
        self.answers: dict[int, int] = {}
        self.until_s: dict[int, float] = {}
        self.ejections = 0

    def seen(self, number: int, seconds_per_token: float, now_s: float) -> None:
        """An answer came back; may eject its engine."""
        breaker = self.breaker
        if breaker is None:
            return
        before = self.pace.get(number, seconds_per_token)
        self.pace[number] = before + 0.1 * (seconds_per_token - before)
        self.answers[number] = self.answers.get(number, 0) + 1
        others = sorted(pace for other, pace in self.pace.items() if other != number)
        if not others or self.answers[number] < breaker.min_answers or self.until_s.get(number, -1.0) > now_s:
            return
        if self.pace[number] > breaker.factor * others[len(others) // 2]:
            self.until_s[number] = now_s + breaker.eject_s
            self.ejections += 1
            self.answers[number] = 0
            del self.pace[number]

    def allowed(self, engines: list[Replica], now_s: float) -> list[Replica]:
        """Engines that are not ejected; all of them when everybody is (fail open)."""
        if not self.until_s:
            return engines
        fit = [engine for engine in engines if self.until_s.get(engine.number, -1.0) <= now_s]
        return fit or engines
