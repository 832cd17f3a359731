"""vLLM V1's step: running requests first in list order, then the waiting line, within one token budget.

Source: vLLM 0.32's scheduler as described in docs/simulation.md. Left out: speculative tokens, LoRA and
encoder budgets, KV connectors.
"""

from __future__ import annotations

from capacity.simulation import moves
from capacity.simulation.replica import Replica
from capacity.simulation.sequence import Sequence
from capacity.simulation.settings import EngineSettings
from capacity.simulation.walk import walk, worst_goes

LOOK_AHEAD = 64
"""How far down the line ``head_of_line: skip`` looks for somebody who fits."""


class VllmV1:
    """Rules of the V1 scheduler for one engine."""

    def __init__(self, settings: EngineSettings) -> None:
        scheduler = settings.scheduler
        self.seats = scheduler.seats
        self.budget = scheduler.max_num_batched_tokens
        self.threshold = scheduler.long_prefill_token_threshold
        self.adaptive = scheduler.long_prefill_token_threshold_adaptive
        self.capped_alone = scheduler.long_prefill_cap_when_alone
        self.reserve = scheduler.scheduler_reserve_full_isl
        self.chunked = scheduler.chunked
        self.skips = scheduler.head_of_line == "skip"
        self.watermark = int((scheduler.watermark or 0.0) * settings.num_blocks)
        self.worst_first = worst_goes(settings)

    def refuses(self, engine: Replica, seq: Sequence) -> str | None:
        """Nothing beyond the front door's checks."""
        return None

    def close(self, engine: Replica) -> None:
        """Nothing to hand over at the end of a run."""

    def schedule(self, engine: Replica) -> None:
        """Form the coming step."""
        cohort, pool = engine.cohort, engine.pool
        engine.decodes = True
        budget = self.budget - cohort.n
        need = cohort.counts[cohort.step % cohort.block_size]
        cap = self._cap(engine) if self.threshold else 0
        if engine.prefilling:
            demands = self._demands(engine, budget, cap)
            if demands is None or need + demands[1] > pool.free:
                if walk(engine, budget=self.budget, cap=cap, worst_first=self.worst_first):
                    engine.blocked_by = "preempted"
                    return
                budget = self.budget - sum(size for _, size in engine.chunks)
                budget -= cohort.n - (len(engine.held) if engine.held else 0)
            else:
                pool.take(need + demands[1])
                for seq, size in demands[0]:
                    engine.chunks.append((seq, size))
                    if pool.caches and seq.prefix is not None:
                        pool.computed(seq, seq.computed + size)
                    budget -= size
        elif need > pool.free or budget < 0:
            if walk(engine, budget=self.budget, cap=cap, worst_first=self.worst_first):
                engine.blocked_by = "preempted"
                return
            budget = 0
        else:
            pool.take(need)
        if engine.swapped:
            budget = self._swap_in(engine, budget)
        if engine.waiting.count and not engine.swapped:
            self._admit(engine, budget, cap)
        elif engine.swapped:
            engine.blocked_by = "blocks"
        if not engine.chunks and engine.held is None:
            # decode only; whoever waits is blocked until somebody leaves or arrives
            engine.steady = True
        elif cap:
            self._count_lost_budget(engine, cap, budget)

    def _cap(self, engine: Replica) -> int:
        """Tokens of one prompt per step; 0 = no cap."""
        count = len(engine.running) + engine.waiting.count
        if count <= 1 and not self.capped_alone:
            return 0
        return max(self.threshold, self.budget // max(count, 1)) if self.adaptive else self.threshold

    def _count_lost_budget(self, engine: Replica, cap: int, budget: int) -> None:
        if engine.waiting.count:
            return
        left = self.budget - engine.cohort.n - sum(size for _, size in engine.chunks)
        wanted = sum(seq.target - seq.computed - size for seq, size in engine.chunks if size == cap)
        if left > 0 and wanted > 0:
            engine.meter.cap_lost_tokens += min(left, wanted)

    def _demands(
        self, engine: Replica, budget: int, cap: int
    ) -> tuple[list[tuple[Sequence, int]], int] | None:
        """Chunks of the prompts under way and their blocks, or None when only a walk in list order can tell."""
        layout = engine.layout
        parts: list[tuple[Sequence, int]] = []
        blocks = 0
        prefilling = engine.prefilling
        at_tail = engine.running[-1] is prefilling[-1] and (
            len(prefilling) == 1 or engine.running[-len(prefilling) :] == prefilling
        )
        for seq in prefilling:
            size = seq.target - seq.computed
            if cap and size > cap:
                size = cap
            if size > budget:
                if not at_tail or budget < 0:
                    return None
                size = budget
            if size <= 0:
                continue
            budget -= size
            parts.append((seq, size))
            blocks += layout.blocks(seq.computed + size) - layout.blocks(seq.computed)
        return parts, blocks

    def _swap_in(self, engine: Replica, budget: int) -> int:
        """Swapped requests come back before anybody new, as far as blocks and seats go."""
        while engine.swapped and budget > 0 and len(engine.running) < self.seats:
            seq = engine.swapped[0]
            need = engine.layout.blocks(seq.computed + 1)
            margin = self.watermark if engine.running else 0
            if need + margin > engine.pool.free:
                break
            engine.swapped.popleft()
            moves.swap_in(engine, seq)
            engine.pool.take(need - engine.layout.blocks(seq.computed))
            budget -= 1
        return budget

    def _admit(self, engine: Replica, budget: int, cap: int) -> None:
        """The waiting line, in order, until somebody does not fit."""
        waiting, pool, layout, running = engine.waiting, engine.pool, engine.layout, engine.running
        passed = False
        line = iter(waiting.first(LOOK_AHEAD)) if self.skips else None
        while True:
            if line is not None:
                seq = next(line, None)
                if seq is None:
                    break
            elif waiting.count:
                seq = waiting.peek()
            else:
                break
            if budget <= 0:
                engine.blocked_by = engine.blocked_by or "budget"
                break
            if len(running) >= self.seats:
                engine.blocked_by = engine.blocked_by or "seats"
                break
            found = idle = 0
            if pool.caches:
                found, idle = pool.hit_blocks(seq)
            hit_tokens = found * layout.block_size
            size = seq.target - hit_tokens
            if cap and size > cap:
                size = cap
            if size > budget:
                if (
                    not self.chunked and seq.target <= self.budget
                ):  # one grown past the budget comes in pieces
                    engine.blocked_by = "budget"
                    break
                size = budget
            need = layout.blocks(hit_tokens + size) - found
            whole = layout.blocks(seq.target) - found if self.reserve else need
            if whole + idle + (self.watermark if running else 0) > pool.free:
                engine.blocked_by = "blocks"
                passed = True
                if line is None:
                    break
                continue
            if line is None:
                waiting.pop()
            else:
                waiting.take(seq)
            if pool.caches:
                if not seq.preemptions:  # a resumed request's own blocks are no hits
                    engine.meter.queried_tokens += seq.target
                    engine.meter.hit_tokens += hit_tokens
                pool.pin(seq)
                pool.take(need)
                if seq.prefix is not None:
                    pool.computed(seq, hit_tokens + size)
            else:
                pool.take(need)
            moves.admit(engine, seq, hit_tokens, size)
            budget -= size
        if passed and not self.skips and waiting.count > 1:
            self._note_passed_over(engine)

    def _note_passed_over(self, engine: Replica) -> None:
        """The head waits for blocks; remember when somebody behind it would have fitted."""
        free = engine.pool.free - (self.watermark if engine.running else 0)
        waiting = engine.waiting
        second = None
        for index, seq in enumerate(waiting.first(3)):
            if index and engine.layout.blocks(seq.target) <= free:
                second = seq
        if second is not None:
            engine.passes_over = True
