"""A plain engine with the same rules as the fast one: every request, every step, every block by itself.

Slow and simple on purpose; the tests compare its event log with the fast engine's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from capacity.simulation.block_pool import BlockPool
from capacity.simulation.settings import EngineSettings


@dataclass(eq=False)
class Request:
    id: int
    arrival: int
    prompt: int
    output: int
    priority: int = 0
    prefix: tuple | None = None
    prefix_tokens: int = 0
    generated: int = 0
    computed: int = 0
    preemptions: int = 0
    swapped_blocks: int = 0
    decoding: bool = False

    @property
    def target(self) -> int:
        return self.prompt + self.generated


@dataclass
class PlainEngine:
    settings: EngineSettings
    sharing: bool = False
    events: list = field(default_factory=list)
    steps: int = 0
    recomputed: int = 0
    peak: int = 0

    def __post_init__(self) -> None:
        self.pool = BlockPool(num_blocks=self.settings.num_blocks, block_size=self.settings.block_size)
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.swapped: list[Request] = []
        self.lost: dict[int, int] = {}
        self.host_free = self.settings.swap.host_blocks if self.settings.swap else 0

    # block names: shared ones by key and place, the rest by request and place
    def hashes(self, request: Request, tokens: int) -> list:
        size = self.settings.block_size
        names = []
        for index in range(tokens // size):
            end = (index + 1) * size
            if request.prefix and end <= min(len(request.prefix) * request.prefix_tokens, request.prompt):
                key = request.prefix[(end - 1) // request.prefix_tokens]
                names.append(("shared", key, index))
            else:
                names.append(("own", request.id, index))
        return names

    def cap(self, everybody: int) -> int:
        scheduler = self.settings.scheduler
        cap = scheduler.long_prefill_token_threshold
        if not cap:
            return 1 << 60
        if everybody <= 1 and not scheduler.long_prefill_cap_when_alone:
            return 1 << 60
        if scheduler.long_prefill_token_threshold_adaptive:
            cap = max(cap, scheduler.max_num_batched_tokens // max(everybody, 1))
        return cap

    def take(self, request: Request, tokens: int) -> None:
        size = self.settings.block_size
        self.pool.grow(request.id, tokens)
        if self.sharing:  # while decoding, only blocks that have just become full get a name
            names = self.hashes(request, tokens)
            self.pool.name(request.id, names, start=request.computed // size if request.decoding else 0)

    def run(self, requests: list[Request], max_steps: int = 200_000) -> list:
        pending = sorted(requests, key=lambda request: (request.arrival, request.id))
        now = 0
        while pending or self.running or self.waiting or self.swapped:
            if not (self.running or self.waiting or self.swapped):
                now = max(now, pending[0].arrival)
            while pending and pending[0].arrival <= now:
                self.push(pending.pop(0))
            now = self.step(now)
            self.steps += 1
            assert self.steps < max_steps, "endless run"
            self.pool.check()
        return self.events

    def push(self, request: Request) -> None:
        self.waiting.append(request)
        self.sort()

    def sort(self) -> None:
        if self.settings.scheduler.scheduling_policy == "priority":
            self.waiting.sort(key=lambda request: (request.priority, request.arrival, request.id))

    def preempt(self, victim: Request, now: int) -> int:
        """Returns ticks of transfer."""
        mode = self.settings.preemption_mode
        victim.preemptions += 1
        self.events.append((now, "preempt", victim.id))
        self.running.remove(victim)
        self.pool.release(victim.id)
        decoding, victim.decoding = victim.decoding, False
        if mode == "abort":
            self.events.append((now, "abort", victim.id))
            return 0
        if mode == "swap" and decoding:
            blocks = -(-victim.computed // self.settings.block_size)
            if blocks <= self.host_free:
                self.host_free -= blocks
                victim.swapped_blocks = blocks
                victim.decoding = True
                self.swapped.insert(0, victim)
                return blocks * round(self.settings.swap.block_s * 10**15)
        self.lost[victim.id] = victim.computed
        victim.computed = 0
        self.waiting.insert(0, victim)
        self.sort()
        return 0

    def step(self, now: int) -> int:
        scheduler = self.settings.scheduler
        pool = self.pool
        budget = scheduler.max_num_batched_tokens
        seats = scheduler.seats
        cap = self.cap(len(self.running) + len(self.waiting))
        watermark = int((scheduler.watermark or 0) * self.settings.num_blocks)
        by_priority = scheduler.scheduling_policy == "priority"
        given: dict[Request, int] = {}
        transfer = 0
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            size = min(request.target - request.computed, cap, budget)
            gone = False
            while pool.need(request.id, request.computed + size) > pool.free_blocks:
                if by_priority or self.settings.preemption_mode == "abort":
                    victim = max(self.running, key=lambda r: (r.priority, r.arrival, r.id))
                else:
                    victim = self.running[-1]
                place = self.running.index(victim)
                budget += given.pop(victim, 0)
                transfer += self.preempt(victim, now)
                preempted = True
                if victim is request:
                    gone = True
                    break
                if place < index:
                    index -= 1
            if gone:
                break
            self.take(request, request.computed + size)
            given[request] = size
            budget -= size
            index += 1
        if not preempted:
            while self.swapped and budget > 0 and len(self.running) < seats:
                request = self.swapped[0]
                margin = watermark if self.running else 0
                if -(-(request.computed + 1) // self.settings.block_size) + margin > pool.free_blocks:
                    break
                self.swapped.pop(0)
                self.host_free += request.swapped_blocks
                transfer += request.swapped_blocks * round(self.settings.swap.block_s * 10**15)
                self.events.append((now, "resume", request.id))
                self.running.append(request)
                self.take(request, request.computed + 1)
                given[request] = 1
                budget -= 1
            if not self.swapped:
                self.admit(now, budget, seats, cap, watermark, given)
        if not given:
            if preempted:  # the engine forms the next step at once
                self.steps -= 1
                return now
            raise AssertionError("nothing could be scheduled")
        end = now + self.duration(given) + transfer
        self.peak = max(self.peak, pool.used_blocks)
        for request, size in given.items():
            request.computed += size
            if request.computed == request.target:
                if request.output == 0:
                    self.finish(request, end)
                    continue
                request.generated += 1
                request.decoding = True
                if request.generated == 1:
                    self.events.append((end, "first_token", request.id))
                if request.generated == request.output:
                    self.finish(request, end)
        return end

    def admit(self, now: int, budget: int, seats: int, cap: int, watermark: int, given: dict) -> None:
        pool, scheduler = self.pool, self.settings.scheduler
        for request in list(self.waiting):
            if budget <= 0 or len(self.running) >= seats:
                break
            hits: list[int] = []
            if self.sharing:
                hits = pool.cached(self.hashes(request, request.target - 1))
            known = len(hits) * self.settings.block_size
            size = min(request.target - known, cap)
            if size > budget:
                if not scheduler.chunked and request.target <= scheduler.max_num_batched_tokens:
                    break
                size = budget
            tokens = request.target if scheduler.scheduler_reserve_full_isl else known + size
            whole = -(-tokens // self.settings.block_size) - len(hits)
            margin = watermark if self.running else 0
            if whole + pool.idle_among(hits) + margin > pool.free_blocks:
                if scheduler.head_of_line == "skip":
                    continue
                break
            self.waiting.remove(request)
            pool.share(request.id, hits)
            request.computed = known
            self.take(request, known + size)
            self.recomputed += max(self.lost.pop(request.id, 0) - known, 0)
            self.events.append((now, "resume" if request.preemptions else "admit", request.id))
            self.running.append(request)
            given[request] = size
            budget -= size

    def duration(self, given: dict) -> int:
        costs = self.settings.step_time.ticks
        prefill = decode = context = pairs = 0
        for request, size in given.items():
            if request.decoding:
                decode += 1
                context += request.computed + 1
            else:
                prefill += size
                pairs += size * (2 * request.computed + size)
        return costs.step(prefill=prefill, pairs=pairs, decode=decode, context=context)

    def finish(self, request: Request, now: int) -> None:
        self.events.append((now, "finish", request.id))
        self.running.remove(request)
        self.pool.release(request.id)
