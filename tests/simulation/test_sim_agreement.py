"""The fast engine and the plain one agree event for event on random scenarios, to the femtosecond."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from capacity.simulation.record import Record
from capacity.simulation.replica import Replica
from capacity.simulation.rules_vllm_v1 import VllmV1
from capacity.simulation.sequence import Prefix, Sequence
from capacity.simulation.settings import EngineSettings, SchedulerSettings, SwapTier
from capacity.simulation.step_time import StepTime, to_ticks
from tests.simulation.reference import PlainEngine, Request

COMPUTED_TWICE = (739, 743)
"""Here two requests compute one prefix at once, in pieces: both copies can be found, as in vLLM."""


def scenario(
    seed: int, *, sharing: bool = False, short: bool = False
) -> tuple[EngineSettings, list[Request]]:
    rng = random.Random(seed)
    block_size = rng.choice([1, 4, 16, 32])
    seats = rng.choice([1, 2, 5, 16, 64])
    budget = max(rng.choice([16, 48, 100, 256, 2048]), seats)
    mode = rng.choice(["recompute", "recompute", "recompute", "swap", "abort"])
    if sharing:
        mode, budget = "recompute", budget if short else 2048
    round_numbers = rng.random() < 0.5
    step_time = (
        StepTime(fixed_s=0.01, per_prefill_token_s=0.0001)
        if round_numbers
        else StepTime(
            fixed_s=rng.uniform(0.001, 0.02),
            per_prefill_token_s=rng.uniform(0, 1e-4),
            per_decode_token_s=rng.uniform(0, 1e-4),
            per_context_token_s=rng.uniform(0, 1e-6),
            per_prefill_context_token_s=rng.uniform(0, 1e-9),
            host_s=rng.choice([0, 0.012]),
            overlap=rng.random() < 0.5,
        )
    )
    longest = rng.choice([40, 150, 400])
    most_out = rng.choice([1, 8, 60, 120])
    count = rng.randint(1, 40)
    blocks = -(-(longest + most_out) // block_size)
    num_blocks = rng.randint(blocks, blocks * rng.choice([1, 2, 5, 20]))
    scheduler = SchedulerSettings(
        scheduling_policy=rng.choice(["fcfs", "fcfs", "priority"]),
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=rng.choice([0, 0, 10, 64]),
        long_prefill_token_threshold_adaptive=rng.random() < 0.2,
        long_prefill_cap_when_alone=rng.random() < 0.5,
        scheduler_reserve_full_isl=rng.random() < 0.7,
        watermark=rng.choice([None, 0.0, 0.05, 0.2]),
        max_num_active_seqs=rng.choice([None, None, 3]),
        head_of_line=rng.choice(["block", "block", "skip"]),
    )
    settings = EngineSettings(
        num_blocks=num_blocks,
        block_size=block_size,
        step_time=step_time,
        scheduler=scheduler,
        preemption_mode=mode,
        swap=SwapTier(host_blocks=rng.choice([0, num_blocks // 2, num_blocks * 4]), block_s=0.0005)
        if mode == "swap"
        else None,
    )
    at = 0.0
    requests = []
    prefix_tokens = block_size * rng.choice([1, 2, 3])
    for number in range(count):
        at += rng.choice([0.0, 0.01, 0.02, 0.1]) if round_numbers else rng.expovariate(20)
        prompt, output = rng.randint(1, longest), rng.randint(0, most_out)
        shared = None
        if sharing and rng.random() < 0.8:
            shared = tuple((rng.randint(0, 2), place) for place in range(rng.randint(1, 3)))
            shared = tuple((shared[0][0], place) for place in range(len(shared)))
            shared = shared[: (prompt - 1) // prefix_tokens] if not short else shared
        requests.append(
            Request(
                id=number,
                arrival=to_ticks(at),
                prompt=prompt,
                output=output,
                priority=rng.choice([0, 0, 1, 5]),
                prefix=shared or None,
                prefix_tokens=prefix_tokens,
            )
        )
    return settings, requests


def run_fast(
    settings: EngineSettings, requests: list[Request], *, sharing: bool = False
) -> tuple[Replica, list]:
    record = Record(len(requests), log=True)
    engine = Replica(settings, VllmV1(settings), record, sharing=sharing)
    for request in requests:
        engine.advance(request.arrival)
        prefix = Prefix(request.prefix, request.prefix_tokens) if request.prefix else None
        sequence = Sequence(
            request.id, request.arrival, request.prompt, request.output, request.priority, prefix=prefix
        )
        engine.submit(sequence, request.arrival)
    engine.advance(1 << 200)
    return engine, [(event.ticks, event.kind, event.request) for event in record.log or []]


def grouped(events: list) -> list:
    """Admissions and preemptions keep their order; what becomes visible at one instant has none."""
    visible = ("first_token", "finish")
    return sorted(event for event in events if event[1] in visible), [
        event for event in events if event[1] not in visible
    ]


@pytest.mark.parametrize("block", range(20))
def test_same_events(block: int) -> None:
    preemptions = 0
    for seed in range(block * 20, block * 20 + 20):
        settings, requests = scenario(seed)
        engine, events = run_fast(settings, requests)
        plain = PlainEngine(settings)
        expected = plain.run([replace(request) for request in requests])
        assert grouped(events) == grouped(expected), seed
        assert engine.meter.steps == plain.steps, seed
        assert engine.meter.recomputed_tokens == plain.recomputed, seed
        assert engine.meter.peak_blocks == plain.peak, seed
        assert engine.pool.free == settings.num_blocks, seed
        assert not engine.bugs, seed
        preemptions += engine.meter.preemptions
    assert preemptions > 0


@pytest.mark.parametrize("short", [False, True], ids=["whole", "shorter prompts too"])
@pytest.mark.parametrize("block", range(10))
def test_same_events_with_shared_prefixes(block: int, short: bool) -> None:
    hits = 0
    for seed in [*range(block * 20, block * 20 + 20), *(() if block else COMPUTED_TWICE)]:
        settings, requests = scenario(seed, sharing=True, short=short)
        engine, events = run_fast(settings, requests, sharing=True)
        plain = PlainEngine(settings, sharing=True)
        expected = plain.run([replace(request) for request in requests])
        assert grouped(events) == grouped(expected), seed
        assert engine.meter.recomputed_tokens == plain.recomputed, seed
        assert engine.meter.peak_blocks == plain.peak, seed
        assert engine.pool.free == settings.num_blocks, seed
        hits += engine.meter.hit_tokens
    assert hits > 0
