"""One run: requests arrive, policies decide, a router picks an engine, engines advance, clients give up or
come back.

Events (arrivals, retries, time-outs, failures, checks) are taken in order of time; between two of them the
engines advance by themselves. Same requests, settings and seed: same run. Left out: network time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count

import numpy as np

from capacity.simulation import moves
from capacity.simulation.admission import Policy, PoolView, Refusal
from capacity.simulation.clients import Client
from capacity.simulation.fleet import Dispatcher, FleetSettings, Health
from capacity.simulation.record import FINISHED, REJECTED, Event, Record
from capacity.simulation.replica import Replica
from capacity.simulation.rules import make_rules
from capacity.simulation.run import ClosedLoop, Run, Stopped
from capacity.simulation.sequence import GONE, WAITING, Prefix
from capacity.simulation.sequence import Sequence as Live
from capacity.simulation.settings import EngineSettings
from capacity.simulation.step_time import TICKS_PER_S, to_ticks
from capacity.workload import Requests

END = 1 << 200


class Simulation:
    """Set up with settings, then ``run``. ``progress`` is called again and again with the share of requests that
    are through (answered, refused, given up) and may return False to cancel."""

    def __init__(
        self,
        settings: EngineSettings,
        requests: Requests,
        *,
        seed: int = 0,
        policies: Sequence[Policy] = (),
        client: Client | None = None,
        fleet: FleetSettings | None = None,
        closed_loop: ClosedLoop | None = None,
        log: bool = False,
        until_s: float | None = None,
        progress: Callable[[float], bool] | None = None,
    ) -> None:
        self.settings = settings
        self.requests = requests
        self.policies = tuple(policies)
        self.client = client or Client()
        self.fleet = fleet or FleetSettings()
        self.closed_loop = closed_loop
        self.until = END if until_s is None else to_ticks(until_s)
        self.progress = progress
        self.rng = random.Random(seed)
        self.record = Record(len(requests), log=log)
        self.sharing = settings.enable_prefix_caching and settings.block_layout.is_plain
        span = float(requests.arrival_s[-1] - requests.arrival_s[0]) if len(requests) else 0.0
        self.interval = max(to_ticks(span / 1000), to_ticks(0.01))
        self.engines: list[Replica] = []
        self.up: list[Replica] = []
        self.dispatcher = Dispatcher(self.fleet.router, self.rng)
        self.health = Health(self.fleet.breaker)
        self.events: list[tuple[int, int, str, object]] = []
        self.sequence, self.horizon = 0, END
        self.refusals: dict[str, int] = {}
        self.retries = self.notices = 0
        self.started: list[float] = []
        self.where: dict[tuple[int, int], Replica] = {}
        self.next_request = 0
        self.cancelled = False
        self.starting = 0
        self.watches = bool(self.policies) or closed_loop is not None or self.fleet.breaker is not None
        limits = (self.client.timeout_s, self.client.patience_s, requests.deadline_s)
        self.tracks = bool(self.fleet.failures) or any(limit is not None for limit in limits)
        self.arrival_s = np.array(requests.arrival_s, dtype=float)
        self.first_ticks = to_ticks(float(self.arrival_s[0])) if len(requests) else 0
        if closed_loop is not None:
            self.arrival_s[:] = np.inf  # known when it is sent
        for _ in range(self.fleet.replicas):
            self._start_engine()

    def run(self) -> Run:
        """Carry the run out."""
        for failure in self.fleet.failures:
            self._push(to_ticks(failure.at_s), "fail", failure)
        if self.fleet.autoscale:
            self._push(to_ticks(self.fleet.autoscale.check_s), "check", None)
        try:
            if self.closed_loop:
                self._run_closed_loop()
            else:
                self._run_open()
        except Stopped:
            self.cancelled = True
        now = max([engine.now for engine in self.engines], default=0)
        for engine in self.engines:
            engine.close(self.until)
            if engine.idle:
                engine.meter.sample(engine.now, 0, 0, 0)
        return Run(
            requests=self.requests,
            record=self.record,
            engines=self.engines,
            refusals=self.refusals,
            retries=self.retries,
            end_s=now / TICKS_PER_S,
            cancelled=self.cancelled,
            ejections=self.health.ejections,
            notices=self.notices,
            started=self.started,
            arrival_s=self.arrival_s,
            until_s=None if self.until == END else self.until / TICKS_PER_S,
        )

    def _run_open(self) -> None:
        requests = self.requests
        total = len(requests)
        chunk = 1 << 10
        plain = not (self.policies or self.tracks or self.watches or self.fleet.autoscale)
        simple = plain and len(self.engines) == 1
        for first in range(0, total, chunk):
            last = min(first + chunk, total)
            ticks = [round(at * TICKS_PER_S) for at in self.arrival_s[first:last].tolist()]
            prompts = requests.prompt_tokens[first:last].tolist()
            outputs = requests.output_tokens[first:last].tolist()
            ranks = requests.priority[first:last].tolist()
            for offset in range(last - first):
                at = ticks[offset]
                if at > self.until:
                    self._advance(self.until)
                    return
                number = first + offset
                live = Live(
                    number, at, prompts[offset], outputs[offset], ranks[offset], *self._shares(number)
                )
                if simple:
                    engine = self.up[0]
                    while engine.advance(at):
                        self._pulse()
                    reason = engine.refuses(live)
                    if reason is None:
                        engine.submit(live, at)
                        continue
                    self._refuse(live, Refusal(400, reason), at)
                else:
                    self._until(at)
                    self._arrive(live, at)
            self._pulse()
        self._until(self.until)

    def _until(self, at: int) -> None:
        """Take every event before ``at`` and advance the engines to it."""
        events, self.horizon = self.events, at
        while events and events[0][0] <= at:
            if at == self.until and self._over():
                break
            when, order, kind, what = heappop(events)
            self._advance(when)
            self._handle(when, kind, what)
            if order % 512 == 0:
                self._pulse()
        self._advance(at)

    def _over(self) -> bool:
        """Nothing is left but checks that would repeat for ever."""
        return self._idle() and all(kind in ("check", "timeout") for _, _, kind, _ in self.events)

    def _idle(self) -> bool:
        return all(engine.idle for engine in self.engines)

    def _advance(self, at: int) -> None:
        for engine in self.engines:
            while engine.advance(at):
                self._pulse()
            if engine.departed:
                self._notice(engine)

    def _pulse(self) -> None:
        """Tell how far the run is; raises Stopped when it is not wanted any more."""
        if self.progress is None:
            return
        through = self.record.closed + sum(engine.meter.finished for engine in self.engines)
        if not self.progress(min(through / max(len(self.requests), 1), 1.0)):
            raise Stopped

    def _run_closed_loop(self) -> None:
        """Users send, wait, think, send; engines pause whenever somebody leaves."""
        loop = self.closed_loop
        assert loop is not None
        for _ in range(min(loop.users, len(self.requests))):
            self._next_of_loop(self.first_ticks)
        for engine in self.engines:
            engine.pause_on_finish = True
        for turn in count(1):
            if turn % 512 == 0:
                self._pulse()
            at = self.events[0][0] if self.events else END
            busy = [engine for engine in self.engines if not engine.idle]
            ahead = min(busy, key=lambda engine: engine.end or engine.now, default=None)
            limit = min(at, self.until)
            mark = END if ahead is None else ahead.end if ahead.end is not None else ahead.now
            if ahead is not None and mark < limit:
                ahead.advance(limit if len(busy) == 1 else mark + 1)
                if ahead.departed:
                    self._notice(ahead)
                continue
            if at == END or at > self.until or (not busy and self._over()):
                return
            when, _, kind, what = heappop(self.events)
            self._handle(when, kind, what)

    def _push(self, at: int, kind: str, what: object) -> None:
        self.sequence += 1
        heappush(self.events, (at, self.sequence, kind, what))

    def _handle(self, now: int, kind: str, what: object) -> None:
        if kind == "arrive":
            assert isinstance(what, Live)
            self._arrive(what, now)
        elif kind == "timeout":
            assert isinstance(what, tuple)
            live, why = what
            self._give_up(live, why, now)
        elif kind == "fail":
            self._fail(what.replica, what.restart_s, now)  # type: ignore[attr-defined]
        elif kind == "start":
            self._start_engine(now)
        elif kind == "back":
            assert isinstance(what, Replica)
            self.up.append(what)
            self.up.sort(key=lambda engine: engine.number)
        elif kind == "check":
            self._check_scale(now)

    def _shares(self, number: int) -> tuple[Prefix | None, int | None]:
        """Prefix and session of a request."""
        requests = self.requests
        keys = requests.prefixes[number] if requests.prefixes is not None and self.sharing else None
        return (
            Prefix(keys, requests.prefix_key_tokens) if keys else None,
            None if requests.sessions is None else int(requests.sessions[number]),
        )

    def _next_of_loop(self, at: int) -> None:
        number = self.next_request
        if number >= len(self.requests):
            return
        self.next_request += 1
        requests = self.requests
        self.arrival_s[number] = at / TICKS_PER_S
        prompt, output = int(requests.prompt_tokens[number]), int(requests.output_tokens[number])
        live = Live(number, at, prompt, output, int(requests.priority[number]), *self._shares(number))
        self._push(at, "arrive", live)

    def _arrive(self, live: Live, now: int) -> None:
        """The front door: what can never run, then the policies in order, then the router."""
        if not self.up:
            self._refuse(live, Refusal(503, "no_replica"), now)
            return
        reason = self.up[0].refuses(live)
        if reason is not None:
            self._refuse(live, Refusal(400, reason), now)
            return
        now_s = now / TICKS_PER_S
        if self.policies:
            view = PoolView(self.up)
            for policy in self.policies:
                refusal = policy.decide(view, live, now_s)
                if refusal is not None:
                    self._refuse(live, refusal, now)
                    return
            for policy in self.policies:
                policy.entered(live, now_s)
        engine = self.dispatcher.pick(self.health.allowed(self.up, now_s), live)
        engine.submit(live, now)
        if self.tracks:
            self.where[live.id, live.attempt] = engine
            client = self.client
            if client.timeout_s is not None:
                self._push(now + to_ticks(client.timeout_s), "timeout", (live, "timeout"))
            if client.patience_s is not None:
                self._push(now + to_ticks(client.patience_s), "timeout", (live, "impatient"))
            if self.requests.deadline_s is not None:
                limit = float(self.requests.deadline_s[live.id])
                if np.isfinite(limit):
                    self._push(now + to_ticks(limit), "timeout", (live, "deadline"))

    def _refuse(self, live: Live, refusal: Refusal, now: int) -> None:
        self.refusals[refusal.reason] = self.refusals.get(refusal.reason, 0) + 1
        live.state = GONE
        meter = (self.up or self.engines)[0].meter
        meter.rejected += 1
        if refusal.status != 400 and self._comes_back(live, refusal.retry_after_s, now):
            return
        self.record.close(live.id, REJECTED, refusal.reason, now)
        if self.record.log is not None:
            self.record.log.append(Event(now, "reject", live.id, refusal.status))
        if self.closed_loop:
            self._next_of_loop(now + max(to_ticks(self.closed_loop.think_s), 1))

    def _comes_back(self, live: Live, retry_after_s: float | None, now: int) -> bool:
        delay = self.client.delay_s(live.attempt, retry_after_s, self.rng)
        if delay is None:
            return False
        self.retries += 1
        record = self.record
        record.attempts[live.id] += 1
        record.scheduled_s[live.id] = record.first_token_s[live.id] = float("nan")
        at = now + max(to_ticks(delay), 1)
        self._push(at, "arrive", live.again(at, live.attempt + 1))
        if record.log is not None:
            record.log.append(Event(now, "retry", live.id, live.attempt + 1))
        return True

    def _give_up(self, live: Live, why: str, now: int) -> None:
        if live.state == GONE or (why.startswith("impatient") and live.first_token is not None):
            return
        longer = self.client.queueing_patience_s
        if why == "impatient" and longer is not None and live.state == WAITING:
            self.notices += 1
            self._push(max(live.arrival + to_ticks(longer), now), "timeout", (live, "impatient_in_line"))
            return
        engine = self.where.pop((live.id, live.attempt), None)
        if engine is None:
            return
        if self.client.retry_on_timeout and why != "deadline":
            self._comes_back(live, None, now)
        engine.abort(live, now, why)

    def _notice(self, engine: Replica) -> None:
        """Requests that left an engine: tell policies and breaker, let closed-loop users go on."""
        departed, engine.departed = engine.departed, []
        for live in departed:
            now = engine.now
            record = self.record
            answered = record.outcome[live.id] == FINISHED and live.attempt == record.attempts[live.id]
            e2e_s = (now - live.arrival) / TICKS_PER_S if answered else None
            for policy in self.policies:
                policy.left(live, now / TICKS_PER_S, e2e_s)
            if e2e_s is not None and self.fleet.breaker:
                self.health.seen(engine.number, e2e_s / max(live.output, 1), now / TICKS_PER_S)
            if self.closed_loop:
                self._next_of_loop(now + to_ticks(self.closed_loop.think_s))

    def _start_engine(self, now: int = 0) -> None:
        number = len(self.engines)
        engine = Replica(
            self.settings,
            make_rules(self.settings),
            self.record,
            number=number,
            sharing=self.sharing,
            timeline_interval=self.interval,
        )
        engine.slowdown = self.fleet.slowdown.get(number, 1)
        engine.collect = self.watches
        engine.pause_on_finish = self.closed_loop is not None
        engine.now = now
        self.engines.append(engine)
        self.up.append(engine)
        if now:
            self.starting -= 1
            self.started.append(now / TICKS_PER_S)

    def _fail(self, number: int, restart_s: float | None, now: int) -> None:
        engine = self.engines[number]
        if engine not in self.up:
            return
        self.up.remove(engine)
        lost = moves.fail(engine, now)
        if restart_s is not None:
            self._push(now + to_ticks(restart_s), "back", engine)
        for live in lost:
            for policy in self.policies:
                policy.left(live, now / TICKS_PER_S, None)
            self._arrive(live.again(live.arrival, live.attempt), now)

    def _check_scale(self, now: int) -> None:
        scale = self.fleet.autoscale
        assert scale is not None
        view = PoolView(self.up)
        if (
            scale.crowded(view.waiting, view.kv_usage, len(self.up))
            and len(self.up) + self.starting < scale.max_replicas
        ):
            self.starting += 1
            self._push(now + to_ticks(scale.start_delay_s), "start", None)
        step, ahead = to_ticks(scale.check_s), min(self.horizon, self.events[0][0] if self.events else END)
        times = (
            max((ahead - now) // step, 1) if self._idle() else 1
        )  # idle engines: nothing to see before that
        self._push(now + times * step, "check", None)
