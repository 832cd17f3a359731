"""More event logs worked out by hand: preemption modes, gates, clients, fleet. Blocks of 4 tokens, steps of 1 s."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.simulate_cli import run_simulate
from tests.simulation.test_sim_hand_logs import log


def run(requests: list[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    """The answer with its events."""
    workload = {
        "requests": [{"arrival_s": 0, "prompt_tokens": 4, "output_tokens": 1, **one} for one in requests]
    }
    scenario = {"num_blocks": 100, "block_size": 4, "step_time": {"fixed_s": 1.0}, "events": True, **keys}
    return run_simulate({**scenario, "workload": workload})


def events(answer: dict[str, Any], *kinds: str) -> list[tuple[float, str, int]]:
    """(seconds, what, request) of some kinds, all of them when none is named."""
    return [
        (round(event["t_s"], 9), event["event"], event["request"])
        for event in answer["events"]
        if not kinds or event["event"] in kinds
    ]


def test_a_host_too_small_to_swap_to_means_recompute() -> None:
    # at 5 request 1 has 8 tokens in 2 blocks and the host has room for 1; at 7 it computes 4 + 5 tokens again
    answer = run(
        [{"output_tokens": 7}, {"output_tokens": 8}],
        num_blocks=4,
        preemption_mode="swap",
        swap={"host_blocks": 1, "block_s": 0.25},
    )
    assert events(answer)[4:] == [
        (5, "preempt", 1),
        (7, "finish", 0),
        (7, "resume", 1),
        (10, "finish", 1),
    ]
    assert answer["preemption"]["swap_refused"] == 1 and answer["recomputed_tokens"] == 8


def test_abort_takes_the_least_important_even_when_it_came_first() -> None:
    assert log([(0, 4, 7, 5), (0, 4, 7, 0)], num_blocks=4, preemption_mode="abort")[4:] == [  # type: ignore[list-item]
        (5, "preempt", 0),
        (5, "abort", 0),
        (7, "finish", 1),
    ]


def test_priority_does_not_preempt_to_admit() -> None:
    # request 0 holds 3 of 4 blocks; the urgent one needs 2 and waits for its end
    assert log(
        [(0, 12, 4, 5), (1.5, 8, 1, 0)],  # type: ignore[list-item]
        num_blocks=4,
        scheduler={"scheduling_policy": "priority"},
    ) == [
        (0, "admit", 0),
        (1, "first_token", 0),
        (4, "finish", 0),
        (4, "admit", 1),
        (5, "first_token", 1),
        (5, "finish", 1),
    ]


BUCKET = [{"policy": "token_bucket", "capacity_tokens": 100, "refill_tokens_per_s": 10}]


def test_a_token_bucket_refills() -> None:
    # 100 - 60 = 40; at 1 it holds 50: no; at 4 80 - 60 = 20; at 8 60 - 60 = 0; at 9 10: no; 101 never
    answer = run(
        [{"arrival_s": at, "prompt_tokens": 60} for at in (0, 1, 4, 8, 9)]
        + [{"arrival_s": 30, "prompt_tokens": 101}],
        admission=BUCKET,
    )
    assert events(answer, "reject") == [(1, "reject", 1), (9, "reject", 4), (30, "reject", 5)]
    assert answer["requests"]["rejected"] == {"token_bucket": 3}


def test_retry_after_is_when_the_bucket_holds_enough() -> None:
    # at 1 it is short of 10 tokens at 10 a second: Retry-After 1 s, and at 2 it holds just 60
    answer = run(
        [{"prompt_tokens": 60}, {"arrival_s": 1, "prompt_tokens": 60}],
        admission=BUCKET,
        client={"retry_policy": "retry_after"},
    )
    assert [entry for entry in events(answer) if entry[2] == 1] == [
        (1, "retry", 1),
        (2, "admit", 1),
        (3, "first_token", 1),
        (3, "finish", 1),
    ]
    assert answer["retries"] == 1 and answer["e2e_s"]["max"] == pytest.approx(2)


def test_saturation_looks_at_the_line_and_at_the_blocks() -> None:
    # 10 blocks. Request 0 holds 4: 0.4 / 0.5 = 0.8. At 0.7 two wait: 2 / 2 = 1. At 1.5 5 + 1 + 1 blocks: 1.4. At 2.5 the
    # two are gone, 5 blocks: 1. At 4.5 nobody is left.
    answer = run(
        [
            {"prompt_tokens": 16, "output_tokens": 4},
            *({"arrival_s": at} for at in (0.5, 0.6, 0.7, 1.5, 2.5, 4.5)),
        ],
        num_blocks=10,
        admission=[{"policy": "saturation", "queue_threshold": 2, "kv_threshold": 0.5}],
    )
    assert events(answer, "reject") == [(0.7, "reject", 3), (1.5, "reject", 4), (2.5, "reject", 5)]
    assert (4.5, "admit", 6) in events(answer)


def test_queued_tokens_are_prompts_without_a_first_token() -> None:
    # limit 10: 6 inside, 6 more are too many, 4 are not; at 1.5 request 0 has its token, 4 are left, 6 fit again
    answer = run(
        [{"arrival_s": at, "prompt_tokens": prompt} for at, prompt in ((0, 6), (0.5, 6), (0.6, 4), (1.5, 6))],
        admission=[{"policy": "queue_limit", "max_num_queued_tokens": 10}],
    )
    assert events(answer, "reject") == [(0.5, "reject", 1)]
    assert answer["requests"]["rejected"] == {"queued_tokens": 1}


def test_a_breaker_ejects_the_slow_engine_and_lets_it_back() -> None:
    # engine 1 takes 10 s a step. Its first answer comes at 10.5, 10 s a token against 1: out until 15.5. Requests 4 and 5
    # go to engine 0; at 16 the turn goes on where it was: 0, then 1. Its answers at 20.5 and 30.5 are slow again.
    answer = run(
        [{"arrival_s": at} for at in (0, 0.5, 2, 3.5, 11, 12, 16, 16.5)],
        fleet={
            "replicas": 2,
            "slow_replica": {"replica": 1, "factor": 10},
            "breaker": {"factor": 2, "eject_s": 5, "min_answers": 1},
        },
    )
    where = {event["request"]: event["replica"] for event in answer["events"] if event["event"] == "admit"}
    assert [where[number] for number in range(8)] == [0, 1, 0, 1, 0, 0, 0, 1]
    assert [entry for entry in events(answer, "finish") if where[entry[2]] == 1] == [
        (10.5, "finish", 1),
        (20.5, "finish", 3),
        (30.5, "finish", 7),
    ]


def test_a_new_engine_is_ready_after_its_start_delay() -> None:
    # one seat, 3 s each. The check at 2 sees 3 waiting: one more engine, ready at 5. Who waits stays; request 4 goes there.
    answer = run(
        [*({"output_tokens": 3} for _ in range(4)), {"arrival_s": 5.5, "output_tokens": 3}],
        max_num_seqs=1,
        fleet={
            "router": "least_loaded",
            "autoscale": {
                "max_replicas": 2,
                "waiting_per_replica": 1,
                "check_s": 2,
                "start_delay_s": 3,
            },
        },
    )
    assert events(answer, "finish") == [
        (3, "finish", 0),
        (6, "finish", 1),
        (8.5, "finish", 4),
        (9, "finish", 2),
        (12, "finish", 3),
    ]
    assert [one["finished"] for one in answer["replicas"]] == [4, 1]


def test_sglang_sends_a_retracted_request_to_the_end_of_the_line() -> None:
    # as in the log of the retraction; request 2 (4 + 1 + a page) finds 4 free tokens at 9 and 16 - 2 kept for request 1
    # at 11. Its prompt has a step of its own, so request 1 ends at 14; then request 0 computes 17 tokens again.
    assert log(
        [(0, 8, 12), (0, 4, 12), (9, 4, 1)],
        num_blocks=8,
        scheduler={"rules": "sglang", "schedule_conservativeness": 0.01},
    ) == [
        (0, "admit", 0),
        (1, "first_token", 0),
        (1, "admit", 1),
        (2, "first_token", 1),
        (10, "preempt", 0),
        (11, "admit", 2),
        (12, "first_token", 2),
        (12, "finish", 2),
        (14, "finish", 1),
        (14, "resume", 0),
        (17, "finish", 0),
    ]


def test_vllm_v0_keeps_one_per_cent_free_at_admission_but_not_for_decode() -> None:
    # 200 blocks, watermark 2. 196 + 2 leave 2; request 2 would leave 1. Both decode into the last two blocks at 1.
    assert log(
        [(0, 784, 2), (0, 8, 2), (0, 4, 1)],
        num_blocks=200,
        scheduler={"rules": "vllm-v0"},
    ) == [
        (0, "admit", 0),
        (0, "admit", 1),
        (1, "first_token", 0),
        (1, "first_token", 1),
        (2, "finish", 0),
        (2, "finish", 1),
        (2, "admit", 2),
        (3, "first_token", 2),
        (3, "finish", 2),
    ]


def test_static_batching_reserves_prompt_and_answer_in_order() -> None:
    # 6 blocks: 2 + 3 reserved, the next needs 2 of the 1 left and stops the line, though the last would fit
    assert log(
        [(0, 4, 5), (0, 4, 9), (0, 4, 5), (0, 4, 1)],
        num_blocks=6,
        scheduler={"rules": "static"},
    )[4:] == [
        (5, "finish", 0),
        (9, "finish", 1),
        (9, "admit", 2),
        (9, "admit", 3),
        (10, "first_token", 2),
        (10, "first_token", 3),
        (10, "finish", 3),
        (14, "finish", 2),
    ]


@pytest.mark.parametrize(
    ("host_s", "asynchronous", "end"),
    [(0.4, True, 3.0), (0.4, False, 4.2), (1.5, True, 4.5)],
)
def test_async_scheduling_hides_the_host_behind_the_step(
    host_s: float, asynchronous: bool, end: float
) -> None:
    # three steps of max(1, host) s, or of 1 s + host
    step_time = {"fixed_s": 1.0, "host_s": host_s}
    assert log([(0, 4, 3)], num_blocks=10, step_time=step_time, async_scheduling=asynchronous)[-1] == (
        end,
        "finish",
        0,
    )


def test_patience_ends_at_once_in_the_line_and_with_the_step_when_running() -> None:
    # one seat. Request 1 leaves the line at 2.5; request 2 (from 3) is being computed when its patience ends at 5.5: the
    # step ends at 6, and no token counts
    answer = run([{"output_tokens": 5}, {}, {"arrival_s": 3}], max_num_seqs=1, client={"patience_s": 2.5})
    assert events(answer) == [
        (0, "admit", 0),
        (1, "first_token", 0),
        (2.5, "abort", 1),
        (5, "finish", 0),
        (5, "admit", 2),
        (6, "abort", 2),
    ]
    assert answer["requests"]["aborted_by_reason"] == {"impatient": 2}


def test_a_deadline_ends_a_running_and_a_waiting_request() -> None:
    answer = run(
        [{"output_tokens": 10, "deadline_s": 3.5}, {"deadline_s": 2}, {"arrival_s": 1}], max_num_seqs=1
    )
    assert events(answer) == [
        (0, "admit", 0),
        (1, "first_token", 0),
        (2, "abort", 1),
        (4, "abort", 0),
        (4, "admit", 2),
        (5, "first_token", 2),
        (5, "finish", 2),
    ]
    assert answer["aborted_tokens"]["output"] == 4  # one in each of the four steps


def test_a_timed_out_request_starts_from_nothing() -> None:
    # 4 s are needed, 2 allowed: once more 1 s later, and no third time
    answer = run(
        [{"output_tokens": 4}],
        client={"timeout_s": 2, "retry_policy": "fixed", "backoff_s": 1, "max_retries": 1},
    )
    assert events(answer) == [
        (0, "admit", 0),
        (1, "first_token", 0),
        (2, "retry", 0),
        (2, "abort", 0),
        (3, "admit", 0),
        (4, "first_token", 0),
        (5, "abort", 0),
    ]
    assert answer["status"] == "nothing_finished"


def test_an_answer_after_its_client_has_gone_is_none() -> None:
    # the only token would come at 1, when its client has gone; the second attempt (from 0.75) runs from 1 and ends likewise
    answer = run(
        [{}],
        client={"timeout_s": 0.5, "retry_policy": "fixed", "backoff_s": 0.25, "max_retries": 1},
    )
    assert answer["status"] == "nothing_finished"
    assert events(answer) == [
        (0, "admit", 0),
        (0.5, "retry", 0),
        (1, "abort", 0),
        (1, "admit", 0),
        (2, "abort", 0),
    ]
