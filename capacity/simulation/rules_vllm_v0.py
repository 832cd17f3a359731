"""vLLM V0's step (up to 0.8): whole prompts in steps of their own before any decode, a 1 % watermark, swap or
recompute.

Source: docs/simulation.md (the V0 scheduler). With chunked prefill on, V0 decodes first and fills up with
prompts: that is the V1 pass with V0's watermark. Left out: beam search, several sequences per request.
"""

from __future__ import annotations

from dataclasses import replace

from capacity.simulation import moves
from capacity.simulation.replica import Replica
from capacity.simulation.rules_vllm_v1 import VllmV1
from capacity.simulation.sequence import GONE, Sequence
from capacity.simulation.settings import EngineSettings
from capacity.simulation.walk import walk, worst_goes

WATERMARK = 0.01


class VllmV0:
    """Rules of the V0 scheduler for one engine."""

    def __init__(self, settings: EngineSettings) -> None:
        scheduler = settings.scheduler
        share = WATERMARK if scheduler.watermark is None else scheduler.watermark
        self.watermark = int(share * settings.num_blocks)
        self.seats = scheduler.seats
        self.budget = scheduler.max_num_batched_tokens
        self.worst_first = worst_goes(settings)
        self.mixed: VllmV1 | None = None
        if scheduler.chunked:
            self.mixed = VllmV1(replace(settings, scheduler=replace(scheduler, watermark=share)))

    def refuses(self, engine: Replica, seq: Sequence) -> str | None:
        """A prompt that would leave less than the watermark of an empty pool is ignored for ever."""
        if engine.pool.total - engine.layout.blocks(seq.prompt) < self.watermark:
            return "prompt_exceeds_pool"
        return None

    def close(self, engine: Replica) -> None:
        """Nothing to hand over at the end of a run."""

    def schedule(self, engine: Replica) -> None:
        """Prompts alone if any can start, else one decode step of everybody."""
        if self.mixed is not None:
            self.mixed.schedule(engine)
            return
        engine.decodes = False
        if not engine.swapped:
            self._prefill(engine)
            if engine.chunks:
                return
        engine.decodes = True
        pool, cohort = engine.pool, engine.cohort
        due = cohort.blocks_due()
        preempted = False
        if due > pool.free:
            preempted = walk(engine, budget=len(engine.running) + 1, cap=0, worst_first=self.worst_first)
        else:
            pool.take(due)
        if preempted:
            engine.blocked_by = "preempted"
            return
        self._swap_in(engine)
        engine.steady = engine.held is None

    def _prefill(self, engine: Replica) -> None:
        waiting, pool, layout = engine.waiting, engine.pool, engine.layout
        budget = self.budget
        while waiting.count:
            seq = waiting.peek()
            need = layout.blocks(seq.target)
            if pool.total - need < self.watermark:
                waiting.pop()  # grew past the watermark while it ran: V0 ignores it
                engine.backlog_tokens -= seq.prompt if seq.first_token is None else 0
                seq.state = GONE
                moves.gone(engine, seq, engine.now, "never_fits")
                continue
            if pool.free - need < self.watermark:
                engine.blocked_by = "blocks"
                return
            if len(engine.running) >= self.seats:
                engine.blocked_by = "seats"
                return
            if seq.target > budget and engine.chunks:
                engine.blocked_by = "budget"
                return
            waiting.pop()
            pool.take(need)
            moves.admit(engine, seq, 0, seq.target)
            budget -= seq.target

    def _swap_in(self, engine: Replica) -> None:
        pool, layout = engine.pool, engine.layout
        while engine.swapped and len(engine.running) < self.seats:
            seq = engine.swapped[0]
            held = layout.blocks(seq.computed)
            need = layout.blocks(seq.computed + 1)
            if pool.free - need < self.watermark and engine.running:
                engine.blocked_by = "blocks"
                return
            engine.swapped.popleft()
            moves.swap_in(engine, seq)
            pool.take(need - held)
