"""Names over releases and engines: renames, hidden windows, both at once, other engines, GPU exporters."""

from __future__ import annotations

import pytest

from capacity.telemetry import Breakdown, EngineSnapshot, Histogram, State, TargetSnapshot
from connectors import vocabulary
from connectors.demo_engine import DemoPool
from connectors.report import pool_report
from connectors.scrape import snapshot_of


def look(text: str) -> TargetSnapshot:
    return snapshot_of(text.encode(), target="x", time_s=0.0)


def one(text: str) -> EngineSnapshot:
    (engine,) = look(text).engines
    return engine


def buckets(name: str, labels: str = "") -> str:
    comma = f",{labels}" if labels else ""
    return "".join(
        f'{name}_bucket{{le="{le}"{comma}}} {n}\n' for le, n in (("0.1", 1), ("1.0", 4), ("+Inf", 5))
    ) + f"{name}_sum{{{labels}}} 2.5\n{name}_count{{{labels}}} 5\n"  # fmt: skip


def test_both_names_at_once_are_read_once_newest_first() -> None:
    engine = one(
        "vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.5\nvllm:gpu_cache_usage_perc 0.5\n"
        "vllm:prefix_cache_queries_total 100\nvllm:gpu_prefix_cache_queries_total 100\n"
        + buckets("vllm:inter_token_latency_seconds")
        + buckets("vllm:time_per_output_token_seconds")
    )
    assert engine.value("kv_usage").value == 0.5
    assert engine.value("kv_usage").metric == "vllm:kv_cache_usage_perc"
    assert engine.value("prefix_queries").value == 100
    assert engine.histogram("itl_s").count == 5
    assert engine.histogram("itl_s").metric == "vllm:inter_token_latency_seconds"


def test_a_counter_exported_with_and_without_suffix_counts_once() -> None:
    engine = one(
        "ray_vllm_generation_tokens 70\nray_vllm_generation_tokens_total 70\nray_vllm_num_requests_running 1\n"
    )
    assert engine.value("generation_tokens").value == 70
    assert engine.value("generation_tokens").metric == "ray_vllm_generation_tokens_total"


RELEASES = [
    "0.4.3",
    "0.5.0",
    "0.6.0",
    "0.8.0",
    "0.8.5",
    "0.9.2",
    "0.10.2",
    "0.11.2",
    "0.16.0",
    "0.20.2",
    "0.30.0",
    "0.32.0",
]


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_answers_the_core_signals(release: str) -> None:
    demo = DemoPool(replicas=1, incident_name="calm", release=release, warm_up_s=30)
    engine = one(demo.payload(demo.engines, 0))
    numbers = tuple(int(part) for part in release.split("."))
    for signal in ("running", "waiting", "kv_usage", "prompt_tokens", "generation_tokens", "preemptions"):
        assert engine.value(signal).state is State.OK, signal
    for signal in ("ttft_s", "itl_s", "e2e_s"):
        assert engine.histogram(signal).count > 0
    assert engine.config.num_blocks.number
    swapped = engine.value("swapped")
    if numbers >= (0, 10):
        assert swapped.state is State.NOT_EXPORTED
    if numbers < (0, 20, 2):
        assert engine.value("waiting_by_reason").state is State.NOT_EXPORTED
    lowest = vocabulary.release(engine.release.split(" ")[0])
    assert lowest <= numbers


def test_engines_with_names_of_their_own() -> None:
    sglang = one(
        "sglang:num_running_reqs 3\nsglang:num_queue_reqs 2\nsglang:token_usage 0.9\nsglang:full_token_usage 0.4\n"
        "sglang:max_total_num_tokens 100000\nsglang:gen_throughput 55\n"
        + buckets("sglang:time_to_first_token_seconds", 'model_name="m"')
    )
    assert (sglang.kind, sglang.value("running").value, sglang.value("waiting").value) == ("sglang", 3, 2)
    assert sglang.value("kv_usage").value == 0.4
    assert sglang.config.kv_capacity_tokens.value == 100_000
    assert sglang.histogram("ttft_s").count == 5
    assert one("sglang_num_running_reqs 3\nsglang_token_usage 0.9\n").value("kv_usage").value == 0.9
    triton = one(
        'nv_trt_llm_request_metrics{request_type="scheduled",model="m"} 4\n'
        'nv_trt_llm_request_metrics{request_type="waiting",model="m"} 1\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.25\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m"} 1000\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m"} 64\n'
    )
    assert (triton.value("running").value, triton.value("waiting").value) == (4, 1)
    assert triton.value("kv_usage").value == 0.25
    assert triton.config.kv_capacity_tokens.value == 64_000
    assert triton.model_name == "m"
    trt = one(
        "trtllm_num_requests_running 2\ntrtllm_kv_cache_utilization 0.5\ntrtllm_kv_cache_max_blocks 10\n"
    )
    assert trt.value("kv_usage").value == 0.5
    tgi = one("tgi_batch_current_size 5\ntgi_queue_size 7\n" + buckets("tgi_request_duration"))
    assert (tgi.value("running").value, tgi.value("waiting").value) == (5, 7)
    assert tgi.value("kv_usage").state is State.NOT_EXPORTED
    llama = one(
        "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\nllamacpp:tokens_predicted_total 9\n"
    )
    assert llama.value("generation_tokens").value == 9
    assert isinstance(tgi.readings["e2e_s"], Histogram)


