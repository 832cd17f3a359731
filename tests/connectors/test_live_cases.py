"""Cases from public reports about direct scrapes (C057 to C099): the right reading, and what a poor tool
shows.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from capacity.telemetry import Breakdown, Histogram, State, engine_signals, open_window
from connectors.engine_config import Limits
from connectors.errors import NotMetrics
from connectors.report import PoolReport, pool_report
from connectors.scrape import snapshot_of
from tests.connectors import metrics_files


def report(*names: str, interval_s: float = 15.0) -> PoolReport:
    snapshots = [metrics_files.snapshot(name, time_s=i * interval_s) for i, name in enumerate(names)]
    return pool_report(names[-1], {names[-1]: snapshots}, single="since start")


def test_c057_old_and_new_names_give_the_same_panels() -> None:
    old, new = report("legacy_names_v0.prom").signals, report("v1_single_busy.prom").signals
    same = ("running", "waiting", "kv_usage", "ttft_s.p50", "ttft_s.p99", "itl_s.p50", "itl_s.p99")
    for name in same:
        assert old[name].value == new[name].value is not None, name
    assert old["kv_usage"].value == 0.37
    assert old["kv_usage"].metric == "vllm:gpu_cache_usage_perc"
    assert new["kv_usage"].metric == "vllm:kv_cache_usage_perc"
    assert old["itl_s.p50"].metric == "vllm:time_per_output_token_seconds"
    assert old["swapped"].value == 0.0
    assert new["swapped"].state is State.NOT_EXPORTED
    assert old["prefix_cache_hit_rate"].value is None
    assert "-1" in old["prefix_cache_hit_rate"].reason
    assert new["prefix_cache_hit_rate"].value == 0.25


def test_c059_several_engines_behind_one_address() -> None:
    found = report("dp4_balanced.prom")
    assert found.signals["running"].value == 42
    assert found.signals["waiting"].value == 1
    usage = found.signals["kv_usage"]
    assert usage.value == 0.35
    assert usage.by_engine == {"0": 0.31, "1": 0.33, "2": 0.29, "3": 0.35}
    assert "mean 32.0%" in usage.reason
    assert sum(e.window.latest.value("prompt_tokens").value for e in found.engines) == 10_000
    assert found.verdict.name == "healthy"


def test_c062_stuck_with_an_empty_pool() -> None:
    found = report("stuck_waiting_idle_pool.prom")
    assert found.verdict.name == "stalled"
    assert found.verdict.severity == "critical"
    assert "not admitting work" in found.verdict.summary
    assert not any("GPUs" in one.text for one in found.verdict.actions)


def test_c064_not_the_engines_page() -> None:
    with pytest.raises(NotMetrics, match="none of a known engine: wrong port, or stats disabled"):
        metrics_files.snapshot("python_only.prom")


def test_c066_created_series_are_start_times() -> None:
    (engine,) = metrics_files.snapshot("created_series.prom").engines
    assert engine.value("prompt_tokens").value == 5120
    assert engine.value("generation_tokens").value == 1024
    assert engine.histogram("ttft_s").count == 16
    assert engine.started_at_s == 1.7961e9


def test_c068_cut_in_mid_line() -> None:
    snapshot = metrics_files.snapshot("truncated_no_newline.prom")
    (engine,) = snapshot.engines
    assert snapshot.state is State.PARTIAL
    assert "partial page" in snapshot.notes[0]
    assert engine.value("e2e_s").state is State.PARTIAL
    assert isinstance(engine.readings["ttft_s"], Histogram)
    assert engine.value("kv_usage").value == 0.37
    signals = report("truncated_no_newline.prom").signals
    assert signals["e2e_s.p99"].value is None
    assert signals["ttft_s.p99"].value == pytest.approx(0.98)


def test_c068_cut_at_a_line_end_inside_a_histogram() -> None:
    lines = metrics_files.page("v1_single_busy.prom").splitlines(keepends=True)
    bucket = b'e2e_request_latency_seconds_bucket{engine="0",le="5.0"'
    last = max(i for i, line in enumerate(lines) if bucket in line)
    snapshot = snapshot_of(b"".join(lines[: last + 1]), target="x", time_s=0)
    (engine,) = snapshot.engines
    assert snapshot.state is State.PARTIAL
    assert engine.value("e2e_s").value is None
    assert engine.value("e2e_s").state is State.PARTIAL


def test_c068_a_histogram_without_its_inf_bucket_is_not_used() -> None:
    lines = metrics_files.page("v1_single_busy.prom").splitlines(keepends=True)
    kept = [line for line in lines if not (b"first_token" in line and b"+Inf" in line)]
    (engine,) = snapshot_of(b"".join(kept), target="x", time_s=0).engines
    assert engine.value("ttft_s").value is None
    assert "+Inf" in engine.value("ttft_s").reason


def test_c073_counter_reset() -> None:
    found = report("counter_reset_t0.prom", "counter_reset_t1.prom", interval_s=15)
    prompts = found.signals["prompt_tokens_per_s"]
    assert prompts.value == pytest.approx(200 / 15)
    assert prompts.state is State.RESET
    assert found.signals["generation_tokens_per_s"].value == pytest.approx(100 / 15)
    assert sum(found.signals["finished_by_reason"].value.values()) == pytest.approx(2)
    assert found.verdict.name == "restarting"


def test_c076_gauges_of_dead_processes() -> None:
    found = report("pid_labelled_gauges.prom")
    assert found.signals["running"].value is None
    assert found.signals["running"].state is State.PARTIAL
    assert any("may be stale" in note for note in found.notes)


def test_c078_all_observations_in_the_first_bucket() -> None:
    value = report("ttft_all_first_bucket.prom").signals["ttft_s.p99"]
    assert value.value is None
    assert value.state is State.BELOW_LOWEST
    assert "implausible" in value.reason and "7.3e-05" in value.reason
    assert value.count == 8060


def test_c080_parallel_sampling_counts_sequences() -> None:
    found = report("parallel_sampling_n4.prom")
    (engine,) = found.engines
    users = engine.window.latest.histogram("request_params_n")
    assert users.count == 1 and users.sum == 4
    (note,) = found.notes
    assert note.startswith("n above 1: 1 user requests with 4 sequences each")
    assert note.endswith("10 prompt tokens per sequence since the start")
    two = report("parallel_sampling_n4.prom", "parallel_sampling_n4.prom", interval_s=10).engines[0]
    assert two.signals["user_requests_per_s"].value == 0.0
    assert two.signals["user_requests_per_s"].metric == "vllm:request_params_n"


def window_page(queries: int, hits: int, preemptions: int) -> bytes:
    return (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0",model_name="m"} 4\n'
        'vllm:num_requests_waiting{engine="0",model_name="m"} 0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n'
        f'vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {queries}\n'
        f'vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {hits}\n'
        f'vllm:num_preemptions_total{{engine="0",model_name="m"}} {preemptions}\n'
    ).encode()


def test_c082_hit_rate_of_the_window() -> None:
    pages = [window_page(474_000, 118_100, 3), window_page(480_000, 120_000, 9)]
    snapshots = [snapshot_of(body, target="x", time_s=15 * i) for i, body in enumerate(pages)]
    value = pool_report("x", {"x": snapshots}).signals["prefix_cache_hit_rate"]
    assert value.value == pytest.approx(1900 / 6000)
    assert "preempted" in value.reason


def test_c084_block_size_is_a_minimum_over_groups() -> None:
    signals = report("cache_config_min_group_block.prom").signals
    assert signals["kv_capacity_tokens"].value == 1_526_178
    assert signals["block_size"].value == 4
    assert signals["num_blocks"].value == 21_000


def test_c086_adapters_belong_to_their_base() -> None:
    (engine,) = metrics_files.snapshot("base_and_adapter_names.prom").engines
    assert engine.model_name == "base-model"
    assert engine.names == ("base-model", "sql-lora")
    assert engine.value("generation_tokens").value == 3700
    assert engine.breakdown("generation_tokens_by_model").parts == {"base-model": 3000, "sql-lora": 700}
    assert engine.value("running").value == 5


def test_c088_waiting_by_reason_is_a_split() -> None:
    signals = report("waiting_by_reason.prom").signals
    assert signals["waiting"].value == 9
    assert signals["waiting_by_reason"].value == {"capacity": 7, "deferred": 2}


def test_c090_a_slow_scrape_is_no_spike() -> None:
    lines = metrics_files.page("samples_scrape_gap.csv").decode().splitlines()[1:]
    points = [tuple(map(float, line.split(","))) for line in lines]
    engines = []
    for when, tokens in points:
        body = f'vllm:generation_tokens_total{{engine="0"}} {tokens:.0f}\n'.encode()
        engines += snapshot_of(body, target="x", time_s=when).engines
    for pair in pairwise(engines):
        rate = engine_signals(open_window(pair))["generation_tokens_per_s"].value
        assert 95 <= rate <= 105


def test_c094_many_pending_at_low_kv() -> None:
    page = (
        b'vllm:num_requests_running{engine="0",model_name="m"} 6\n'
        b'vllm:num_requests_waiting{engine="0",model_name="m"} 40\n'
        b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.12\n'
    )
    limits = Limits(max_num_seqs=64, max_num_batched_tokens=4096)
    for known in (limits, None):
        found = pool_report("x", {"x": [snapshot_of(page, target="x", time_s=0, limits=known)]})
        assert found.verdict.name == "prefill-bound"
        assert not any("GPUs" in one.text for one in found.verdict.actions)


def test_c099_nan_and_infinity() -> None:
    found = report("nan_inf_values.prom")
    for name in ("running", "kv_usage"):
        assert found.signals[name].value is None
        assert found.signals[name].state is State.MISSING
        assert "NaN" in found.signals[name].reason
    assert found.engines[0].window.latest.value("prompt_tokens").value == 480_000


def test_c111_prefix_of_the_serving_layer() -> None:
    ray, plain = report("ray_prefix.prom"), report("v1_single_busy.prom")
    for name in ("running", "kv_usage", "ttft_s.p99", "kv_capacity_tokens"):
        assert ray.signals[name].value == plain.signals[name].value is not None
    assert ray.signals["running"].metric == "ray_vllm:num_requests_running"
    under = metrics_files.page("ray_prefix.prom").replace(b"ray_vllm:", b"ray_vllm_")
    (engine,) = snapshot_of(under, target="x", time_s=0).engines
    assert engine.value("running").value == 12
    assert isinstance(engine.readings["finished"], Breakdown)
