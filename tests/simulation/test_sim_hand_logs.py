"""Event logs worked out by hand, step by step; every step takes a round time so that each line can be checked."""

from __future__ import annotations

from typing import Any

from capacity.simulate_cli import run_simulate


def log(requests: list[tuple[float, int, int]], **keys: Any) -> list[tuple[float, str, int]]:
    """Events as (seconds, what, request); a step takes 1 s unless ``step_time`` says otherwise."""
    scenario: dict[str, Any] = {"block_size": 4, "step_time": {"fixed_s": 1.0}, "events": True, **keys}
    scenario["workload"] = {
        "requests": [
            {
                "arrival_s": at,
                "prompt_tokens": prompt,
                "output_tokens": output,
                **({"priority": rest[0]} if rest else {}),
            }
            for at, prompt, output, *rest in requests
        ]
    }
    answer = run_simulate(scenario)
    return [(round(event["t_s"], 9), event["event"], event["request"]) for event in answer["events"]]


def test_one_request() -> None:
    # prefill 0-1, then two decode steps
    assert log([(0, 5, 3)], num_blocks=10) == [(0, "admit", 0), (1, "first_token", 0), (3, "finish", 0)]


def test_an_arrival_joins_at_the_next_step_boundary() -> None:
    # request 1 arrives inside the step 0-1 and starts at 1; request 2 arrives exactly at 2 and starts at 2
    assert log([(0, 4, 4), (0.5, 4, 2), (2, 4, 1)], num_blocks=20) == [
        (0, "admit", 0),
        (1, "first_token", 0),
        (1, "admit", 1),
        (2, "first_token", 1),
        (2, "admit", 2),
        (3, "finish", 1),
        (3, "first_token", 2),
        (3, "finish", 2),
        (4, "finish", 0),
    ]


def test_token_budget_splits_a_prompt_and_decodes_go_first() -> None:
    # budget 8: step 0 gives 6 to request 0 and 2 to request 1; step 1 gives 1 to request 0 and 7 to request 1, which
    # has 4 left; step 2 decodes both
    assert log([(0, 6, 3), (0, 6, 2)], num_blocks=20, max_num_batched_tokens=8, max_num_seqs=4) == [
        (0, "admit", 0),
        (0, "admit", 1),
        (1, "first_token", 0),
        (2, "first_token", 1),
        (3, "finish", 0),
        (3, "finish", 1),
    ]


def test_seats() -> None:
    assert log([(0, 4, 2), (0, 4, 1)], num_blocks=20, max_num_seqs=1) == [
        (0, "admit", 0),
        (1, "first_token", 0),
        (2, "finish", 0),
        (2, "admit", 1),
        (3, "first_token", 1),
        (3, "finish", 1),
    ]


def test_whole_prompt_must_fit_before_admission() -> None:
    # 4 blocks; request 0 holds 2 (5 tokens), request 1 needs 3 for its 9 tokens, though its first chunk would fit
    chunked = {"max_num_batched_tokens": 8, "max_num_seqs": 2, "num_blocks": 4}
    reserved = log([(0, 5, 3), (1, 9, 1)], **chunked)
    assert (3, "admit", 1) in reserved
    first_chunk = log([(0, 5, 3), (1, 9, 1)], scheduler={"scheduler_reserve_full_isl": False}, **chunked)
    assert (1, "admit", 1) in first_chunk


def test_the_last_in_the_list_is_preempted_and_comes_back_first() -> None:
    # 4 blocks of 4. Both prompts hold 1 block (4 tokens). Step 1 needs a 2nd block each: the pool is full.
    # Tokens in the pool: 5 after step 1, 8 after step 4; step 5 needs a 3rd block for request 0: request 1 goes.
    # Request 1 has 5 tokens generated and needs 9 tokens = 3 blocks, while request 0 holds 3 until it ends.
    assert log([(0, 4, 7), (0, 4, 8), (4, 4, 1)], num_blocks=4) == [
        (0, "admit", 0),
        (0, "admit", 1),
        (1, "first_token", 0),
        (1, "first_token", 1),
        (5, "preempt", 1),
        (7, "finish", 0),
        (7, "resume", 1),
        (7, "admit", 2),
        (8, "first_token", 2),
        (8, "finish", 2),
        (10, "finish", 1),
    ]


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    # 5 blocks; at 5 both need a block and none is left: request 1 goes and frees 3. Request 2 (1 block) arrived at 4.5
    # and would fit at once, even past request 1 with this policy, but starts one step later
    events = log([(0, 4, 9), (0, 8, 9), (4.5, 3, 1)], num_blocks=5, scheduler={"head_of_line": "skip"})
    assert (5, "preempt", 1) in events
    assert (6, "admit", 2) in events