def test_a_proxy_that_passes_vllm_through_is_read_as_vllm() -> None:
    engine = one(
        "dynamo_frontend_inflight_requests 9\nvllm:num_requests_running 4\nvllm:kv_cache_usage_perc 0.1\n"
    )
    assert (engine.kind, engine.value("running").value) == ("vllm", 4)


def test_gpu_counters_are_by_gpu_and_no_engine() -> None:
    snapshot = look(
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",modelName="H100"} 98\nDCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0"} 0.31\n'
        'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="1"} 0.11\nDCGM_FI_PROF_DRAM_ACTIVE{gpu="0"} 0.7\n'
    )
    assert snapshot.engines == ()
    tensor = snapshot.shared["gpu_tensor_active"]
    assert isinstance(tensor, Breakdown) and tensor.parts == {"0": 0.31, "1": 0.11}


def test_rejections_without_an_engine_label() -> None:
    rejected = 'vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 7\n'
    running = 'vllm:num_requests_running{{engine="{}",model_name="m"}} 1\n'
    alone = one(running.format(0) + rejected)
    assert alone.breakdown("rejections").total == 7
    pair = look(running.format(0) + running.format(1) + rejected)
    assert len(pair.engines) == 2
    shared = pair.shared["rejections"]
    assert isinstance(shared, Breakdown) and shared.total == 7
    assert all(e.breakdown("rejections") is None for e in pair.engines)
    assert all("counts for the pool" in e.value("rejections").reason for e in pair.engines)


def test_rejections_of_a_pool_of_ranks_are_said_and_added_over_targets() -> None:
    rejected = 'vllm:admission_rejections_total{{model_name="m",reason="max_num_queued_reqs"}} {}\n'
    ranks = "".join(
        f'vllm:num_requests_{name}{{engine="{rank}",model_name="m"}} {count}\n'
        for rank in (0, 1)
        for name, count in (("running", 1), ("waiting", 0))
    )
    pages = [(ranks + rejected.format(n)).encode() for n in (7, 17)]
    shots = {t: [snapshot_of(page, target=t, time_s=10.0 * i) for i, page in enumerate(pages)] for t in "ab"}
    found = pool_report("pool", shots)
    assert found.signals["rejections_per_s"].value == 2.0
    assert found.verdict.severity == "warning"
    assert found.verdict.summary.endswith("requests are rejected")
    assert found.verdict.actions[0].flag.startswith("max_num_queued_reqs")


def test_a_signal_under_another_name_is_not_said_to_be_of_another_release() -> None:
    """Every vLLM release has a KV usage and a time between tokens, whatever it calls them."""
    engine = one("vllm:num_requests_running 1\nvllm:request_queue_time_seconds_count 3\n")
    for signal, name in (("kv_usage", "gpu_cache_usage_perc"), ("itl_s", "time_per_output_token_seconds")):
        assert engine.value(signal).state is State.MISSING, signal
        assert name in engine.value(signal).reason
    assert engine.value("waiting_by_reason").state is State.NOT_EXPORTED
    assert engine.value("tpot_s").reason.endswith("is exported from 0.11 on")


def test_two_base_models_on_one_page_are_two_engines() -> None:
    snapshot = look(
        'vllm:num_requests_running{model_name="a"} 1\nvllm:num_requests_running{model_name="b"} 2\n'
        'vllm:kv_cache_usage_perc{model_name="a"} 0.1\nvllm:kv_cache_usage_perc{model_name="b"} 0.9\n'
    )
    assert {e.model_name: e.value("kv_usage").value for e in snapshot.engines} == {"a": 0.1, "b": 0.9}


def test_every_row_has_a_source_and_a_known_kind() -> None:
    kinds = {"gauge", "gauge_by", "counter", "counter_by", "histogram", "ratio", "info", "lora", "time"}
    for row in vocabulary.rows():
        assert row.source and row.kind in kinds and row.combine in {"sum", "max", "first", "last"}
        assert bool(row.part) == row.kind.endswith("_by")
        assert row.first is None or row.last is None or row.first <= row.last


def test_the_cache_config_that_knows_its_blocks_counts() -> None:
    engine = one(
        'vllm:num_requests_running 1\nvllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n'
    )
    assert engine.config.num_blocks.value == 100
    assert engine.config.kv_capacity_tokens.value == 1600
