"""SGLang's step: prefill batches before decode, admitted against a reservation that shrinks as decoding goes
well.

Source: docs/simulation.md (new-token ratio, retraction). Left out: radix-tree matching below whole prefix
keys, the longest-prefix order of the waiting line, mixed chunks.
"""

from __future__ import annotations

from capacity.simulation import moves
from capacity.simulation.replica import Replica
from capacity.simulation.sequence import Sequence
from capacity.simulation.settings import EngineSettings

CLIP = 4096
START_RATIO = 0.7
FLOOR_FACTOR = 0.14
DECAY_STEPS = 600
RETRACT_STEPS = 20


class Sglang:
    """Rules of SGLang's scheduler for one engine; ``ratio`` is its new-token ratio."""

    def __init__(self, settings: EngineSettings) -> None:
        scheduler = settings.scheduler
        self.seats = scheduler.seats
        self.chunk = scheduler.max_num_batched_tokens
        self.batch = scheduler.max_prefill_tokens
        self.start = min(START_RATIO * scheduler.schedule_conservativeness, 1.0)
        self.floor = self.start * FLOOR_FACTOR
        self.decay = (self.start - self.floor) / DECAY_STEPS
        self.ratio = self.start
        self.seen_steps = 0

    def refuses(self, engine: Replica, seq: Sequence) -> str | None:
        """Nothing beyond the front door's checks."""
        return None

    def close(self, engine: Replica) -> None:
        """Nothing to hand over at the end of a run."""

    def schedule(self, engine: Replica) -> None:
        """A prefill batch if one can be formed, else one decode step."""
        cohort, pool = engine.cohort, engine.pool
        steps = cohort.step - self.seen_steps
        self.seen_steps = cohort.step
        self.ratio = max(self.ratio - steps * self.decay, self.floor)
        if not engine.running:
            self.ratio = self.start
        engine.decodes = False
        if not self._swap_in(engine):
            self._prefill(engine)
        if engine.chunks:
            return
        engine.decodes = True
        due = cohort.blocks_due()
        if due > pool.free:
            self._retract(engine)
            due = cohort.blocks_due()
            engine.blocked_by = "preempted"
        pool.take(due)
        engine.steady = not engine.waiting.count or len(engine.running) >= self.seats

    def _swap_in(self, engine: Replica) -> bool:
        """Swapped requests (not SGLang's own way, but a setting here) come back before any prefill; True if any did."""
        came = False
        while engine.swapped and len(engine.running) < self.seats:
            need = engine.layout.blocks(engine.swapped[0].computed + 1) + engine.cohort.blocks_due()
            if need > engine.pool.free:
                break
            moves.swap_in(engine, engine.swapped.popleft())
            came = True
        return came

    def _reserved(self, engine: Replica) -> float:
        """Tokens kept for what running requests may still generate."""
        total = 0
        for seq in engine.running:
            left = seq.due - engine.cohort.step if seq.decoding else seq.output - seq.generated
            total += min(left, CLIP)
        return total * self.ratio

    def _prefill(self, engine: Replica) -> None:
        waiting, pool, layout = engine.waiting, engine.pool, engine.layout
        size = layout.block_size
        chunk, batch = self.chunk, self.batch
        for seq in engine.prefilling:
            part = min(seq.target - seq.computed, chunk)
            need = layout.blocks(seq.computed + part) - layout.blocks(seq.computed)
            if part <= 0 or need > pool.free:
                continue
            pool.take(need)
            if pool.caches:
                pool.computed(seq, seq.computed + part)
            engine.chunks.append((seq, part))
            chunk -= part
            batch -= part
        if not waiting.count:
            return
        room = pool.free * size - self._reserved(engine)
        while waiting.count and chunk > 0 and batch > 0:
            if len(engine.running) >= self.seats:
                engine.blocked_by = "seats"
                return
            seq = waiting.peek()
            found, idle = pool.hit_blocks(seq) if pool.caches else (0, 0)
            extend = seq.target - found * size
            wanted = extend + idle * size + min(seq.output - seq.generated, CLIP)
            need = layout.blocks(seq.target) - found
            alone = not engine.running
            if (wanted + size > room and not alone) or need + idle > pool.free:
                engine.blocked_by = "blocks"
                return
            part = min(extend, chunk)
            waiting.pop()
            first = layout.blocks(found * size + part) - found
            if pool.caches:
                if not seq.preemptions:
                    engine.meter.queried_tokens += seq.target
                    engine.meter.hit_tokens += found * size
                pool.pin(seq)
            pool.take(first)
            if pool.caches:
                pool.computed(seq, found * size + part)
            moves.admit(engine, seq, found * size, part)
            room -= wanted
            chunk -= part
            batch -= part
            if part < extend:
                engine.blocked_by = "budget"
                return
        if waiting.count:
            engine.blocked_by = "budget"

    def _retract(self, engine: Replica) -> None:
        """Send back those with the fewest tokens generated until the next decode step fits."""
        cohort, pool = engine.cohort, engine.pool
        line = sorted(
            (seq for seq in engine.running if seq.decoding),
            key=lambda seq: (-(seq.output - (seq.due - cohort.step)), seq.prompt, seq.order),
        )
        while len(line) > 1 and cohort.blocks_due() > pool.free:
            moves.preempt(engine, line.pop(), to_back=True)
        generated = sum(seq.output - (seq.due - cohort.step) for seq in line)
        wanted = sum(seq.output for seq in line)
        self.ratio = min(1.0, (generated + RETRACT_STEPS * len(line)) / (wanted + 1))
