"""Bad input is refused in one clear line; traces of every known shape are read; reports hold no NaN."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.errors import CapacityError
from capacity.request_trace import parse_trace
from capacity.simulate_cli import run_simulate
from capacity.simulation.presets import PRESETS, preset
from capacity.workload import ArrivalProcess, Lengths

SHARED = Path(__file__).parents[3] / "shared" / "traces"
GOOD: dict[str, Any] = {
    "num_blocks": 100,
    "step_time": {"fixed_s": 0.02},
    "workload": {"requests": [{"arrival_s": 0, "prompt_tokens": 100, "output_tokens": 10}]},
}


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.99,396,9
"""


def poisson(**keys: Any) -> dict[str, Any]:
    return {
        "arrival": {"process": "poisson", "rate_rps": 1},
        "prompt_tokens": 10,
        "output_tokens": 10,
        **keys,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_block": 5}, "unknown key 'num_block' in the scenario; did you mean 'num_blocks'"),
        ({"num_blocks": 0}, "num_blocks is 0; expected a whole number"),
        ({"num_blocks": "many"}, "num_blocks is 'many'"),
        ({"num_blocks": float("nan")}, "num_blocks is nan"),
        ({"block_size": 1.5}, "block_size is 1.5; expected a whole number"),
        ({"step_time": None}, "step_time is missing"),
        ({"step_time": {"fixed_s": -1}}, "step_time.fixed_s is -1"),
        ({"step_time": {"fixed": 1}}, "did you mean 'fixed_s'"),
        ({"step_time": {"fixed_s": 0}}, "step_time is zero in every term"),
        ({"scheduler": {"rules": "vllm-v2"}}, "expected one of vllm-v1, vllm-v0, sglang, static"),
        ({"scheduler": {"watermark": 2}}, "scheduler.watermark is 2"),
        ({"scheduler": []}, "scheduler is an empty list; expected an object"),
        ({"scheduler": {"long_prefill_token_threshold": True}}, "long_prefill_token_threshold is true"),
        ({"preemption_mode": "pause"}, "expected one of recompute, swap, abort"),
        ({"max_num_seqs": 512, "max_num_batched_tokens": 64}, "refuses a token budget below its seats"),
        ({"admission": {"policy": "queue_limit"}}, "admission is an object; expected a list"),
        ({"admission": [{"policy": "block_gate", "free": 1}]}, "unknown key 'free' in admission[0]"),
        ({"admission": [{"policy": "block_gate", "min_free_fraction": 15}]}, "min_free_fraction is 15"),
        ({"admission": [{"policy": "token_bucket", "capacity_tokens": 0}]}, "capacity_tokens is 0"),
        ({"admission": [{"policy": "saturation", "kv_threshold": 0}]}, "kv_threshold is 0"),
        ({"admission": [{"policy": "adaptive_concurrency"}]}, "target_p99_s is missing"),
        ({"client": {"retry_policy": "always"}}, "expected one of none, immediate, fixed"),
        ({"client": {"timeout_s": 0}}, "client.timeout_s is 0"),
        ({"fleet": {"replicas": 0}}, "fleet.replicas is 0"),
        ({"fleet": {"router": "magic"}}, "expected one of round_robin"),
        ({"fleet": {"slow_replica": {"replica": 3, "factor": 2}}}, "fleet.slow_replica.replica is 3"),
        ({"workload": None}, "workload is missing"),
        ({"workload": {}}, "workload.arrival is missing"),
        ({"workload": {"requests": []}}, "workload.requests has 0 entries"),
        ({"workload": {"requests": [5]}}, "workload.requests[0] is 5"),
        ({"workload": {"requests": [{"prompt_tokens": 1.5, "output_tokens": 1}]}}, "prompt_tokens is 1.5"),
        ({"workload": {"requests": [{"prompt_tokens": -1, "output_tokens": 1}]}}, "prompt_tokens is -1"),
        ({"workload": {"requests": [{"prompt_tokens": 1}]}}, "output_tokens is null"),
        ({"workload": poisson(arrival={"process": "poisson"})}, "workload.arrival.rate_rps is missing"),
        (
            {"workload": poisson(arrival={"process": "steady", "rate_rps": 1})},
            "expected one of poisson, gamma",
        ),
        (
            {"workload": poisson(prompt_tokens={"distribution": "pareto", "mean": 3})},
            "expected one of constant",
        ),
        ({"workload": poisson(prompt_tokens={"distribution": "lognormal"})}, "mean is missing"),
        ({"workload": poisson(num_requests=10**9)}, "workload.num_requests is 1000000000"),
        ({"workload": poisson(priorities={"1" + 30 * "0": 1})}, "expected whole numbers of at most nine"),
        ({"workload": poisson(priorities={"urgent": 1})}, "workload.priorities has 'urgent'"),
        ({"workload": poisson(requests=[])}, "workload has requests and arrival"),
        ({"slo": {"ttft": 1}}, "did you mean 'ttft_s'"),
        ({"timeline": "yes"}, "timeline is 'yes'; expected true or false"),
        ({"until_s": -1}, "until_s is -1"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    scenario = {**GOOD, **change}
    with pytest.raises(CapacityError) as caught:
        run_simulate({key: value for key, value in scenario.items() if value is not None})
    text = str(caught.value)
    assert message in text
    assert "\n" not in text and text[0].islower()


@pytest.mark.parametrize("value", [-1, 0, 1e7, float("nan")])
def test_a_number_has_one_range_wherever_it_is_checked(value: float) -> None:
    arrival = {"process": "poisson", "rate_rps": value}
    with pytest.raises(CapacityError, match="expected a number, above 0, at most 1,000,000"):
        run_simulate({**GOOD, "workload": poisson(arrival=arrival)})


@pytest.mark.parametrize(
    ("key", "what"), [("values", "1,000,000 token counts"), ("parts", "100 distributions")]
)
def test_an_empty_list_is_called_one(key: str, what: str) -> None:
    with pytest.raises(CapacityError) as caught:
        run_simulate({**GOOD, "workload": poisson(prompt_tokens={key: []})})
    assert (
        str(caught.value) == f"workload.prompt_tokens.{key} is an empty list; expected a list of 1 to {what}"
    )
    assert caught.value.field == f"workload.prompt_tokens.{key}"


def test_a_warm_up_longer_than_the_run_has_no_figures() -> None:
    # ten arrivals, the last at 2.25 s; a rate of 0 or null without a reason would both mislead
    arrival = {"process": "constant", "rate_rps": 4}
    workload = {"arrival": arrival, "prompt_tokens": 20, "output_tokens": 5, "num_requests": 10}
    answer = run_simulate({**GOOD, "workload": workload, "warmup_s": 2.3})
    assert answer["status"] == "nothing_after_warmup"
    assert answer["warnings"][0].startswith(
        "nothing was measured: every request arrived within warmup_s = 2.3 s"
    )
    for name in (
        "goodput_rps",
        "goodput_requests",
        "output_tokens_per_s",
        "request_rate_rps",
        "slo_attainment",
    ):
        assert answer[name] is None
    kept = run_simulate({**GOOD, "workload": workload, "warmup_s": 2.2})
    assert kept["status"] == "ok" and kept["ttft_s"]["count"] == 1


@pytest.mark.parametrize("seed", [-1, True, "1", 1.5])
def test_bad_seed(seed: Any) -> None:
    with pytest.raises(CapacityError, match="seed is"):
        run_simulate(GOOD, seed=seed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the trace is empty"),
        ("arrival_s,prompt_tokens,output_tokens\n", "a header but no requests"),
        ("a,b,c\n1,2,3\n", "no arrival and no prompt and no output column; seen a, b, c"),
        ("arrival_s,prompt_tokens,output_tokens\n0,10\n", "line 2 of the trace has 2 fields; expected 3"),
        ("arrival_s,prompt_tokens,output_tokens\n0,ten,5\n", "line 2 of the trace has prompt_tokens 'ten'"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,10,5\n", "expected a finite number"),
        ("arrival_s,prompt_tokens,output_tokens\nsoon,10,5\n", "expected seconds or a date and time"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1796100000,1,1\n", "expected one time base"),
        ("arrival_s,prompt_tokens,output_tokens,priority\n0,1,1,high\n", "priority 'high'"),
        ('{"timestamp": 0', "line 1 of the trace is not JSON"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": 7}', "hash_ids"),
    ],
)
def test_bad_traces(text: str, message: str) -> None:
    with pytest.raises(CapacityError) as caught:
        parse_trace(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "arrivals"),
    [
        (AZURE, [0, 4.30941]),
        ('{"timestamp": 500, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n', [0.5]),
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,472,18,490,API log\n", [5]),
        ("arrival_s,input_tokens,output_tokens,reason_ratio\n0.05,48,2869,0.84\n", [0.05]),
        ("\ufeffarrival_s,prompt_tokens,output_tokens\r\n3,5,1\r\n1,5,1\r\n", [1, 3]),
        ("arrival_s,prompt_tokens,output_tokens\n1796100000000,5,1\n1796100001500,5,1\n", [0, 1.5]),
        ("arrival_s,prompt_tokens,output_tokens\n-2,5,1\n1,5,1\n", [0, 3]),
    ],
)  # fmt: skip
def test_trace_shapes(text: str, arrivals: list[float]) -> None:
    assert parse_trace(text).arrival_s.tolist() == pytest.approx(arrivals, abs=1e-6)


@pytest.mark.skipif(not SHARED.exists(), reason="the public traces lie beside the repository, not in it")
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("azure_llm_2023_conv.csv", 19_366),
        ("azure_llm_2023_code.csv", 8_819),
        ("mooncake_synthetic_trace.jsonl", 3_993),
        ("servegen_m-small_10rps_30min.csv", 17_988),
    ],
)
def test_public_traces_run(name: str, count: int) -> None:
    answer = run_simulate(
        {
            "num_blocks": 60_000,
            "step_time": {"fixed_s": 0.01, "per_prefill_token_s": 3e-5, "per_context_token_s": 5e-8},
        },
        trace_text=(SHARED / name).read_text(),
    )
    counts = answer["requests"]
    assert counts["arrived"] == count == counts["finished"] + sum(counts["rejected"].values())
    assert answer["blocks"]["free_at_end"] == 60_000


@pytest.mark.skipif(not SHARED.exists(), reason="the public traces lie beside the repository, not in it")
def test_prefix_hits_of_an_endless_cache_match_the_published_reuse() -> None:
    # the trace's own statistics: 64 % of 512-token blocks are seen again
    answer = run_simulate(
        {"num_blocks": 20_000_000, "step_time": {"fixed_s": 0.01, "per_prefill_token_s": 3e-6}},
        trace_text=(SHARED / "mooncake_synthetic_trace.jsonl").read_text(),
    )
    assert answer["prefix_cache"]["hit_rate"] == pytest.approx(0.64, abs=0.02)


def finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(finite(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("key", [item.key for item in PRESETS])
def test_presets_run_and_report_json(key: str) -> None:
    scenario = {**preset(key), "timeline": True, "requests_detail": True}
    answer = run_simulate(scenario, seed=2)
    assert finite(answer)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert answer["requests"]["finished"] > 0
    shares = [value for value in answer["time_share"].values()]
    assert sum(shares) == pytest.approx(1.0)
    assert len(answer["timeline"][0]["t_s"]) <= 2000


small = st.fixed_dictionaries(
    {
        "arrival_s": st.floats(0, 5),
        "prompt_tokens": st.integers(0, 300),
        "output_tokens": st.integers(0, 120),
        "priority": st.integers(-2, 2),
    }
)


@settings(max_examples=200, deadline=None)
@given(
    requests=st.lists(small, min_size=1, max_size=25),
    num_blocks=st.integers(1, 60),
    block_size=st.sampled_from([1, 8, 16]),
    rules=st.sampled_from(["vllm-v1", "vllm-v0", "sglang", "static", "request-level"]),
    mode=st.sampled_from(["recompute", "swap", "abort"]),
    policy=st.sampled_from(["fcfs", "priority"]),
    gate=st.booleans(),
    timeout=st.sampled_from([None, 0.5, 3.0]),
    replicas=st.sampled_from([1, 1, 2]),
    head=st.sampled_from(["block", "skip"]),
    chunked=st.sampled_from([None, None, True, False]),
    budget=st.sampled_from([32, 512]),
    caching=st.booleans(),
)
def test_no_request_is_lost_and_every_block_comes_back(
    requests: list[dict[str, Any]],
    num_blocks: int,
    block_size: int,
    rules: str,
    mode: str,
    policy: str,
    gate: bool,
    timeout: float | None,
    replicas: int,
    head: str,
    chunked: bool | None,
    budget: int,
    caching: bool,
) -> None:
    answer = run_simulate(
        {
            "num_blocks": num_blocks,
            "block_size": block_size,
            "max_num_batched_tokens": budget,
            "max_num_seqs": 16,
            "enable_prefix_caching": caching,
            "step_time": {"fixed_s": 0.01, "per_prefill_token_s": 1e-4},
            "scheduler": {
                "rules": rules,
                "scheduling_policy": policy,
                "head_of_line": head,
                "enable_chunked_prefill": chunked,
            },
            "preemption_mode": mode,
            "admission": [{"policy": "block_gate"}] if gate else [],
            "client": {"timeout_s": timeout, "retry_policy": "fixed" if timeout else "none"},
            "fleet": {"replicas": replicas, "router": "least_loaded"},
            "workload": {"requests": requests},
        }
    )
    counts = answer["requests"]
    assert counts["arrived"] == len(requests)
    assert counts["arrived"] == counts["finished"] + sum(counts["rejected"].values()) + counts["aborted"]
    assert answer["blocks"]["free_at_end"] == answer["blocks"]["total"] == num_blocks * replicas
    assert answer["kv_usage"]["peak"] <= 1.0
    assert not any("fault of the scheduler" in warning for warning in answer["warnings"])
    assert finite(answer)


def test_arrival_processes_have_their_mean_and_spread() -> None:
    rng = np.random.default_rng(1)
    for process, cv in (("poisson", 1.0), ("constant", 0.0), ("gamma", 3.0)):
        gaps = np.diff(ArrivalProcess(process=process, rate_rps=5, cv=max(cv, 1.0)).times(40_000, rng))  # type: ignore[arg-type]
        assert gaps.mean() == pytest.approx(0.2, rel=0.06)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1, abs=1e-6)
    daily = ArrivalProcess(process="daily", rate_rps=2, period_s=1000, swing=1.0).times(20_000, rng)
    phase = np.histogram(daily % 1000, bins=4)[0] / len(daily)
    assert phase[0] > 0.35 and phase[2] < 0.15


def test_lengths_have_their_mean() -> None:
    rng = np.random.default_rng(2)
    for lengths in (
        Lengths(distribution="lognormal", mean=400, cv=1.0),
        Lengths(distribution="exponential", mean=400),
        Lengths(distribution="uniform", low=300, high=500),
        Lengths(mean=400),
        Lengths(distribution="mixture", parts=(Lengths(mean=100), Lengths(mean=1600)), weights=(4, 1)),
    ):
        assert lengths.draw(60_000, rng).mean() == pytest.approx(400, rel=0.03)


def test_prompts_shorter_than_the_shared_prefix_share_their_whole_blocks() -> None:
    # 100 tokens are 6 whole blocks of 16 of a prefix of 1,000: the second request finds those 96 tokens
    shared = {"output_tokens": 2, "prefix_id": "system", "prefix_tokens": 1000}
    raw = {
        "num_blocks": 100,
        "block_size": 16,
        "step_time": {"fixed_s": 0.1},
        "workload": {
            "requests": [
                {"arrival_s": 0, "prompt_tokens": 100, **shared},
                {"arrival_s": 1, "prompt_tokens": 1200, **shared},
                {"arrival_s": 2, "prompt_tokens": 40, **shared},
                {"arrival_s": 3, "prompt_tokens": 1100, **shared},
                {"arrival_s": 4, "prompt_tokens": 10, **shared},
            ]
        },
    }
    answer = run_simulate(raw)
    assert answer["prefix_cache"]["hit_tokens"] == 0 + 96 + 32 + 992 + 0
    assert answer["blocks"]["free_at_end"] == 100
    said = (
        "3 of 5 prompts are shorter than the shared prefix of 1,000 tokens: they share the whole blocks of it"
    )
    assert any(said in text for text in answer["warnings"])

    generated = {
        **GOOD,
        "enable_prefix_caching": True,
        "workload": poisson(prompt_tokens=100, shared_prefix_tokens=1000),
    }
    assert run_simulate(generated)["prefix_cache"]["hit_tokens"] > 0
    generated["workload"] = poisson(prompt_tokens=100, shared_prefix_tokens=50)
    assert not any("shorter than the shared prefix" in text for text in run_simulate(generated)["warnings"])


def test_a_prompt_that_is_a_shared_prefix_fits_a_pool_of_its_size() -> None:
    one = {"prompt_tokens": 160, "output_tokens": 1, "prefix_id": "a", "prefix_tokens": 160}
    answer = run_simulate(
        {
            "num_blocks": 10,
            "block_size": 16,
            "step_time": {"fixed_s": 0.1},
            "workload": {"requests": [{"arrival_s": at, **one} for at in (0, 1)]},
        }
    )
    assert answer["requests"]["finished"] == 2
    assert answer["prefix_cache"]["hit_tokens"] == 144
    assert not any("fault" in text for text in answer["warnings"])


def test_a_daily_profile_with_a_short_period_costs_no_more_than_any_other() -> None:
    fast = ArrivalProcess(process="daily", rate_rps=0.01, period_s=0.1, swing=1)
    times = fast.times(100, np.random.default_rng(0))
    assert np.diff(times).min() >= 0
    assert times[-1] == pytest.approx(np.cumsum(np.random.default_rng(0).exponential(100, 100))[-1], abs=0.1)