def test_priority_preempts_the_least_urgent_even_when_it_came_first() -> None:
    keys: dict[str, Any] = {"num_blocks": 4, "scheduler": {"scheduling_policy": "priority"}}
    urgent_last = log([(0, 4, 7, 5), (0, 4, 7, 0)], **keys)  # type: ignore[list-item]
    assert [entry for entry in urgent_last if entry[1] == "preempt"] == [(5, "preempt", 0)]
    assert [entry for entry in log([(0, 4, 7), (0, 4, 7)], num_blocks=4) if entry[1] == "preempt"] == [
        (5, "preempt", 1)
    ]


def test_priority_orders_the_line() -> None:
    events = log(
        [(0, 4, 2, 0), (0.1, 4, 1, 9), (0.2, 4, 1, 1)],  # type: ignore[list-item]
        num_blocks=20,
        max_num_seqs=1,
        scheduler={"scheduling_policy": "priority"},
    )
    assert [request for _, what, request in events if what == "admit"] == [0, 2, 1]


def test_watermark_keeps_blocks_free_only_while_something_runs() -> None:
    # watermark 0.5 of 8 blocks = 4; request 0 may take 6 blocks alone; request 1 (1 block) waits while 2 are free
    events = log([(0, 24, 2), (0, 4, 1)], num_blocks=8, scheduler={"watermark": 0.5})
    assert events == [
        (0, "admit", 0),
        (1, "first_token", 0),
        (2, "finish", 0),
        (2, "admit", 1),
        (3, "first_token", 1),
        (3, "finish", 1),
    ]


def test_swap_costs_the_transfer_twice_and_recomputes_nothing() -> None:
    # as above, but the two blocks of request 1 go to the host (2 x 0.25 s within step 5-6) and back at 7.5
    events = log(
        [(0, 4, 7), (0, 4, 8)],
        num_blocks=4,
        preemption_mode="swap",
        swap={"host_blocks": 8, "block_s": 0.25},
    )
    assert events == [
        (0, "admit", 0),
        (0, "admit", 1),
        (1, "first_token", 0),
        (1, "first_token", 1),
        (5, "preempt", 1),
        (7.5, "finish", 0),
        (7.5, "resume", 1),
        (11, "finish", 1),
    ]


def test_abort_gives_the_victim_up() -> None:
    events = log([(0, 4, 7), (0, 4, 8)], num_blocks=4, preemption_mode="abort")
    assert events[-3:] == [(5, "preempt", 1), (5, "abort", 1), (7, "finish", 0)]


def test_vllm_v0_runs_prompts_before_decodes() -> None:
    # request 1 arrives during the first decode; V0 stops decoding for its prompt: request 0's third token is late
    events = log([(0, 4, 3), (1.5, 4, 2)], num_blocks=200, scheduler={"rules": "vllm-v0"})
    assert events == [
        (0, "admit", 0),
        (1, "first_token", 0),
        (2, "admit", 1),
        (3, "first_token", 1),
        (4, "finish", 0),
        (4, "finish", 1),
    ]


def test_static_batching_lets_nobody_join() -> None:
    events = log([(0, 4, 2), (0, 4, 4), (0.5, 4, 1)], num_blocks=50, scheduler={"rules": "static"})
    assert events == [
        (0, "admit", 0),
        (0, "admit", 1),
        (1, "first_token", 0),
        (1, "first_token", 1),
        (2, "finish", 0),
        (4, "finish", 1),
        (4, "admit", 2),
        (5, "first_token", 2),
        (5, "finish", 2),
    ]


def test_sglang_reserves_for_what_may_still_be_generated() -> None:
    # 10 blocks of 4 = 40 tokens. Request 0: 4 + 30, request 1: 4 + 30 (+ a page). New-token ratio 0.7: request 0 keeps
    # 29 x 0.7 = 20 tokens, so 38 do not fit beside it; vLLM V1 admits both at once.
    requests = [(0.0, 4, 30), (0.5, 4, 30)]
    sglang = log(requests, num_blocks=10, scheduler={"rules": "sglang"})
    assert next(when for when, what, who in sglang if (what, who) == ("admit", 1)) > 1
    assert (1, "admit", 1) in log(requests, num_blocks=10)


