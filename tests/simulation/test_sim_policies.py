"""Admission, clients and fleet: what each policy lets in, what clients do then, where the router sends them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from capacity.errors import CapacityError
from capacity.simulate_cli import run_simulate
from capacity.simulation.admission import AdaptiveConcurrency, PoolView
from capacity.simulation.clients import Client
from capacity.simulation.rate_limit import TokenBucket

BUSY = {
    "num_blocks": 1500,
    "block_size": 16,
    "max_num_seqs": 128,
    "step_time": {"fixed_s": 0.01, "per_prefill_token_s": 2e-5, "per_context_token_s": 1e-7},
    "slo": {"ttft_s": 2.0},
    "workload": {
        "arrival": {"process": "poisson", "rate_rps": 14},
        "prompt_tokens": {"distribution": "lognormal", "mean": 400, "cv": 1},
        "output_tokens": {"distribution": "lognormal", "mean": 200, "cv": 0.6},
        "num_requests": 1200,
    },
}


def burst(count: int, prompt: int = 100, output: int = 20, **rest: Any) -> dict[str, Any]:
    return {
        "requests": [
            {"arrival_s": 0, "prompt_tokens": prompt, "output_tokens": output, **rest} for _ in range(count)
        ]
    }


def run(**keys: Any) -> dict[str, Any]:
    answer = run_simulate({**BUSY, **keys})
    counts = answer["requests"]
    assert counts["arrived"] == counts["finished"] + sum(counts["rejected"].values()) + counts["aborted"]
    assert answer["blocks"]["free_at_end"] == answer["blocks"]["total"]
    return answer


def refused(policy: dict[str, Any], workload: dict[str, Any], **keys: Any) -> int:
    answer = run(workload=workload, admission=[policy], **keys)
    return sum(answer["requests"]["rejected"].values())


def test_queue_limit_counts_waiting_and_running() -> None:
    spread = {
        "requests": [{"arrival_s": i * 0.05, "prompt_tokens": 100, "output_tokens": 400} for i in range(10)]
    }
    assert refused({"policy": "queue_limit", "max_num_queued_reqs": 4}, spread) == 6
    assert refused({"policy": "queue_limit", "max_waiting": 4}, spread) == 0
    assert refused({"policy": "queue_limit", "max_waiting": 4}, burst(10)) == 6


def test_queued_tokens_count_prompts_without_a_first_token() -> None:
    limit = {"policy": "queue_limit", "max_num_queued_tokens": 350}
    assert refused(limit, burst(10)) == 7
    later = {"requests": [{"arrival_s": i, "prompt_tokens": 300, "output_tokens": 200} for i in range(5)]}
    assert refused(limit, later) == 0


def test_block_gate_counts_prompt_and_output_of_those_who_have_not_started() -> None:
    # 100 blocks; 200 + 50 tokens are 16 blocks: five leave 20, a sixth would leave 4, less than 15
    gate = {"policy": "block_gate", "min_free_fraction": 0.15}
    assert refused(gate, burst(10, 200, 50), num_blocks=100) == 5
    assert refused({**gate, "min_free_fraction": 0.0}, burst(10, 200, 50), num_blocks=100) == 4
    assert refused({**gate, "expected_output_tokens": 0}, burst(10, 200, 50), num_blocks=100) == 4


def test_block_gate_ends_preemption() -> None:
    open_run, gated = run(), run(admission=[{"policy": "block_gate"}])
    assert open_run["requests"]["preemptions"] > 20
    assert gated["requests"]["preemptions"] == 0
    assert gated["ttft_s"]["p99"] < open_run["ttft_s"]["p99"] / 5
    assert gated["kv_usage"]["peak"] < 0.95


def test_token_bucket_charges_tokens_not_requests() -> None:
    bucket = {"policy": "token_bucket", "capacity_tokens": 1000, "refill_tokens_per_s": 100}
    assert refused(bucket, burst(30, 50, 10)) == 10
    assert refused(bucket, burst(3, 600, 10)) == 2
    assert refused({**bucket, "cost": "total"}, burst(30, 50, 50)) == 20


def test_token_bucket_says_when_and_never() -> None:
    bucket = TokenBucket(capacity_tokens=100, refill_tokens_per_s=10)
    assert bucket.take(100, now_s=5) == 0.0
    assert bucket.take(30, now_s=5) == pytest.approx(3.0)
    assert bucket.take(101, now_s=5) is None
    assert bucket.take(30, now_s=8) == 0.0


def test_saturation_is_the_mean_over_engines() -> None:
    slow = {
        "requests": [{"arrival_s": i * 1e-4, "prompt_tokens": 100, "output_tokens": 20} for i in range(40)]
    }
    one = refused({"policy": "saturation"}, slow, max_num_seqs=2)
    two = refused({"policy": "saturation"}, slow, max_num_seqs=2, fleet={"replicas": 2})
    assert one > two > 0


def test_saturation_and_priority_shed_spare_the_urgent() -> None:
    mixed = {
        "requests": [
            {"arrival_s": i * 1e-3, "prompt_tokens": 300, "output_tokens": 100, "priority": i % 2}
            for i in range(80)
        ]
    }
    for policy in (
        {"policy": "saturation", "shed_above_priority": 0},
        {"policy": "priority_shed", "keep_up_to": 0, "kv_threshold": 0.3},
    ):
        answer = run(workload=mixed, admission=[policy], num_blocks=400, requests_detail=True)
        outcomes = {(row["outcome"], row["request"] % 2) for row in answer["gantt"]}
        assert ("rejected", 1) in outcomes
        assert ("rejected", 0) not in outcomes


def test_policies_compose_and_the_first_refusal_counts() -> None:
    both = [
        {"policy": "concurrency_limit", "max_requests": 5},
        {"policy": "token_bucket", "capacity_tokens": 300, "refill_tokens_per_s": 1},
    ]
    answer = run(workload=burst(10), admission=both)
    assert answer["requests"]["rejected"] == {"concurrency_limit": 5, "token_bucket": 2} or answer[
        "requests"
    ]["rejected"] == {"token_bucket": 7}


def test_concurrency_limit_by_tokens() -> None:
    assert refused({"policy": "concurrency_limit", "max_tokens": 500}, burst(10)) == 6


@pytest.mark.parametrize("rule", ["aimd", "utilisation"])
def test_adaptive_limit_falls_when_slow_and_rises_when_not(rule: str) -> None:
    policy = AdaptiveConcurrency(target_p99_s=1.0, rule=rule, initial=10, interval_s=1.0)
    nobody: Any = None
    view = PoolView([])
    policy.high, policy.low = 2.0, 2.0
    policy.left(nobody, 0.0, 5.0)
    policy.decide(view, nobody, 0.0)
    assert policy.limit < 10
    before = policy.limit
    policy.left(nobody, 0.5, 0.1)
    policy.decide(view, nobody, 1.0)
    assert policy.limit > before


def test_retries_are_counted_and_bounded() -> None:
    answer = run(
        workload=burst(10),
        admission=[{"policy": "concurrency_limit", "max_requests": 1}],
        client={"retry_policy": "immediate", "max_retries": 3},
    )
    assert answer["retries"] == 9 * 3
    assert answer["refusals"]["concurrency_limit"] == 9 * 4
    assert answer["requests"]["finished"] == 1


def test_backing_off_gets_in_later() -> None:
    keys: dict[str, Any] = {
        "workload": burst(10),
        "admission": [{"policy": "concurrency_limit", "max_requests": 1}],
    }
    patient = run(client={"retry_policy": "fixed", "backoff_s": 0.3, "max_retries": 30}, **keys)
    assert patient["requests"]["finished"] == 10
    assert patient["ttft_s"]["max"] > 1.0


def test_retry_after_is_heeded() -> None:
    client = Client(retry_policy="retry_after", max_retries=2)
    rng = random.Random(0)
    assert client.delay_s(0, 7.5, rng) == 7.5
    assert client.delay_s(2, 7.5, rng) is None
    assert 0 <= (client.delay_s(0, None, rng) or 0.0) <= 1.0


def test_timeouts_free_blocks_and_waste_tokens() -> None:
    answer = run(client={"timeout_s": 3.0})
    assert answer["requests"]["aborted_by_reason"] == {"timeout": answer["requests"]["aborted"]}
    assert answer["requests"]["aborted"] > 0
    assert answer["e2e_s"]["max"] <= 3.0 + 0.1
    assert answer["aborted_tokens"]["computed"] > 0


def test_patience_ends_with_the_first_token() -> None:
    answer = run(client={"patience_s": 0.4})
    assert answer["requests"]["aborted_by_reason"].keys() == {"impatient"}
    assert answer["ttft_s"]["max"] <= 0.4 + 0.1
    assert answer["e2e_s"]["max"] > 1.0


def test_a_retry_storm_costs_goodput() -> None:
    storm = run(client={"timeout_s": 5.0, "retry_policy": "immediate", "max_retries": 5})
    calm = run(client={"timeout_s": 5.0})
    assert storm["retries"] > 50
    assert storm["goodput_rps"] < calm["goodput_rps"]


@pytest.mark.parametrize(
    "router", ["round_robin", "least_loaded", "power_of_two", "session_affinity", "prefix_affinity"]
)
def test_every_router_serves_everybody(router: str) -> None:
    workload = {**BUSY["workload"], "shared_prefix_tokens": 64, "prefix_groups": 6, "sessions": 20}  # type: ignore[dict-item]
    answer = run(fleet={"replicas": 3, "router": router}, workload=workload)
    assert answer["requests"]["finished"] == 1200
    assert all(replica["finished"] > 100 for replica in answer["replicas"])


def test_prefix_affinity_hits_more_than_round_robin() -> None:
    workload = {
        "arrival": {"process": "poisson", "rate_rps": 14},
        "prompt_tokens": 700,
        "output_tokens": 100,
        "shared_prefix_tokens": 512,
        "prefix_groups": 60,
        "num_requests": 1000,
    }
    rate = {
        router: run(fleet={"replicas": 3, "router": router}, workload=workload)["prefix_cache"]["hit_rate"]
        for router in ("round_robin", "prefix_affinity")
    }
    assert rate["prefix_affinity"] > 1.2 * rate["round_robin"]


def test_round_robin_suffers_from_a_slow_replica_and_the_breaker_helps() -> None:
    slow = {"replicas": 3, "slow_replica": {"replica": 1, "factor": 4}}
    plain = run(fleet=slow)
    least = run(fleet={**slow, "router": "least_loaded"})
    broken = run(fleet={**slow, "breaker": {"factor": 2.0, "eject_s": 60, "min_answers": 5}})
    assert least["e2e_s"]["p99"] < plain["e2e_s"]["p99"]
    assert broken["e2e_s"]["p99"] < plain["e2e_s"]["p99"]


def test_a_failed_replica_loses_nobody() -> None:
    fleet = {"replicas": 2, "failures": [{"replica": 0, "at_s": 30, "restart_s": 20}]}
    answer = run(fleet=fleet)
    assert answer["requests"]["finished"] == 1200
    lonely = run(fleet={"replicas": 1, "failures": [{"replica": 0, "at_s": 30, "restart_s": 20}]})
    assert lonely["requests"]["rejected"].keys() == {"no_replica"}


def test_scale_out_needs_its_start_delay() -> None:
    quick = run(fleet={"replicas": 1, "autoscale": {"start_delay_s": 5, "max_replicas": 3}})
    slow = run(fleet={"replicas": 1, "autoscale": {"start_delay_s": 60, "max_replicas": 3}})
    assert 2 <= len(quick["replicas"]) <= 3
    assert quick["ttft_s"]["p99"] <= slow["ttft_s"]["p99"]


def test_closed_loop_keeps_its_users_busy() -> None:
    workload = {**BUSY["workload"], "arrival": {"process": "closed_loop", "users": 20}}  # type: ignore[dict-item]
    for replicas in (1, 2):
        answer = run(workload=workload, fleet={"replicas": replicas})
        assert answer["requests"]["finished"] == 1200
        assert answer["steps"]["peak_running"] <= 20
        assert answer["request_rate_rps"] * answer["e2e_s"]["mean"] == pytest.approx(20, rel=0.05)


def test_unknown_policy_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(CapacityError, match="expected one of queue_limit, block_gate"):
        run(admission=[{"policy": "vibes"}])


def test_a_deadline_belongs_to_one_request() -> None:
    requests = [
        {"arrival_s": 0, "prompt_tokens": 100, "output_tokens": 500, "deadline_s": 1.0},
        {"arrival_s": 0, "prompt_tokens": 100, "output_tokens": 500},
    ]
    answer = run(workload={"requests": requests}, client={"retry_policy": "immediate"})
    assert answer["requests"]["aborted_by_reason"] == {"deadline": 1}
    assert answer["requests"]["finished"] == 1
    assert answer["retries"] == 0


def test_a_retry_may_end_in_the_same_step_as_its_abandoned_first_attempt_would_have() -> None:
    for timeout in (0.03, 0.05, 0.1):
        for output in range(4, 30):
            answer = run_simulate(
                {
                    "num_blocks": 100,
                    "step_time": {"fixed_s": 0.01},
                    "client": {"timeout_s": timeout, "retry_policy": "immediate", "max_retries": 3},
                    "workload": burst(4, 20, output),
                }
            )
            assert answer["requests"]["finished"] + answer["requests"]["aborted"] == 4


def test_a_request_given_up_on_is_not_sent_on_when_its_engine_dies() -> None:
    # the client hangs up at 0.25 inside the step 0-1 and retries; the engine dies at 0.5: only the retry goes on
    answer = run_simulate(
        {
            "num_blocks": 100,
            "step_time": {"fixed_s": 1.0},
            "client": {"timeout_s": 0.25, "retry_policy": "fixed", "backoff_s": 0.1, "max_retries": 1},
            "fleet": {"replicas": 2, "failures": [{"replica": 0, "at_s": 0.5}]},
            "workload": burst(1, 20, 5),
        }
    )
    assert answer["requests"]["arrived"] == 1
    assert answer["requests"]["aborted"] == 1
    assert answer["retries"] == 1
    assert answer["blocks"]["free_at_end"] == answer["blocks"]["total"]
