"""Pages of engines that are not vLLM, at two moments ten seconds apart: every signal they have, by hand, with
the name that answered; what they have not is said; settings carry the engine's own names.
"""

from __future__ import annotations

import pytest

from capacity.telemetry import SIGNALS, State
from connectors.report import PoolReport, pool_report
from connectors.scrape import snapshot_of

BOUNDS = (0.01, 0.02, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


def histogram(name: str, labels: str, value: float, count: int) -> str:
    """A histogram with all its observations at one value."""
    comma = "," if labels else ""
    rows = [f'{name}_bucket{{{labels}{comma}le="{b}"}} {count if value <= b else 0}' for b in BOUNDS]
    rows.append(f'{name}_bucket{{{labels}{comma}le="+Inf"}} {count}')
    rows += [f"{name}_sum{{{labels}}} {count * value}", f"{name}_count{{{labels}}} {count}"]
    return "\n".join(rows) + "\n"


RANK = 'engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"'
MODEL = 'model_name="m"'


def sglang(k: int, prefix: str = "sglang:") -> str:
    page = (
        f"x:prompt_tokens_total{{{MODEL}}} {8_128_902 + 10_000 * k}\n"
        f"x:generation_tokens_total{{{MODEL}}} {7_557_572 + 5_000 * k}\n"
        f"x:cached_tokens_total{{{MODEL}}} {2_000_000 + 2_500 * k}\n"
        f"x:num_requests_total{{{MODEL}}} {100 + 10 * k}\nx:num_aborted_requests_total{{{MODEL}}} 1\n"
        f"x:token_usage{{{RANK}}} 0.91\nx:full_token_usage{{{RANK}}} 0.31\nx:cache_hit_rate{{{RANK}}} 0.25\n"
        f"x:num_running_reqs{{{RANK}}} 162\nx:num_queue_reqs{{{RANK}}} 2\nx:gen_throughput{{{RANK}}} 86.5\n"
        f"x:max_total_num_tokens{{{RANK}}} 400000\nx:num_retracted_requests_total{{{RANK}}} {3 + 2 * k}\n"
        + histogram("x:time_to_first_token_seconds", MODEL, 0.05, 10 + 10 * k)
        + histogram("x:inter_token_latency_seconds", MODEL, 0.015, 100 + 100 * k)
        + histogram("x:e2e_request_latency_seconds", MODEL, 4.0, 10 + 10 * k)
        + histogram("x:queue_time_seconds", RANK, 0.03, 10 + 10 * k)
    )
    return page.replace("x:", prefix)


def trtllm(k: int) -> str:
    labels = 'engine_type="trtllm",model_name="m"'
    return (
        f"trtllm_num_requests_running{{{labels}}} 5\ntrtllm_num_requests_waiting{{{labels}}} 0\n"
        f"trtllm_kv_cache_utilization{{{labels}}} 0.42\ntrtllm_kv_cache_hit_rate{{{labels}}} 0.5\n"
        f"trtllm_kv_cache_max_blocks{{{labels}}} 1000\ntrtllm_kv_cache_tokens_per_block{{{labels}}} 32\n"
        f'trtllm_request_success_total{{{labels},finished_reason="stop"}} {10 + 4 * k}\n'
        + histogram("trtllm_time_to_first_token_seconds", labels, 0.05, 10 + 10 * k)
        + histogram("trtllm_time_per_output_token_seconds", labels, 0.015, 10 + 10 * k)
        + histogram("trtllm_e2e_request_latency_seconds", labels, 4.0, 10 + 10 * k)
        + histogram("trtllm_request_queue_time_seconds", labels, 0.03, 10 + 10 * k)
    )


def triton(k: int) -> str:
    requests = {"active": 12, "scheduled": 8, "waiting": 4, "max": 512, "context": 1}
    blocks = {"fraction": 0.6, "free": 400, "max": 1000, "used": 600, "tokens_per": 64}
    kind = 'model="tensorrt_llm",version="1"'
    return (
        f'nv_inference_request_success{{model="ensemble",version="1"}} {100 + 10 * k}\n'
        + "".join(
            f'nv_trt_llm_request_metrics{{request_type="{t}",{kind}}} {n}\n' for t, n in requests.items()
        )
        + "".join(
            f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{t}",{kind}}} {n}\n'
            for t, n in blocks.items()
        )
    )


def tgi(k: int) -> str:
    return (
        f'tgi_request_count {120 + 10 * k}\ntgi_request_success{{method="batch"}} {100 + 10 * k}\n'
        "tgi_queue_size 7\ntgi_batch_current_size 16\ntgi_batch_current_max_tokens 30000\n"
        + histogram("tgi_request_duration", "", 4.0, 10 + 10 * k)
        + histogram("tgi_request_queue_duration", "", 0.2, 10 + 10 * k)
        + histogram("tgi_request_mean_time_per_token_duration", "", 0.03, 10 + 10 * k)
    )


def llamacpp(k: int) -> str:
    return (
        f"llamacpp:prompt_tokens_total {1000 + 300 * k}\nllamacpp:tokens_predicted_total {5000 + 150 * k}\n"
        "llamacpp:prompt_tokens_seconds 81.3\nllamacpp:predicted_tokens_seconds 49.9\n"
        "llamacpp:n_busy_slots_per_decode 1.25\nllamacpp:requests_processing 2\nllamacpp:requests_deferred 0\n"
    )


def dynamo(k: int) -> str:
    labels, worker = 'model="m"', 'dynamo_component="backend"'
    return (
        f"dynamo_frontend_inflight_requests{{{labels}}} 9\ndynamo_frontend_queued_requests{{{labels}}} 3\n"
        f"dynamo_component_kvstats_gpu_cache_usage_percent{{{worker}}} 0.33\n"
        f"dynamo_component_kvstats_total_blocks{{{worker}}} 2000\n"
        + histogram("dynamo_frontend_time_to_first_token_seconds", labels, 0.05, 10 + 10 * k)
        + histogram("dynamo_frontend_inter_token_latency_seconds", labels, 0.015, 10 + 10 * k)
        + histogram("dynamo_frontend_request_duration_seconds", labels, 4.0, 10 + 10 * k)
    )


# median of a bucket: half of its width above its lower bound
SGLANG = {
    "running": (162, "num_running_reqs"),
    "waiting": (2, "num_queue_reqs"),
    "kv_usage": (0.31, "full_token_usage"),
    "kv_capacity_tokens": (400_000, "max_total_num_tokens"),
    "prompt_tokens_per_s": (1000, "prompt_tokens_total"),
    "generation_tokens_per_s": (500, "generation_tokens_total"),
    "requests_per_s": (1, "num_requests_total"),
    "preemptions_per_s": (0.2, "num_retracted_requests_total"),
    "prefix_cache_hit_rate": (0.25, "cache_hit_rate"),
    "ttft_s.p50": (0.05, "time_to_first_token_seconds"),
    "itl_s.p50": (0.015, "inter_token_latency_seconds"),
    "e2e_s.p50": (3.75, "e2e_request_latency_seconds"),
    "queue_s.p50": (0.03, "queue_time_seconds"),
}
TRTLLM = {
    "running": (5, "num_requests_running"),
    "waiting": (0, "num_requests_waiting"),
    "kv_usage": (0.42, "kv_cache_utilization"),
    "kv_capacity_tokens": (32_000, "kv_cache_max_blocks"),
    "num_blocks": (1000, "kv_cache_max_blocks"),
    "block_size": (32, "kv_cache_tokens_per_block"),
    "requests_per_s": (0.4, "request_success_total"),
    "prefix_cache_hit_rate": (0.5, "kv_cache_hit_rate"),
    "ttft_s.p50": (0.05, "time_to_first_token_seconds"),
    "tpot_s.p50": (0.015, "time_per_output_token_seconds"),
    "e2e_s.p50": (3.75, "e2e_request_latency_seconds"),
    "queue_s.p50": (0.03, "request_queue_time_seconds"),
}
TRITON = {
    "running": (8, "nv_trt_llm_request_metrics"),
    "waiting": (4, "nv_trt_llm_request_metrics"),
    "kv_usage": (0.6, "nv_trt_llm_kv_cache_block_metrics"),
    "kv_capacity_tokens": (64_000, "nv_trt_llm_kv_cache_block_metrics"),
    "num_blocks": (1000, "nv_trt_llm_kv_cache_block_metrics"),
    "block_size": (64, "nv_trt_llm_kv_cache_block_metrics"),
}
TGI = {
    "running": (16, "batch_current_size"),
    "waiting": (7, "queue_size"),
    "requests_per_s": (1, "request_success"),
    "itl_s.p50": (0.03, "request_mean_time_per_token_duration"),
    "tpot_s.p50": (0.03, "request_mean_time_per_token_duration"),
    "e2e_s.p50": (3.75, "request_duration"),
    "queue_s.p50": (0.175, "request_queue_duration"),
}
LLAMACPP = {
    "running": (2, "requests_processing"),
    "waiting": (0, "requests_deferred"),
    "prompt_tokens_per_s": (30, "prompt_tokens_total"),
    "generation_tokens_per_s": (15, "tokens_predicted_total"),
}
DYNAMO = {
    "running": (9, "frontend_inflight_requests"),
    "waiting": (3, "frontend_queued_requests"),
    "kv_usage": (0.33, "component_kvstats_gpu_cache_usage_percent"),
    "num_blocks": (2000, "component_kvstats_total_blocks"),
    "ttft_s.p50": (0.05, "frontend_time_to_first_token_seconds"),
    "itl_s.p50": (0.015, "frontend_inter_token_latency_seconds"),
    "e2e_s.p50": (3.75, "frontend_request_duration_seconds"),
}
ENGINES = {
    "sglang:": (sglang, SGLANG),
    "sglang_": (lambda k: sglang(k, "sglang_"), SGLANG),
    "trtllm_": (trtllm, TRTLLM),
    "": (triton, TRITON),
    "tgi_": (tgi, TGI),
    "llamacpp:": (llamacpp, LLAMACPP),
    "dynamo_": (dynamo, DYNAMO),
}


def pair(page: object) -> PoolReport:
    """Two pages of one engine, ten seconds apart."""
    snapshots = [snapshot_of(page(k).encode(), target="x", time_s=10.0 * k) for k in (0, 1)]
    return pool_report("x", {"x": snapshots})


@pytest.mark.parametrize("prefix", ENGINES, ids=lambda prefix: prefix or "triton")
def test_all_signals_of_an_engine(prefix: str) -> None:
    page, expected = ENGINES[prefix]
    (engine,) = pair(page).engines
    for name, (value, metric) in expected.items():
        found = engine.signals[name]
        assert found.value == pytest.approx(value), name
        assert (found.metric, found.state) == (prefix + metric, State.OK), name
    families = {name.split(".")[0] for name in expected} | {"finished_by_reason"}
    for name in SIGNALS:
        if name.split(".")[0] not in families:
            found = engine.signals[name]
            assert found.value is None and found.state in (State.NOT_EXPORTED, State.MISSING), name
            assert "cache_config_info" not in found.reason, name


def test_kv_usage_of_llamacpp_is_gone_and_of_tgi_never_was() -> None:
    for page in (llamacpp, tgi):
        assert pair(page).signals["kv_usage"].state is State.NOT_EXPORTED
    old = pair(lambda k: llamacpp(k) + "llamacpp:kv_cache_usage_ratio 0.5\n")
    assert old.signals["kv_usage"].value == 0.5


@pytest.mark.parametrize(
    ("page", "name", "flags"),
    [
        (sglang, "preempting", ["--max-running-requests", "--mem-fraction-static", ""]),
        (tgi, "seat-bound", ["--max-batch-total-tokens", ""]),
    ],
)
def test_actions_name_the_engines_own_settings(page: object, name: str, flags: list[str]) -> None:
    found = pair(page).verdict
    assert (found.name, [one.flag for one in found.actions]) == (name, flags)


def test_ranks_of_sglang_share_counters_that_name_no_rank() -> None:
    """Two data-parallel ranks: gauges by rank, tokens and latencies of the tokenizer once for both."""

    def page(k: int) -> str:
        lines = [line for line in sglang(k).splitlines() if "gen_throughput" not in line]
        ranked = [line.replace('tp_rank="0"', 'tp_rank="0",dp_rank="{}"') for line in lines if RANK in line]
        once = [line for line in lines if RANK not in line]
        return "\n".join([line.replace("{}", str(r)) for r in (0, 1) for line in ranked] + once) + "\n"

    found = pair(page)
    assert len(found.engines) == 2
    assert found.signals["running"].value == 324
    assert found.signals["generation_tokens_per_s"].value == 500
    assert found.signals["generation_tokens_per_s"].state is State.OK
    assert found.signals["requests_per_s"].value == 1
    assert found.signals["ttft_s.p50"].count == 10
    assert found.signals["queue_s.p50"].count == 20
    assert found.signals["prefix_cache_hit_rate"].value is None
    assert found.signals["prefix_cache_hit_rate"].by_engine == {"0": 0.25, "1": 0.25}
    for engine in found.engines:
        assert engine.signals["generation_tokens_per_s"].value is None
        assert "counts for the pool" in engine.signals["generation_tokens_per_s"].reason
