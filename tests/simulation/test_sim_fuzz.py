"""Any valid scenario: no warning of numpy, no NaN, every request accounted for, every block back, times in order."""

from __future__ import annotations

import json
import random
import warnings
from itertools import pairwise
from typing import Any

import pytest

from capacity.simulate_cli import run_simulate

ARRIVALS: tuple[dict[str, Any], ...] = (
    {"process": "poisson", "rate_rps": 0.1},
    {"process": "poisson", "rate_rps": 50},
    {"process": "burst", "burst_size": 20, "rate_rps": 5},
    {"process": "burst"},
    {"process": "closed_loop", "users": 7, "think_s": 1},
    {"process": "gamma", "rate_rps": 5, "cv": 4},
    {"process": "daily", "rate_rps": 3, "period_s": 20, "swing": 1},
)
GATES: tuple[dict[str, Any], ...] = (
    {"policy": "queue_limit", "max_waiting": 2},
    {"policy": "queue_limit", "max_num_queued_tokens": 200},
    {"policy": "block_gate"},
    {"policy": "token_bucket", "capacity_tokens": 300, "refill_tokens_per_s": 50, "cost": "total"},
    {"policy": "saturation"},
    {"policy": "concurrency_limit", "max_requests": 3},
    {"policy": "adaptive_concurrency", "target_p99_s": 1, "rule": "aimd"},
    {"policy": "adaptive_concurrency", "target_p99_s": 1, "rule": "utilisation"},
    {"policy": "priority_shed"},
)
FLEETS: tuple[dict[str, Any], ...] = (
    {"replicas": 3, "router": "power_of_two", "slow_replica": {"replica": 1, "factor": 5}},
    {"replicas": 2, "breaker": {"factor": 1.5, "eject_s": 2, "min_answers": 2}},
    {"replicas": 1, "failures": [{"replica": 0, "at_s": 1, "restart_s": 2}]},
    {"replicas": 2, "failures": [{"replica": 0, "at_s": 0}], "router": "least_loaded"},
    {"autoscale": {"max_replicas": 4, "start_delay_s": 1, "check_s": 0.5}, "router": "prefix_affinity"},
)
CHOICES: dict[str, tuple[Any, ...]] = {
    "num_blocks": (3, 20, 100, 1000),
    "block_size": (1, 16),
    "max_num_seqs": (1, 4, 64),
    "max_num_batched_tokens": (64, 256, 8192),
    "preemption_mode": ("recompute", "swap", "abort"),
    "admission": (None, None, *([gate] for gate in GATES)),
    "fleet": (None, None, None, *FLEETS),
    "warmup_s": (None, None, 0.5, 5, 1000),
    "until_s": (None, None, None, 0.01, 1, 20),
    "slo": (None, {"ttft_s": 0.5}),
}
SCHEDULER: dict[str, tuple[Any, ...]] = {
    "rules": ("vllm-v1", "vllm-v1", "vllm-v0", "sglang", "static", "request-level"),
    "scheduling_policy": ("fcfs", "priority"),
    "watermark": (None, 0, 0.3),
    "head_of_line": ("block", "skip"),
    "long_prefill_token_threshold": (0, 20),
}
CLIENT: dict[str, tuple[Any, ...]] = {
    "timeout_s": (None, 0.05, 1, 10),
    "patience_s": (None, 0.03, 0.5),
    "retry_policy": ("none", "immediate", "fixed", "exponential", "retry_after"),
    "max_retries": (0, 2, 20),
}
WORKLOAD: dict[str, tuple[Any, ...]] = {
    "arrival": ARRIVALS,
    "prompt_tokens": (0, 1, 50, {"mean": 100, "cv": 1}, {"values": [0, 1, 700]}),
    "output_tokens": (0, 1, 2, 40, {"mean": 50, "cv": 2, "min": 0}),
    "num_requests": (1, 2, 10, 90, 200),
    "priorities": (None, {"0": 1, "5": 1, "-3": 1}),
    "shared_prefix_tokens": (0, 0, 1, 16, 64),
    "prefix_groups": (1, 3),
    "sessions": (0, 3),
}
STEP_TIME: dict[str, tuple[Any, ...]] = {
    "fixed_s": (0, 0.02),
    "per_prefill_token_s": (1e-4,),
    "per_decode_token_s": (0, 1e-3),
    "host_s": (0, 0.01),
}


def scenario(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)

    def draw(table: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        drawn = {key: rng.choice(values) for key, values in table.items()}
        return {key: value for key, value in drawn.items() if value is not None}

    found = draw(CHOICES) | {"seed": seed, "timeline": True, "requests_detail": True, "events": True}
    found |= {"workload": draw(WORKLOAD), "step_time": draw(STEP_TIME), "scheduler": draw(SCHEDULER)}
    if rng.random() < 0.5:
        found["client"] = draw(CLIENT)
    return found


@pytest.mark.parametrize("block", range(5))
def test_any_scenario_adds_up(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        given = scenario(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answer = run_simulate(given)
        json.dumps(answer, allow_nan=False)
        requests = answer["requests"]
        ended = requests["finished"] + requests["aborted"] + sum(requests["rejected"].values())
        assert ended + requests["in_flight_at_end"] == requests["arrived"], seed
        if not requests["in_flight_at_end"] and "until_s" not in given:
            assert answer["blocks"]["free_at_end"] == answer["blocks"]["total"], seed
        assert answer["kv_usage"]["peak"] <= 1, seed
        assert not any(text.startswith("fault of") for text in answer["warnings"]), seed
        shares = answer["time_share"]
        assert shares["queue"] is None or sum(shares.values()) == pytest.approx(1), seed
        for row in answer["gantt"]:
            if row["outcome"] == "finished":
                names = ("arrival_s", "scheduled_s", "first_token_s", "end_s")
                times = [row[name] for name in names if row["output_tokens"] or name != "first_token_s"]
                assert None not in times, seed
                assert all(later >= earlier - 1e-9 for earlier, later in pairwise(times)), seed
