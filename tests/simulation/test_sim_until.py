"""A run cut at ``until_s``: the step in progress counts up to the cut, and what had not arrived is said."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.simulate_cli import run_simulate

STEPS = {"fixed_s": 0.1, "per_prefill_token_s": 0.01, "per_decode_token_s": 0.001, "per_context_token_s": 0}


def answer(until_s: float, arrival_s: float = 0.0) -> dict[str, Any]:
    """One request of 800 + 50 tokens: its prompt takes one step of 8.1 s and 50 of 100 blocks."""
    request = {"arrival_s": arrival_s, "prompt_tokens": 800, "output_tokens": 50}
    given = {"num_blocks": 100, "block_size": 16, "step_time": STEPS, "workload": {"requests": [request]}}
    return run_simulate({**given, "until_s": until_s}, seed=0)


@pytest.mark.parametrize("until_s", [1e-6, 0.5, 4.0, 8.0])
def test_a_step_in_progress_counts_up_to_the_cut(until_s: float) -> None:
    usage = answer(until_s)["kv_usage"]
    assert usage == {"mean": 0.5, "p99": 0.5, "peak": 0.5}


def test_a_cut_while_decoding_stays_between_the_fill_before_and_after() -> None:
    usage = answer(9.9)["kv_usage"]
    assert 0.5 < usage["mean"] < usage["peak"] == 0.52


def test_nothing_had_arrived_by_then() -> None:
    warnings = answer(1.0, arrival_s=2.0)["warnings"]
    assert any("nothing arrived: the first request comes after until_s = 1 s" in one for one in warnings)
    assert not any("has no requests" in one for one in warnings)
