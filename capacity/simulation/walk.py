"""The running list gone through one by one, for steps in which blocks or tokens are short and order decides.

Source: vLLM V1's loop over running requests; V0's decode pass is the same walk without prompts under way.
"""

from __future__ import annotations

from capacity.simulation import moves
from capacity.simulation.replica import Replica
from capacity.simulation.sequence import Sequence
from capacity.simulation.settings import EngineSettings


def worst_goes(settings: EngineSettings) -> bool:
    """Whether the least important request is preempted rather than the last of the list."""
    return settings.scheduler.scheduling_policy == "priority" or settings.preemption_mode == "abort"


def walk(engine: Replica, *, budget: int, cap: int, worst_first: bool) -> bool:
    """Running requests one by one, as the engine does it; True when somebody was preempted."""
    cohort, pool, layout, running = engine.cohort, engine.pool, engine.layout, engine.running
    given: dict[Sequence, int] = {}
    preempted = False
    index = 0
    while index < len(running) and budget > 0:
        seq = running[index]
        if seq.decoding:
            size, need = 1, cohort.need(seq)
        else:
            size = seq.target - seq.computed
            if cap and size > cap:
                size = cap
            size = min(size, budget)
            need = layout.blocks(seq.computed + size) - layout.blocks(seq.computed)
        while need > pool.free:
            victim = _victim(running, worst_first=worst_first)
            position = running.index(victim)
            budget += given.get(victim, 0)
            moves.preempt(engine, victim, given.pop(victim, 0))
            preempted = True
            if victim is seq:
                break
            if position < index:
                index -= 1
        else:
            pool.take(need)
            given[seq] = size
            if pool.caches and seq.prefix is not None and not seq.decoding:
                pool.computed(seq, seq.computed + size)
            budget -= size
            index += 1
            continue
        break
    for seq in running:
        if not seq.decoding and seq in given:
            engine.chunks.append((seq, given[seq]))
    held = [seq for seq in running if seq.decoding and seq not in given]
    engine.held = held or None
    return preempted


def _victim(running: list[Sequence], *, worst_first: bool) -> Sequence:
    if worst_first:
        return max(running, key=lambda seq: (seq.priority, seq.arrival, seq.order))
    return running[-1]