def test_step_time_is_fixed_plus_prompt_plus_decode_plus_context() -> None:
    # prefill of 10 tokens: 1 + 10 x 0.1 = 2 s; decode: 1 + 0.5 + 11 x 0.01, then 12 x 0.01
    events = log(
        [(0, 10, 3)],
        num_blocks=10,
        step_time={
            "fixed_s": 1,
            "per_prefill_token_s": 0.1,
            "per_decode_token_s": 0.5,
            "per_context_token_s": 0.01,
        },
    )
    assert events == [(0, "admit", 0), (2, "first_token", 0), (5.23, "finish", 0)]


def test_a_shared_prefix_is_computed_once() -> None:
    # 8 of 12 tokens are shared; 1 s + 1 s per prompt token: request 0 takes 13 s, request 1 only its 4 own: 5 s
    shared = {"prefix_id": "system", "prefix_tokens": 8}
    answer = run_simulate(
        {
            "num_blocks": 20,
            "block_size": 4,
            "step_time": {"fixed_s": 1, "per_prefill_token_s": 1},
            "events": True,
            "workload": {
                "requests": [
                    {"arrival_s": 0, "prompt_tokens": 12, "output_tokens": 1, **shared},
                    {"arrival_s": 20, "prompt_tokens": 12, "output_tokens": 1, **shared},
                ]
            },
        }
    )
    ends = [event["t_s"] for event in answer["events"] if event["event"] == "finish"]
    assert ends == [13.0, 25.0]
    assert answer["prefix_cache"]["hit_tokens"] == 8


def test_vllm_v0_brings_swapped_requests_back_before_anybody_new() -> None:
    # as in the swap log above; request 2 arrives at 6 and fits, but V0 admits nobody while somebody is swapped out; its
    # prompt then gets a step of its own, 9-10, in which request 1 does not decode
    events = log(
        [(0, 4, 7), (0, 4, 8), (6, 4, 1)],
        num_blocks=4,
        scheduler={"rules": "vllm-v0"},
        preemption_mode="swap",
        swap={"host_blocks": 8, "block_s": 0.25},
    )
    assert events[4:] == [
        (5, "preempt", 1),
        (7.5, "finish", 0),
        (7.5, "resume", 1),
        (9, "admit", 2),
        (10, "first_token", 2),
        (10, "finish", 2),
        (12, "finish", 1),
    ]


def test_vllm_v0_ignores_a_prompt_that_never_leaves_the_watermark_free() -> None:
    # 100 blocks, watermark 1: 99 blocks may be taken, 100 never
    assert log([(0, 400, 1)], num_blocks=100, scheduler={"rules": "vllm-v0"}) == [(0, "reject", 0)]
    assert log([(0, 396, 1)], num_blocks=100, scheduler={"rules": "vllm-v0"})[0] == (0, "admit", 0)
    assert log([(0, 400, 1)], num_blocks=100)[0] == (0, "admit", 0)


def test_sglang_retracts_the_longest_prompt_among_those_with_fewest_tokens() -> None:
    # 8 blocks of 4. Request 0 (8 + 12) holds 2 blocks; at 1 request 1 (4 + 12, plus a page: 20 tokens) fits the 24 free.
    # Both decode from 2. After 8 steps they hold 4 + 3 blocks and both need one more at 10: both have 9 tokens, so the
    # longer prompt goes. It needs 5 blocks for its 17 tokens and waits until request 1 ends at 13.
    events = log(
        [(0, 8, 12), (0, 4, 12)],
        num_blocks=8,
        scheduler={"rules": "sglang", "schedule_conservativeness": 0.01},
    )
    assert events == [
        (0, "admit", 0),
        (1, "first_token", 0),
        (1, "admit", 1),
        (2, "first_token", 1),
        (10, "preempt", 0),
        (13, "finish", 1),
        (13, "resume", 0),
        (16, "finish", 0),
    ]


def test_capped_prompts_share_the_budget_in_list_order() -> None:
    # budget 8, cap 4. Requests 0 and 1 have 16 tokens each and share the budget in list order, 4 + 4 per step, for
    # four steps; request 2 finds no budget until 4.
    capped = {
        "max_num_batched_tokens": 8,
        "max_num_seqs": 4,
        "scheduler": {"long_prefill_token_threshold": 4},
    }
    assert log([(0, 16, 1), (0, 16, 1), (0, 4, 2)], num_blocks=40, **capped) == [
        (0, "admit", 0),
        (0, "admit", 1),
        (4, "first_token", 0),
        (4, "finish", 0),
        (4, "first_token", 1),
        (4, "finish", 1),
        (4, "admit", 2),
        (5, "first_token", 2),
        (6, "finish", 2),
    ]
