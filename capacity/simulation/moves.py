"""A request's moves into, out of and between the parts of one engine: admit, preempt, swap in, finish, hang
up.

Each keeps the block pool, the batch and the accounts in step. Source: vLLM's preemption by recompute and by
swap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.simulation.record import ABORTED, FINISHED, Event
from capacity.simulation.sequence import GONE, RUNNING, SWAPPED, WAITING, Sequence
from capacity.simulation.step_time import TICKS_PER_S

if TYPE_CHECKING:
    from capacity.simulation.replica import Replica

_S = float(TICKS_PER_S)


def finish(engine: Replica, seq: Sequence, tokens: int) -> None:
    """The last token is out; the blocks of its ``tokens`` tokens come back."""
    now = engine.now
    engine.running.remove(seq)
    engine.pool.leave(seq, tokens, resumes=False)
    seq.state = GONE
    engine.meter.finished += 1
    record = engine.record
    number = seq.id
    record.outcome[number] = FINISHED
    record.end_s[number] = now / _S
    if seq.preemptions:
        record.preempted_s[number] = seq.preempted_ticks / _S
    if record.log is not None:
        record.log.append(Event(now, "finish", number, seq.output, engine.number))
    if engine.collect:
        engine.departed.append(seq)


def leave_early(engine: Replica) -> None:
    """Running requests whose clients have gone give their blocks back."""
    leaving, engine.leaving = engine.leaving, []
    for seq in leaving:
        if seq.state == RUNNING:
            reason = engine.record.reasons[engine.record.reason[seq.id]] or "aborted"
            evict(engine, seq, 0, resumes=False)
            if seq.first_token is None:
                engine.backlog_tokens -= seq.prompt
            seq.state = GONE
            gone(engine, seq, engine.now, reason)


def gone(engine: Replica, seq: Sequence, now: int, reason: str) -> None:
    """A request has left without its answer; an attempt that was already replaced by a retry leaves no mark."""
    computed = max(seq.computed, seq.lost_tokens)
    engine.meter.aborted_prompt_tokens += min(computed, seq.prompt)
    engine.meter.aborted_output_tokens += seq.generated
    if seq.attempt == engine.record.attempts[seq.id]:
        engine.record.close(seq.id, ABORTED, reason, now)
        if seq.preempted_at is not None:
            seq.preempted_ticks += now - seq.preempted_at
        engine.record.preempted_s[seq.id] = seq.preempted_ticks / _S
    if engine.record.log is not None:
        engine.record.log.append(Event(now, "abort", seq.id, seq.generated, engine.number))
    if engine.collect:
        engine.departed.append(seq)


def fail(engine: Replica, now: int) -> list[Sequence]:
    """The engine dies: everything it held is lost. Returns the requests that were inside, oldest first."""
    inside = [*engine.running, *engine.swapped, *engine.waiting]
    for seq in inside:
        seq.state = GONE
    for seq in engine.leaving:  # their clients had hung up already
        if seq in inside:
            inside.remove(seq)
            gone(engine, seq, now, engine.record.reasons[engine.record.reason[seq.id]] or "aborted")
    engine.reset(now)
    return sorted(inside, key=lambda seq: (seq.arrival, seq.order))


def evict(engine: Replica, seq: Sequence, just_taken: int, *, resumes: bool) -> int:
    """Take a running request out of the batch and its blocks back; returns the tokens it had in the pool.

    ``just_taken``: tokens already scheduled for it in the step being formed.
    """
    if seq.decoding:
        seq.generated = seq.output - (seq.due - engine.cohort.step)
        seq.last_token = engine.last_decode_end
        tokens = engine.cohort.remove(seq)
    else:
        tokens = seq.computed
        if seq in engine.prefilling:
            engine.prefilling.remove(seq)
    engine.running.remove(seq)
    seq.computed = tokens
    engine.pool.leave(seq, tokens + just_taken, resumes=resumes)
    return tokens


def preempt(engine: Replica, seq: Sequence, just_taken: int = 0, *, to_back: bool = False) -> None:
    """Blocks are short: this request has to go, in the way the settings say."""
    now, meter, mode = engine.now, engine.meter, engine.settings.preemption_mode
    meter.preemptions += 1
    seq.preemptions += 1
    record = engine.record
    record.preemptions[seq.id] += 1
    if record.log is not None:
        record.log.append(Event(now, "preempt", seq.id, seq.preemptions, engine.number))
    was_decoding = seq.decoding
    tokens = evict(engine, seq, just_taken, resumes=mode == "recompute")
    if mode == "abort":
        if seq.first_token is None:
            engine.backlog_tokens -= seq.prompt
        seq.state = GONE
        gone(engine, seq, now, "preempted")
        return
    if seq.preempted_at is None:
        seq.preempted_at = now
    seq.target = seq.prompt + seq.generated
    if mode == "swap" and was_decoding:
        blocks = engine.layout.blocks(tokens)
        if blocks <= engine.host_free:
            engine.host_free -= blocks
            seq.host_blocks = blocks
            seq.state = SWAPPED
            engine.extra_ticks += blocks * engine.swap_block_ticks
            meter.swap_ticks += blocks * engine.swap_block_ticks
            meter.swapped_blocks += blocks
            engine.swapped.appendleft(seq)
            return
        meter.swap_refused += 1
    seq.lost_tokens = tokens
    seq.computed = 0
    seq.state = WAITING
    if to_back:
        engine.waiting.push(seq)
    else:
        engine.waiting.push_front(seq)


def admit(engine: Replica, seq: Sequence, hit_tokens: int, size: int) -> None:
    """A waiting request enters the batch and computes ``size`` tokens in this step (blocks are taken
    already).
    """
    now, record = engine.now, engine.record
    seq.state = RUNNING
    seq.computed = hit_tokens
    engine.meter.admitted += 1
    if seq.scheduled is None:
        seq.scheduled = now
        record.scheduled_s[seq.id] = now / _S
    if seq.lost_tokens:
        engine.meter.recomputed_tokens += max(seq.lost_tokens - hit_tokens, 0)
        seq.lost_tokens = 0
    if record.log is not None:
        kind = "resume" if seq.preemptions else "admit"
        record.log.append(Event(now, kind, seq.id, size, engine.number))
    engine.running.append(seq)
    engine.prefilling.append(seq)
    engine.chunks.append((seq, size))


def swap_in(engine: Replica, seq: Sequence) -> None:
    """A swapped request comes back with all its tokens; the step pays for the transfer."""
    now, blocks = engine.now, seq.host_blocks
    engine.pool.take(blocks)
    engine.host_free += blocks
    seq.host_blocks = 0
    engine.extra_ticks += blocks * engine.swap_block_ticks
    engine.meter.swap_ticks += blocks * engine.swap_block_ticks
    seq.state = RUNNING
    engine.running.append(seq)
    if seq.preempted_at is not None:
        seq.preempted_ticks += now - seq.preempted_at
        seq.preempted_at = None
    if engine.cohort.n == 0:
        engine.last_decode_end = seq.last_token or now
        engine.fresh.clear()
    else:
        engine.fresh.append((seq.last_token or now, 1))
    engine.cohort.add(seq, seq.computed, seq.output - seq.generated)
    if engine.record.log is not None:
        engine.record.log.append(Event(now, "resume", seq.id, blocks, engine.number))
