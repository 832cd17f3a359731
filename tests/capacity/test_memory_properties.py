"""Properties of the memory bill over random scenarios: it adds up, its intervals hold, more is never less."""

from __future__ import annotations

from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.memory import MemoryBill
from capacity.memory_terms import stage_bills
from capacity.resolve import resolve
from capacity.scenario import Scenario

MODELS = (
    "llama-3.1-8b",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
    "gemma-3-27b-it",
    "qwen2.5-vl-7b-instruct",
    "deepseek-v2-lite",
    "qwen3-next-80b-a3b-instruct",
    "falcon-7b",
)
RELEASES = ("0.7.3", "0.9.2", "0.11.0", "0.16.0", "0.19.0", "0.22.0", "0.26.0", "0.32.0")
CARDS = ("h100-sxm", "a100-80-sxm", "rtx4090", "b200", "mi300x", "gb10", "t4", "l40s")

scenarios = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "engine_version": st.sampled_from(RELEASES),
        "gpu": st.sampled_from(CARDS),
        "max_num_seqs": st.integers(1, 2048),
        "max_num_batched_tokens": st.integers(256, 32768),
        "gpu_memory_utilization": st.floats(0.1, 0.98),
        "max_loras": st.integers(0, 4),
        "enforce_eager": st.booleans(),
    }
)


def bill(raw: dict[str, object]) -> MemoryBill:
    found = stage_bills(resolve(Scenario.parse({"max_model_len": 2048, **raw})))
    assert found is not None
    return found.bills[0]


@settings(max_examples=60, deadline=None)
@given(scenarios)
def test_the_bill_adds_up_and_intervals_hold_their_value(raw: dict[str, object]) -> None:
    found = bill(raw)
    assert [term.name for term in found.terms] == [
        "weights",
        "activation",
        "cuda_graphs",
        "non_torch",
        "other",
    ]
    assert found.budget_bytes == ceil(found.total_bytes * float(str(raw["gpu_memory_utilization"])))
    charged = sum(t.bytes for t in found.terms if t.name != "cuda_graphs" or found.graphs_in_budget)
    assert abs(found.kv_cache.bytes - (found.budget_bytes - charged)) < 1
    for term in (*found.terms, found.kv_cache):
        assert term.low_bytes <= term.bytes <= term.high_bytes, term
        assert term.source, term


@settings(max_examples=40, deadline=None)
@given(scenarios, st.integers(1, 1024), st.integers(1, 4096))
def test_more_seats_or_tokens_never_leave_more_kv_memory(
    raw: dict[str, object], seats: int, tokens: int
) -> None:
    before = bill(raw).kv_cache.bytes
    more_tokens = {**raw, "max_num_batched_tokens": int(str(raw["max_num_batched_tokens"])) + tokens}
    assert bill(more_tokens).kv_cache.bytes <= before + 1
    more_seats = {**raw, "max_num_seqs": int(str(raw["max_num_seqs"])) + seats}
    assert bill(more_seats).kv_cache.bytes <= before + 1


@settings(max_examples=30, deadline=None)
@given(scenarios, st.floats(0.0, 0.02))
def test_more_utilization_never_leaves_less(raw: dict[str, object], more: float) -> None:
    higher = {**raw, "gpu_memory_utilization": float(str(raw["gpu_memory_utilization"])) + more}
    assert bill(higher).kv_cache.bytes >= bill(raw).kv_cache.bytes
