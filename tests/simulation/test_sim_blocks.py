"""Invariants of the block pools: used + free = total, no block twice, growth keeps earlier blocks, all freed at the end."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.errors import CapacityError
from capacity.simulate_cli import prepare, run_simulate, simulate
from capacity.simulation.block_map import block_map
from capacity.simulation.block_pool import NULL_BLOCK, BlockPool
from capacity.simulation.cohort import DecodeCohort, Layout
from capacity.simulation.presets import preset
from capacity.simulation.sequence import Sequence

moves = st.lists(
    st.tuples(st.sampled_from(["grow", "release", "share"]), st.integers(0, 5), st.integers(1, 120)),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(num_blocks=st.integers(1, 30), block_size=st.sampled_from([1, 4, 16]), script=moves)
def test_block_pool_invariants(num_blocks: int, block_size: int, script: list[tuple[str, int, int]]) -> None:
    pool = BlockPool(num_blocks=num_blocks, block_size=block_size)
    for what, request, tokens in script:
        before = list(pool.tables.get(request, []))
        if what == "grow":
            try:
                pool.grow(request, tokens)
            except CapacityError:
                assert pool.need(request, tokens) > pool.free_blocks
            assert pool.tables.get(request, [])[: len(before)] == before
            pool.name(request, [(request % 2, i) for i in range(tokens // block_size)])
        elif what == "release":
            pool.release(request)
        elif not before:
            pool.share(request, pool.cached([(request % 2, i) for i in range(tokens // block_size)]))
        pool.check()
        assert pool.used_blocks + pool.free_blocks == num_blocks
        assert all(NULL_BLOCK not in table for table in pool.tables.values())
        own = Counter(block for table in pool.tables.values() for block in table)
        assert all(pool.references[block] == count for block, count in own.items())
    for request in list(pool.tables):
        pool.release(request)
    assert pool.free_blocks == num_blocks


def test_a_prefix_computed_twice_is_found_as_long_as_one_copy_is_there() -> None:
    # vLLM does not merge blocks of the same content: "a" and "b" each hold one, and the earlier is found first
    pool = BlockPool(num_blocks=3, block_size=4)
    for request in ("a", "b"):
        pool.grow(request, 4)
        pool.name(request, ["prefix"])
    assert pool.cached(["prefix"]) == [1]
    pool.release("a")
    assert pool.grow("c", 8) == [3, 1]  # the copy of "a" is overwritten
    assert pool.cached(["prefix"]) == [2]
    pool.release("c")
    pool.release("b")
    assert pool.grow("d", 12) == [1, 3, 2]
    assert pool.cached(["prefix"]) == []


@settings(max_examples=150, deadline=None)
@given(
    layout=st.sampled_from(
        [
            Layout(block_size=4),
            Layout(block_size=4, full=2, constant=1),
            Layout(block_size=4, full=1, window=3, window_tokens=20),
            Layout(block_size=8, full=0, window=2, window_tokens=24),
        ]
    ),
    joins=st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=12
    ),
)
def test_cohort_counts_blocks_as_if_every_request_were_counted(
    layout: Layout, joins: list[tuple[int, int, int]]
) -> None:
    cohort = DecodeCohort(layout)
    tokens: dict[Sequence, list[int]] = {}
    line = sorted(joins)
    held = 0
    for step in range(100):
        while line and line[0][0] <= step:
            _, computed, left = line.pop(0)
            seq = Sequence(len(tokens), 0, computed, left + 1)
            cohort.add(seq, computed, left)
            tokens[seq] = [computed, left]
            held += layout.blocks(computed)
        need = sum(layout.blocks(done + 1) - layout.blocks(done) for done, _ in tokens.values())
        assert cohort.blocks_due() == need
        assert cohort.context == sum(done + 1 for done, _ in tokens.values())
        assert sum(cohort.need(seq) for seq in tokens) == need
        if tokens and step % 7 == 3:
            ahead = min(cohort.next_event(), 5)
            truth = sum(layout.blocks(done + ahead) - layout.blocks(done) for done, _ in tokens.values())
            assert cohort.blocks_over(ahead) == truth
            assert cohort.steps_within(truth, ahead) == ahead
        held += need
        cohort.advance(1)
        for state in tokens.values():
            state[0] += 1
            state[1] -= 1
        done = cohort.pop_finished()
        assert {seq.id for seq in done} == {seq.id for seq, state in tokens.items() if state[1] == 0}
        for seq in done:
            held -= layout.blocks(tokens.pop(seq)[0])
    assert held == sum(layout.blocks(done) for done, _ in tokens.values())


def test_hybrid_layout_run_returns_every_block() -> None:
    found = prepare(
        {
            "num_blocks": 400,
            "block_size": 16,
            "step_time": {"fixed_s": 0.01},
            "workload": {
                "arrival": {"process": "poisson", "rate_rps": 20},
                "prompt_tokens": {"distribution": "lognormal", "mean": 150, "cv": 1, "max": 600},
                "output_tokens": 120,
                "num_requests": 300,
            },
        }
    )
    from dataclasses import replace

    engine = replace(found.engine, layout=Layout(block_size=16, full=1, window=5, window_tokens=80))
    run = simulate(replace(found, engine=engine))
    assert run.engines[0].pool.free == 400
    assert run.engines[0].meter.finished == 300
    assert run.engines[0].meter.preemptions > 0


def test_block_map_agrees_with_the_counts() -> None:
    run = simulate(prepare(preset("teaching")), log=True)
    picture = block_map(run, 2.5)
    assert len(picture.owner) == 100
    assert 0 < picture.used <= 100
    assert {owner for owner in picture.owner if owner >= 0} == set(picture.running)
    assert block_map(run, run.end_s + 1).used == 0
    with pytest.raises(CapacityError, match="no log"):
        block_map(simulate(prepare(preset("teaching"))), 1.0)


def test_reported_blocks_count_what_requests_can_hold() -> None:
    answer = run_simulate(preset("teaching"))
    assert answer["blocks"] == {"total": 100, "free_at_end": 100, "block_size": 16}
