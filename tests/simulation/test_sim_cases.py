"""Cases from public reports, each with its right result, through the same function as the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capacity.simulate_cli import run_simulate
from capacity.simulation.presets import PRESETS, preset

TRACES = Path(__file__).parents[1] / "fixtures" / "traces"
STEP = {"fixed_s": 0.02, "per_prefill_token_s": 0.0001}


def run(trace: str | None = None, **keys: Any) -> dict[str, Any]:
    text = (TRACES / trace).read_text() if trace else None
    scenario = {"block_size": 16, "step_time": STEP, **keys}
    answer = run_simulate(scenario, trace_text=text)
    counts = answer["requests"]
    assert counts["arrived"] == counts["finished"] + sum(counts["rejected"].values()) + counts["aborted"]
    assert answer["blocks"]["free_at_end"] == answer["blocks"]["total"]
    return answer


def said(answer: dict[str, Any], words: str) -> bool:
    return any(words in warning for warning in answer["warnings"])


def test_prompt_larger_than_the_pool_is_rejected_and_the_run_ends() -> None:
    answer = run("trace_oversize_prompt.csv", num_blocks=50)
    assert answer["requests"]["finished"] == 9
    assert answer["requests"]["rejected"] == {"prompt_exceeds_pool": 1}
    assert said(answer, "needs more blocks than the pool has")


def test_prompt_and_output_larger_than_the_pool() -> None:
    big = {"arrival_s": 0, "prompt_tokens": 700, "output_tokens": 200}
    small = {"arrival_s": 0.1, "prompt_tokens": 100, "output_tokens": 20}
    answer = run(num_blocks=50, workload={"requests": [big, small]})
    assert answer["requests"]["finished"] == 1
    assert answer["requests"]["rejected"] == {"prompt_and_output_exceed_pool": 1}


def test_request_that_exactly_fills_the_pool_finishes() -> None:
    exact = {"arrival_s": 0, "prompt_tokens": 600, "output_tokens": 201}
    answer = run(num_blocks=50, workload={"requests": [exact]})
    assert answer["requests"]["finished"] == 1
    assert answer["kv_usage"]["peak"] == 1.0
    assert answer["requests"]["preemptions"] == 0


def test_tiny_pool_under_overload() -> None:
    answer = run("trace_tiny_pool_overload.csv", num_blocks=125)
    assert answer["requests"]["finished"] == 200
    assert answer["requests"]["preemptions"] > 0
    assert answer["steps"]["total"] < 20_000
    assert said(answer, "no steady state")
    fully_grown = 125 // 24
    assert fully_grown == 5
    assert answer["requests"]["max_preemptions_of_one"] <= 4


def test_preemption_stays_in_a_plausible_range() -> None:
    answer = run(
        num_blocks=1500,
        step_time={"fixed_s": 0.01, "per_prefill_token_s": 2e-5, "per_context_token_s": 1e-7},
        workload={
            "arrival": {"process": "poisson", "rate_rps": 12},
            "prompt_tokens": {"distribution": "lognormal", "mean": 400, "cv": 1},
            "output_tokens": {"distribution": "lognormal", "mean": 200, "cv": 0.6},
            "num_requests": 3000,
        },
    )
    assert 0 < answer["preemption"]["share_of_requests"] < 0.15
    assert 1 <= answer["requests"]["max_preemptions_of_one"] <= 8
    assert not said(answer, "fault of the scheduler")


def test_zero_and_one_output_tokens() -> None:
    answer = run("trace_zero_and_one_output.csv", num_blocks=125)
    assert answer["requests"]["rejected"] == {"empty_prompt": 1}
    assert answer["requests"]["finished"] == 4
    assert answer["tpot_s"]["count"] == 2
    assert answer["tpot_s"]["mean"] == pytest.approx(0.02)
    assert answer["ttft_s"]["count"] == 3


@pytest.mark.parametrize(
    ("scheduler", "steps"),
    [
        ({"long_prefill_token_threshold": 4096}, 25),
        ({"long_prefill_token_threshold": 4096, "long_prefill_cap_when_alone": False}, 7),
        ({}, 7),
    ],
)
def test_long_prefill_cap_alone(scheduler: dict[str, Any], steps: int) -> None:
    lone = {"requests": [{"arrival_s": 0, "prompt_tokens": 100_000, "output_tokens": 1}]}
    answer = run(num_blocks=7000, max_num_batched_tokens=16_384, scheduler=scheduler, workload=lone)
    assert answer["steps"]["total"] == steps
    lost = answer["steps"]["budget_lost_to_prefill_cap_tokens"]
    assert (lost > 0) == (steps == 25)
    assert said(answer, "left 275,424 tokens of step budget unused") == (steps == 25)


def test_simultaneous_burst_is_not_preemption() -> None:
    answer = run("trace_burst_8x6k.csv", num_blocks=5000, max_num_batched_tokens=8192, requests_detail=True)
    assert answer["steps"]["with_prompts"] == 6
    assert answer["requests"]["preemptions"] == 0
    firsts = [row["first_token_s"] for row in answer["gantt"]]
    assert firsts == sorted(firsts) and firsts[-1] > 5 * firsts[0]
    assert said(answer, "for prefill budget")
    assert not said(answer, "KV blocks")


def test_preempted_request_returns_to_the_front() -> None:
    answer = run("trace_preempted_loses_place.csv", num_blocks=120, events=True)
    order = [(event["event"], event["request"]) for event in answer["events"]]
    preempted = [request for kind, request in order if kind == "preempt"]
    assert preempted and 3 not in preempted
    last_resume = max(index for index, (kind, _) in enumerate(order) if kind == "resume")
    assert order.index(("admit", 3)) > last_resume
    assert answer["recomputed_tokens"] > 0
    assert answer["requests"]["finished"] == 4


def test_head_of_line_block() -> None:
    answer = run("trace_hol_big_small.csv", num_blocks=100, requests_detail=True)
    rows = answer["gantt"]
    assert rows[2]["scheduled_s"] >= rows[1]["scheduled_s"] > 3.0
    assert said(answer, "head-of-line blocking")
    skipping = run(
        "trace_hol_big_small.csv", num_blocks=100, scheduler={"head_of_line": "skip"}, requests_detail=True
    )
    assert skipping["gantt"][2]["scheduled_s"] < 1.2
    assert skipping["settings"]["rules"] == "vllm-v1"


def test_newest_is_preempted_when_growth_fills_the_pool() -> None:
    requests = [{"arrival_s": 0.01 * i, "prompt_tokens": 200, "output_tokens": 300} for i in range(8)]
    answer = run(num_blocks=120, workload={"requests": requests}, events=True)
    first = next(event for event in answer["events"] if event["event"] == "preempt")
    assert first["request"] == 7
    assert answer["recomputed_tokens"] > 0


def test_epoch_time_stamps() -> None:
    answer = run("trace_epoch_timestamps.csv", num_blocks=100, client={"timeout_s": 30})
    assert answer["requests"]["finished"] == 4
    assert answer["duration_s"] < 30
    assert said(answer, "rebased to the first arrival")


def test_nothing_finished_is_said_first() -> None:
    requests = [{"arrival_s": 0, "prompt_tokens": 100, "output_tokens": 100}]
    answer = run(num_blocks=100, workload={"requests": requests}, client={"timeout_s": 0.1})
    assert answer["requests"]["aborted"] == 1
    assert answer["warnings"][0].startswith("nothing finished")
    assert answer["ttft_s"]["mean"] is None and answer["goodput_rps"] == 0


def test_everything_rejected_is_said() -> None:
    requests = [{"arrival_s": 0, "prompt_tokens": 100, "output_tokens": 100}]
    gate = [{"policy": "queue_limit", "max_num_queued_reqs": 0}]
    answer = run(num_blocks=100, workload={"requests": requests}, admission=gate)
    assert said(answer, "everything was rejected")


def test_unsorted_rows_are_sorted_and_said() -> None:
    text = "arrival_s,prompt_tokens,output_tokens\n2,100,10\n0,100,10\n1,100,10\n"
    answer = run_simulate({"num_blocks": 50, "step_time": STEP}, trace_text=text)
    assert answer["requests"]["finished"] == 3
    assert said(answer, "have been sorted")


def test_first_chunk_thrash_ends() -> None:
    requests = [{"arrival_s": 0.001 * i, "prompt_tokens": 600, "output_tokens": 20} for i in range(6)]
    answer = run(
        num_blocks=60,
        max_num_batched_tokens=128,
        max_num_seqs=16,
        scheduler={"scheduler_reserve_full_isl": False},
        workload={"requests": requests},
    )
    reserved = run(
        num_blocks=60, max_num_batched_tokens=128, max_num_seqs=16, workload={"requests": requests}
    )
    assert answer["requests"]["finished"] == reserved["requests"]["finished"] == 6
    assert answer["requests"]["preemptions"] >= reserved["requests"]["preemptions"]


def test_swap_with_a_full_host_does_not_deadlock() -> None:
    requests = [{"arrival_s": 0.01 * i, "prompt_tokens": 150, "output_tokens": 300} for i in range(8)]
    for host_blocks in (0, 10, 40, 1000):
        answer = run(
            num_blocks=60,
            preemption_mode="swap",
            swap={"host_blocks": host_blocks, "block_s": 0.0001},
            workload={"requests": requests},
        )
        assert answer["requests"]["finished"] == 8
        assert (answer["preemption"]["swapped_blocks"] > 0) == (host_blocks >= 10)


def test_a_high_priority_request_waits_for_blocks_held_by_a_low_one() -> None:
    low = {"arrival_s": 0, "prompt_tokens": 700, "output_tokens": 60, "priority": 5}
    high = {"arrival_s": 0.5, "prompt_tokens": 300, "output_tokens": 10, "priority": 0}
    answer = run(
        num_blocks=50,
        scheduler={"scheduling_policy": "priority"},
        workload={"requests": [low, high]},
        requests_detail=True,
    )
    rows = answer["gantt"]
    assert rows[1]["scheduled_s"] >= rows[0]["end_s"]
    assert answer["requests"]["preemptions"] == 0


def test_teaching_preset_does_what_its_text_says() -> None:
    scenario = {**preset("teaching"), "events": True}
    answer = run_simulate(scenario, seed=1)
    counts = answer["requests"]
    assert counts["arrived"] == counts["finished"] == 10 and counts["rejected"] == {}
    assert answer["steps"]["peak_running"] == 7
    admitted = [event for event in answer["events"] if event["event"] == "admit"]
    assert sum(event["t_s"] <= 2.3 for event in admitted) == 7  # all ten have arrived by 2.25 s
    assert counts["preemptions"] == 1 and answer["recomputed_tokens"] == 214
    assert said(answer, "1 preemption of 10.0% of the requests; 214 tokens were computed again")
    text = next(one.shows for one in PRESETS if one.key == "teaching")
    assert "seven prompts" in text and "none is refused" in text and "214 tokens" in text


def test_queue_of_three_in_flight_refuses_seven_of_the_teaching_requests() -> None:
    gate = [{"policy": "queue_limit", "max_num_queued_reqs": 3, "max_num_queued_tokens": None}]
    answer = run_simulate({**preset("teaching"), "admission": gate}, seed=1)
    assert answer["requests"]["finished"] == 3
    assert answer["requests"]["rejected"] == {"queue_limit": 7}


def test_prefix_caching_lets_a_preempted_request_find_its_own_blocks() -> None:
    requests = [{"arrival_s": 0.01 * i, "prompt_tokens": 300, "output_tokens": 200} for i in range(6)]
    keys: dict[str, Any] = {"num_blocks": 130, "workload": {"requests": requests}}
    plain, cached = run(**keys), run(**keys, enable_prefix_caching=True)
    assert plain["recomputed_tokens"] > cached["recomputed_tokens"] > 0
    assert cached["prefix_cache"]["hit_tokens"] == 0
