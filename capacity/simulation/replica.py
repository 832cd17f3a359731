"""One engine: a block pool, a waiting line and a running batch, advanced step by step or over a stretch of
steps.

The rules (``rules_*.py``) decide what the coming step computes; this file carries it out, keeps the accounts
and jumps over decode-only steps in which nothing can change. Source of the step semantics: vLLM V1's
scheduler and engine core. Left out: the content of blocks (``block_pool``), more than one engine (``fleet``).
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from capacity.simulation import moves
from capacity.simulation.block_count import CountedPool
from capacity.simulation.cohort import DecodeCohort
from capacity.simulation.meters import Meter, Timeline
from capacity.simulation.prefix_pool import PrefixPool
from capacity.simulation.queues import FcfsQueue, PriorityQueue
from capacity.simulation.record import Event, Record
from capacity.simulation.sequence import GONE, RUNNING, SWAPPED, WAITING, Sequence
from capacity.simulation.settings import EngineSettings
from capacity.simulation.step_time import TICKS_PER_S, to_ticks

_S = float(TICKS_PER_S)
_JUST = TICKS_PER_S // 1_000_000
_BREATH = 2048


class Rules(Protocol):
    """Decides one step: fills ``chunks``, sets ``decodes``, ``held`` and ``steady`` of the engine, takes the
    blocks.
    """

    def schedule(self, engine: Replica) -> None: ...

    def refuses(self, engine: Replica, seq: Sequence) -> str | None: ...

    def close(self, engine: Replica) -> None: ...


class Replica:
    """One engine. Drive it with ``submit`` and ``advance``; read ``record`` and ``meter`` afterwards."""

    def __init__(
        self,
        settings: EngineSettings,
        rules: Rules,
        record: Record,
        *,
        number: int = 0,
        sharing: bool = False,
        timeline_interval: int = TICKS_PER_S,
    ) -> None:
        self.settings = settings
        self.rules = rules
        self.record = record
        self.number = number
        layout = settings.block_layout
        self.layout = layout
        self.sharing = sharing
        self.meter = Meter(total_blocks=settings.num_blocks, timeline=Timeline(interval=timeline_interval))
        self.pause_on_finish = False
        self.collect = False
        self.departed: list[Sequence] = []
        self.bugs: list[str] = []
        self.slowdown = 1
        self.reset(0)

    def reset(self, now: int) -> None:
        """An empty engine at ``now``; meters go on."""
        settings, layout = self.settings, self.layout
        self.pool: CountedPool = (PrefixPool if self.sharing else CountedPool)(settings.num_blocks, layout)
        self.cohort = DecodeCohort(layout)
        by_priority = settings.scheduler.scheduling_policy == "priority"
        self.waiting: FcfsQueue | PriorityQueue = PriorityQueue() if by_priority else FcfsQueue()
        self.swapped: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.leaving: list[Sequence] = []
        self.costs = settings.step_time.ticks
        self.swap_block_ticks = to_ticks(settings.swap.block_s) if settings.swap else 0
        self.host_free = settings.swap.host_blocks if settings.swap else 0
        self.backlog_tokens = 0
        self.now = now
        self.end: int | None = None
        self.steps = 0
        self.chunks: list[tuple[Sequence, int]] = []
        self.held: list[Sequence] | None = None
        self.decodes = False
        self.steady = False
        self.blocked_by = ""
        self.passes_over = False
        self.extra_ticks = 0
        self.last_decode_end = now
        self.fresh: list[tuple[int, int]] = []
        self.idle_since: int | None = None
        self.ramp = False

    # -- the outside ---------------------------------------------------------------------------------------------

    @property
    def used_blocks(self) -> int:
        return self.pool.total - self.pool.free

    @property
    def in_flight(self) -> int:
        """Requests inside: waiting, swapped out, running."""
        return self.waiting.count + len(self.running) + len(self.swapped)

    @property
    def idle(self) -> bool:
        return self.end is None and not self.running and not self.waiting.count and not self.swapped

    def refuses(self, seq: Sequence) -> str | None:
        """Why this engine can never serve the request, or None. Checked at the front door."""
        if seq.prompt < 1:
            return "empty_prompt"
        longest = self.settings.max_model_len
        if longest is not None and seq.prompt + seq.output > longest:
            return "exceeds_max_model_len"
        if self.layout.blocks(seq.prompt) > self.pool.total:
            return "prompt_exceeds_pool"
        if self.layout.blocks(seq.prompt + max(seq.output - 1, 0)) > self.pool.total:
            return "prompt_and_output_exceed_pool"
        scheduler = self.settings.scheduler
        if not scheduler.chunked and seq.prompt > scheduler.max_num_batched_tokens:
            return "prompt_exceeds_batch_tokens"
        return self.rules.refuses(self, seq)

    def submit(self, seq: Sequence, now: int) -> None:
        """A request joins the waiting line at ``now`` (at or after every time advanced to)."""
        if self.end is None and now > self.now:
            self.now = now
        seq.state = WAITING
        seq.target = seq.prompt
        self.backlog_tokens += seq.prompt
        self.waiting.push(seq)
        if self.waiting.count > self.meter.peak_waiting:
            self.meter.peak_waiting = self.waiting.count

    def abort(self, seq: Sequence, now: int, reason: str) -> None:
        """The client hangs up. A waiting request leaves at once, a running one when the step in progress
        ends.
        """
        if seq.state == RUNNING:
            self.leaving.append(seq)
            self.record.reason[seq.id] = self.record.reason_code(reason)
            if self.end is None:
                moves.leave_early(self)
        elif seq.state in (WAITING, SWAPPED):
            if seq.state == WAITING:
                self.waiting.drop(seq)
            else:
                self.swapped.remove(seq)
                self.host_free += seq.host_blocks
            if seq.first_token is None:
                self.backlog_tokens -= seq.prompt
            seq.state = GONE
            moves.gone(self, seq, now, reason)

    def advance(self, limit: int) -> bool:
        """Carry out every step that starts before ``limit`` and every result due before it.

        Returns True when it paused: because a request left (``pause_on_finish``), or for breath after many steps;
        call again to go on.
        """
        for _ in range(_BREATH):
            end = self.end
            if end is not None:
                if end >= limit:
                    return False
                self._complete(end)
                if self.pause_on_finish and self.departed:
                    return True
            elif not (self.running or self.waiting.count or self.swapped):
                return False
            if self.now >= limit:
                return False
            self._begin(limit)
        return True

    def close(self, until: int) -> None:
        """The run ends: a step in progress counts up to ``until``."""
        if self.end is not None and self.end > until:
            self.meter.cut(self.end - until, self.meter.total_blocks - self.pool.free, len(self.running))
        self.rules.close(self)

    # -- one step ------------------------------------------------------------------------------------------------

    def _begin(self, limit: int) -> None:
        """Schedule at ``now`` and set ``end``."""
        meter, cohort, pool, costs = self.meter, self.cohort, self.pool, self.costs
        now = self.now
        chunks = self.chunks
        chunks.clear()
        self.held = None
        self.steady = False
        self.extra_ticks = 0
        self.blocked_by = ""
        self.passes_over = False
        self.rules.schedule(self)
        decoding = cohort.n if self.decodes else 0
        context = cohort.context if decoding else 0
        if self.held:
            decoding -= len(self.held)
            context -= sum(seq.base + cohort.step + 1 for seq in self.held)
        total = pool.total
        steps = 1
        prefill = 0
        used = after = total - pool.free
        if chunks:
            pairs = 0
            for seq, size in chunks:
                prefill += size
                pairs += size * (2 * seq.computed + size)
            ticks = (
                costs.fixed
                + costs.prefill * prefill
                + costs.decode * decoding
                + costs.context * context
                + costs.pair * pairs // 2
            )
            meter.prefill_steps += 1
            if decoding:
                meter.mixed_steps += 1
            meter.prompt_tokens += prefill
        elif decoding:
            ticks = costs.fixed + costs.decode * decoding + costs.context * context
            if self.steady and ticks >= costs.least and not self.extra_ticks:
                steps = cohort.next_event()
                if steps > 1:
                    gap = (limit - now) // self.slowdown
                    if steps * ticks >= gap:
                        steps = min(steps, costs.steps_before(ticks=gap, decode=decoding, context=context))
                    first = cohort.blocks_due()
                    steps = cohort.steps_within(pool.free + first, steps)
                    if steps > 1:
                        pool.take(cohort.blocks_over(steps) - first)
                        after = total - pool.free
                        ticks = costs.decode_steps(steps=steps, decode=decoding, context=context)
        else:
            if self.blocked_by != "preempted":
                self._stalled()
            return
        if self.idle_since is not None:
            if now - self.idle_since >= meter.timeline.interval:
                meter.sample(self.idle_since, 0, 0, 0)
                meter.sample(now, 0, 0, 0)
            self.idle_since = None
        if ticks < costs.least:
            ticks = costs.least
        ticks = ticks * self.slowdown + self.extra_ticks
        self.steps = steps
        self.end = now + ticks
        meter.steps += steps
        meter.stretch(ticks, used, after, len(self.running))
        waiting = self.waiting.count + len(self.swapped)
        if waiting:
            if waiting > meter.peak_waiting:
                meter.peak_waiting = waiting
            meter.wait_ticks[self.blocked_by or "budget"] += ticks
            if self.passes_over:
                meter.passed_over_ticks += ticks
        self.ramp = steps > 1 and ticks >= meter.timeline.interval
        if self.ramp or now >= meter.timeline.next:
            meter.sample(now, len(self.running), waiting, used)
        if after > meter.peak_since:
            meter.peak_since = after

    def _stalled(self) -> None:
        """Requests wait, nothing runs and the head still does not fit: a fault of the rules, never of the
        load.
        """
        if not self.waiting.count and not self.swapped:
            return
        seq = self.swapped.popleft() if self.swapped else self.waiting.pop()
        if seq.state == SWAPPED:
            self.host_free += seq.host_blocks
        if seq.first_token is None:
            self.backlog_tokens -= seq.prompt
        seq.state = GONE
        self.bugs.append(f"request {seq.id} did not fit an engine with nothing running")
        moves.gone(self, seq, self.now, "never_fits")

    def _complete(self, now: int) -> None:
        """The step in progress ends at ``now``: tokens appear, requests finish, blocks come back."""
        self.now = now
        self.end = None
        cohort, meter = self.cohort, self.meter
        if self.decodes and cohort.n:
            steps = self.steps
            held = self.held
            if held:
                for seq in held:
                    cohort.hold(seq)
            decoding = cohort.n - len(held) if held else cohort.n
            self._gaps(now, steps, decoding, len(held) if held else 0)
            cohort.advance(steps)
            meter.output_tokens += decoding * steps
            if self.ramp:  # blocks grew over the stretch: the line's upper end, just before anybody leaves
                waiting = self.waiting.count + len(self.swapped)
                meter.sample(now - _JUST, len(self.running), waiting, self.used_blocks)
            if self.leaving:
                self._end_chunks(now)
                self.chunks.clear()
                moves.leave_early(self)
            heap = cohort.heap
            if heap and heap[0][0] <= cohort.step:
                done = cohort.pop_finished()
                if self.sharing and len(done) > 1:  # blocks come back, and are evicted later, in list order
                    done.sort(key=self.running.index)
                for seq in done:
                    moves.finish(self, seq, seq.prompt + seq.output - 1)
        if self.chunks:
            self._end_chunks(now)
        if self.leaving:
            moves.leave_early(self)
        if not self.running and not self.waiting.count:
            self.idle_since = now

    def _gaps(self, now: int, steps: int, decoding: int, held: int) -> None:
        """Times between tokens of the stretch that ends at ``now``."""
        gaps = self.meter.gaps
        last = self.last_decode_end
        self.last_decode_end = now
        if not self.fresh and not held:
            gaps.add((now - last) / _S / steps, decoding * steps)
            return
        before = decoding + held
        first_end = last if steps == 1 else None
        mean = (now - max([last, *(at for at, _ in self.fresh)])) / _S / steps
        for at, count in self.fresh:
            before -= count
            gaps.add((now - at) / _S if first_end is not None else mean, count)
            if steps > 1:
                gaps.add(mean, count * (steps - 1))
        if before > held:
            gaps.add((now - last) / _S / steps, (before - held) * steps)
        self.fresh = [(last, held)] if held else []

    def _end_chunks(self, now: int) -> None:
        for seq, size in self.chunks:
            if seq.state != RUNNING:
                continue
            seq.computed += size
            if seq.computed == seq.target and seq not in self.leaving:
                self.prefilling.remove(seq)
                self._token_after_prefill(seq, now)

    def _token_after_prefill(self, seq: Sequence, now: int) -> None:
        """A prompt (or a recomputed request) is done: its next token appears and it starts to decode."""
        record, cohort = self.record, self.cohort
        if seq.first_token is None:
            self.backlog_tokens -= seq.prompt
            if seq.output == 0:
                moves.finish(self, seq, seq.computed)
                return
            seq.first_token = now
            record.first_token_s[seq.id] = now / _S
            if record.log is not None:
                record.log.append(Event(now, "first_token", seq.id, 0, self.number))
        else:
            self.meter.gaps.add((now - (seq.last_token or now)) / _S, 1)
        if seq.preempted_at is not None:
            seq.preempted_ticks += now - seq.preempted_at
            seq.preempted_at = None
        self.meter.output_tokens += 1
        seq.generated += 1
        left = seq.output - seq.generated
        if left <= 0:
            moves.finish(self, seq, seq.computed)
            return
        if cohort.n == 0:
            self.last_decode_end = now
            self.fresh.clear()
        elif now != self.last_decode_end:
            self.fresh.append((now, 1))
        cohort.add(seq, seq.computed, left)
