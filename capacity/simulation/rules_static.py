"""Batching before paging, as references: a batch is formed, runs until its last answer ends, then the next is
formed.

Every request reserves blocks for its whole prompt and answer. "static": answers stream as they come;
"request-level": they are handed over when the whole batch is done (the term of the Orca paper). Left out:
padding of short prompts.
"""

from __future__ import annotations

from capacity.simulation import moves
from capacity.simulation.record import FINISHED
from capacity.simulation.replica import Replica
from capacity.simulation.sequence import Sequence
from capacity.simulation.settings import EngineSettings


class StaticBatch:
    """Rules of a batch that nobody joins."""

    def __init__(self, settings: EngineSettings) -> None:
        self.seats = settings.scheduler.seats
        self.together = settings.scheduler.rules == "request-level"
        self.budget = settings.scheduler.max_num_batched_tokens
        self.batch: list[Sequence] = []
        self.reserved = 0

    def refuses(self, engine: Replica, seq: Sequence) -> str | None:
        """Nothing beyond the front door's checks."""
        return None

    def schedule(self, engine: Replica) -> None:
        """The batch's prompts in pieces of the token budget, then decode steps until all have ended."""
        pool, layout = engine.pool, engine.layout
        if not engine.running:
            self._hand_over(engine)
            self._form(engine)
        engine.blocked_by = "batch"
        budget = self.budget
        for seq in engine.prefilling:
            part = min(seq.target - seq.computed, budget)
            if part <= 0:
                break
            pool.take(layout.blocks(seq.computed + part) - layout.blocks(seq.computed))
            engine.chunks.append((seq, part))
            budget -= part
        engine.decodes = not engine.chunks
        if engine.decodes:
            pool.take(engine.cohort.blocks_due())
            engine.steady = True

    def _form(self, engine: Replica) -> None:
        waiting, pool, layout = engine.waiting, engine.pool, engine.layout
        left = pool.free
        while waiting.count and len(engine.running) < self.seats:
            seq = waiting.peek()
            left -= layout.blocks(seq.prompt + max(seq.output - 1, 0))
            if left < 0:
                return
            waiting.pop()
            moves.admit(engine, seq, 0, 0)
            engine.chunks.pop()
            self.batch.append(seq)

    def _hand_over(self, engine: Replica) -> None:
        """Request-level: everybody in the finished batch gets the whole answer at its end."""
        record = engine.record
        done = [seq.id for seq in self.batch if record.outcome[seq.id] == FINISHED]
        self.batch = []
        if self.together and done:
            end = max(record.end_s[number] for number in done)
            for number in done:
                record.end_s[number] = end
                record.first_token_s[number] = end

    def close(self, engine: Replica) -> None:
        """The run is over: hand over the last batch."""
        self._hand_over(engine)
