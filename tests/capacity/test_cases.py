"""Calculator cases from public reports: each with the right result, where simpler calculators went wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capacity.catalog import model_spec
from capacity.errors import CapacityError
from capacity.hf_config import spec_from_form
from capacity.kv_cache.line_fit import fit_capacity_lines
from capacity.parameters import count_parameters
from capacity.precision import resolve_weight_format
from capacity.verbs import run_plan
from capacity.weight_bytes import served_bytes

SHAPES = Path(__file__).parents[1] / "fixtures" / "model_shapes"
GIB = 2**30


def _plan(shape: str | None = None, **keys: Any) -> dict[str, Any]:
    if shape is not None:
        keys["model_config"] = json.loads((SHAPES / f"{shape}.json").read_text())
    if not {"gpu", "gpu_memory_gib", "kv_cache_gib", "num_gpu_blocks_override"} & set(keys):
        keys["kv_cache_gib"] = 10
    return run_plan(keys)


@pytest.mark.parametrize(
    ("shape", "keys", "bytes_per_token"),
    [
        ("llama3_8b", {}, 131_072),  # GQA: KV heads, not query heads
        ("qwen3_32b", {}, 262_144),  # head_dim is explicit, not hidden / heads
        ("gpt_style_names", {}, 307_200),  # n_layer, n_head, n_embd
        ("falcon7b_mqa", {}, 8_192),  # multi_query without a KV-head count
        ("deepseek_v3", {}, 70_272),  # MLA: one latent, not doubled
        ("deepseek_v3", {"kv_cache_dtype": "fp8_ds_mla"}, 40_016),  # 656-byte record
        ("deepseek_v3", {"tensor_parallel_size": 8}, 70_272),  # the latent is not split by TP
        ("llama33_70b", {"tensor_parallel_size": 8}, 40_960),
        ("llama33_70b", {"tensor_parallel_size": 16}, 40_960),  # replicated heads
        ("gptoss_120b", {}, 73_728),  # window layers count
        ("qwen3_30b_a3b", {"kv_cache_dtype": "fp8"}, 49_152),
    ],
)
def test_bytes_per_token_and_gpu(shape: str, keys: dict[str, Any], bytes_per_token: int) -> None:
    assert _plan(shape, **keys)["kv_cache"]["bytes_per_token_per_gpu"] == bytes_per_token


@pytest.mark.parametrize(
    ("model", "least"), [("deepseek-v3", True), ("deepseek-v3.2", False), ("qwen3-8b", False)]
)
def test_plain_fp8_of_a_dense_latent_is_called_the_least(model: str, least: bool) -> None:
    answer = _plan(model=model, kv_cache_dtype="fp8")
    assert any("656 B in place of 576 B" in said for said in answer["warnings"]) is least
    if least:
        assert answer["kv_cache"]["bytes_per_token_per_gpu"] == 61 * 576


@pytest.mark.parametrize("shape", ["llama3_8b", "gemma2_2b_tie_absent"])
def test_dtype_auto_is_the_default(shape: str) -> None:
    assert _plan(shape, dtype="auto") == _plan(shape)


def test_float32_by_any_name_stores_four_bytes_a_weight() -> None:
    for name in ("float32", "float", "fp32"):
        assert _plan("llama3_8b", dtype=name)["weight_format"] == "fp32"


def test_mha_sibling_costs_four_times_as_much() -> None:
    assert _plan(model="meta-llama/Llama-2-7b-hf")["kv_cache"]["bytes_per_token_per_gpu"] == 524_288


def test_number_of_kv_heads_is_not_a_group_size() -> None:
    spec = spec_from_form(
        layers=12, heads=32, kv_heads=8, head_dim=128, hidden=4096, vocab=32000, intermediate=11008
    )
    assert next(spec.mixers()).num_kv_heads == 8  # type: ignore[union-attr]


def test_nested_text_config_is_named() -> None:
    assert _plan("gemma3_27b_nested")["model"]["config_section"] == "text_config"


def test_mla_context_in_gib() -> None:
    book = _plan("deepseek_v3", max_model_len=163_840, kv_cache_gib=20)["textbook"]
    assert book["kv_gib_per_request"] == pytest.approx(10.72, abs=0.005)


@pytest.mark.parametrize(
    ("heads", "tensor", "valid"), [(64, 3, "1, 2, 4, 8"), (52, 8, "1, 2, 4, 13, 26, 52")]
)
def test_heads_that_tensor_parallelism_cannot_cut(heads: int, tensor: int, valid: str) -> None:
    config = json.loads((SHAPES / "llama33_70b.json").read_text())
    config |= {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "hidden_size": heads * 128,
        "head_dim": 128,
    }
    with pytest.raises(CapacityError, match=valid) as caught:
        run_plan({"model_config": config, "tensor_parallel_size": tensor, "kv_cache_gib": 10})
    assert "pipeline_parallel_size" in str(caught.value)


def test_pipeline_pool_follows_memory_per_layer_of_each_stage() -> None:
    keys = {"pipeline_parallel_size": 2, "pipeline_layer_split": [16, 32], "kv_cache_gib": [3.18, 24.0]}
    found = _plan("qwen3_30b_a3b", max_model_len=100_000, **keys)
    assert found["kv_cache"]["num_blocks"] * 16 == pytest.approx(104_200, abs=20)
    assert found["fits"]


def test_tensor_parallel_memory_is_per_gpu_not_the_sum() -> None:
    keys = {"tensor_parallel_size": 2, "kv_cache_gib": 8.69, "max_model_len": 8192}
    cache = _plan(model="deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", **keys)["kv_cache"]
    assert cache["bytes_per_token_per_gpu"] == 98_304
    assert cache["tokens"] == pytest.approx(94_900, abs=20)


@pytest.mark.parametrize(("blocks", "length", "longest"), [(378, 8192, 6048), (229, 4096, 3664)])
def test_a_pool_smaller_than_one_request_does_not_start(blocks: int, length: int, longest: int) -> None:
    found = _plan(model="llama-3.1-8b", num_gpu_blocks_override=blocks, max_model_len=length)
    assert not found["fits"] and found["concurrency"]["guaranteed"] == 0
    assert found["kv_cache"]["longest_max_model_len"] == longest - 16


@pytest.mark.parametrize(
    ("model", "blocks", "line", "whole"),
    [("llama-3.1-70b", 1381, "10.79x", 10), ("llama-3.1-8b", 127_626, "997.08x", 997)],
)
def test_concurrency_line_and_whole_requests(model: str, blocks: int, line: str, whole: int) -> None:
    found = _plan(model=model, num_gpu_blocks_override=blocks, max_model_len=2048)
    assert line in found["kv_cache"]["log_lines"][-1]
    assert found["concurrency"]["guaranteed"] == whole


def test_blocks_as_memory() -> None:
    found = _plan(model="llama-3.1-70b", num_gpu_blocks_override=1381, max_model_len=2048)
    assert found["memory"]["kv_cache_gib"] == pytest.approx(6.74, abs=0.01)


@pytest.mark.parametrize(
    ("mib", "total", "budget"), [(81_559, 79.65, 71.68), (81_920, 80.0, 72.0), (23_034, 22.49, 20.24)]
)
def test_gpu_memory_is_in_gib(mib: int, total: float, budget: float) -> None:
    memory = _plan(model="qwen3-0.6b", gpu_memory_gib=mib / 1024, gpu_memory_utilization=0.9)["memory"]
    assert memory["total_gib"] == pytest.approx(total, abs=0.006)
    assert memory["budget_gib"] == pytest.approx(budget, abs=0.011)


def test_packed_four_bit_checkpoint() -> None:
    config = json.loads((SHAPES / "llama31_8b_w4a16.json").read_text())
    from capacity.hf_config import parse_config

    spec = parse_config(config)
    assert count_parameters(spec).total == pytest.approx(8.03e9, rel=0.002)
    assert served_bytes(spec, resolve_weight_format(None, spec)) / GIB == pytest.approx(
        5.31, rel=0.006
    )  # GPTQ stores zero points even when symmetric


def test_all_experts_are_loaded() -> None:
    found = _plan("mixtral_8x7b", gpu="h200")
    assert found["model"]["parameters"] == pytest.approx(46.70e9, rel=1e-3)
    assert found["memory"]["terms"][0]["gib"] == pytest.approx(87.0, abs=0.1)


def test_measured_parameter_count_scales_weights() -> None:
    base = _plan(model="qwen3-8b", gpu="h100", weight_format="bf16")
    double = _plan(
        model="qwen3-8b", gpu="h100", weight_format="bf16", parameters=2 * base["model"]["parameters"]
    )
    assert double["memory"]["terms"][0]["gib"] == pytest.approx(
        2 * base["memory"]["terms"][0]["gib"], rel=1e-6
    )


def test_absent_tie_flag_means_tied_for_gemma() -> None:
    from capacity.hf_config import parse_config

    count = count_parameters(parse_config(json.loads((SHAPES / "gemma2_2b_tie_absent.json").read_text())))
    assert count.embedding == 256_000 * 2304 and count.lm_head == 0
    assert count.total == pytest.approx(2.61e9, rel=0.005)


def test_interleaved_window() -> None:
    book = _plan("gemma3_27b_nested", max_model_len=131_072, kv_cache_gib=20)["textbook"]
    assert book["windowed_gib_per_request"] == pytest.approx(10.41, abs=0.01)
    assert book["kv_gib_per_request"] == pytest.approx(62.0, abs=0.01)


def test_engine_line_of_a_hybrid_before_the_derived_form() -> None:
    found = _plan("gptoss_120b", kv_cache_gib=5.38, engine_version="0.10.2")
    assert found["kv_cache"]["tokens"] == pytest.approx(78_384, abs=100)


def test_derived_capacity_lines_give_a_fixed_and_a_per_token_cost() -> None:
    fit = fit_capacity_lines([(8192, 31.74), (262_144, 4.11)])
    assert fit.share_of_pool(8192) == pytest.approx(1 / 31.74)
    assert fit.share_of_pool(262_144) == pytest.approx(1 / 4.11)
    assert fit.fixed_share > 0 and fit.per_token_share > 0
    with pytest.raises(CapacityError, match="two lengths"):
        fit_capacity_lines([(8192, 31.74)])


def test_eight_bit_kv_and_a_longer_context() -> None:
    fp8 = {"kv_cache_dtype": "fp8"}
    first = _plan("qwen3_30b_a3b", kv_cache_gib=10.55, max_model_len=100_000, **fp8)
    assert first["kv_cache"]["tokens"] == pytest.approx(230_468, abs=16)
    second = _plan("qwen3_30b_a3b", kv_cache_gib=5.59, max_model_len=221_000, **fp8)
    assert not second["fits"] and "10.12 GiB" in second["reason"]
    assert second["kv_cache"]["longest_max_model_len"] == pytest.approx(122_100, abs=20)
    assert any("measured" in text and "max_model_len" in text for text in second["warnings"])


def test_graph_memory_counts_by_release() -> None:
    keys = {
        "gpu_memory_gib": 23.68,
        "gpu_memory_utilization": 0.82,
        "cuda_graph_gib": 0.36,
        "max_model_len": 8192,
    }
    new = _plan(model="llama-3.1-8b", engine_version="0.21.0", **keys)["memory"]
    assert new["graphs_in_budget"] and new["effective_utilization"] == pytest.approx(0.8048, abs=1e-4)
    bare = _plan(model="llama-3.1-8b", engine_version="0.21.0", **{**keys, "cuda_graph_gib": 0})["memory"]
    assert bare["kv_cache_gib"] - new["kv_cache_gib"] == pytest.approx(0.36, abs=1e-6)
    old = _plan(model="llama-3.1-8b", engine_version="0.19.0", **keys)["memory"]
    assert not old["graphs_in_budget"] and old["effective_utilization"] == pytest.approx(0.82)


def test_activation_peak_makes_a_tight_fit_no_fit() -> None:
    keys = {
        "gpu_memory_gib": 79.65,
        "gpu_memory_utilization": 0.95,
        "weights_gib": 67.7,
        "max_model_len": 16_000,
    }
    found = _plan("llama33_70b", **keys)
    assert found["fit"] in ("no", "marginal") and found["fixes"]


def test_draft_model_on_rank_zero() -> None:
    keys = {"draft_model": "llama-3.1-8b", "draft_tensor_parallel_size": 1, "num_speculative_tokens": 5}
    found = _plan(model="llama-3.1-70b", tensor_parallel_size=4, gpu="h100", max_model_len=8192, **keys)
    assert found["kv_cache"]["bytes_per_token_per_gpu"] == 212_992
    other = next(term for term in found["memory"]["terms"] if term["name"] == "other")
    assert other["gib"] == pytest.approx(15.0, abs=0.3)


def test_other_processes_on_the_card() -> None:
    keys = {"gpu_memory_gib": 80, "other_memory_gib": 30, "gpu_memory_utilization": 0.9}
    found = _plan(model="llama-3.1-8b", max_model_len=8192, **keys)
    assert not found["fits"] and found["binding_constraint"] == "free_memory"
    assert "0.62" in found["reason"]


def test_needed_and_reserved_are_two_figures() -> None:
    memory = _plan(model="qwen3-0.6b", gpu_memory_gib=24.28, gpu_memory_utilization=0.9, max_model_len=2048)[
        "memory"
    ]
    assert memory["reserved_gib"] == pytest.approx(21.85, abs=0.01)
    assert memory["minimum_gib"] < 0.3 * memory["reserved_gib"]


def test_offload_tier_is_no_capacity() -> None:
    base = _plan(model="llama-3.1-70b", gpu="h100", tensor_parallel_size=4, max_model_len=8192)
    with_tier = _plan(
        model="llama-3.1-70b",
        gpu="h100",
        tensor_parallel_size=4,
        max_model_len=8192,
        kv_offloading_size_gib=200,
    )
    assert with_tier["concurrency"] == base["concurrency"]
    assert any("50 per rank" in text for text in with_tier["warnings"])
    hybrid = _plan(model="gpt-oss-120b", gpu="h100", tensor_parallel_size=4, kv_offloading_size_gib=200)
    assert any("384 GiB" in text for text in hybrid["warnings"])


@pytest.mark.parametrize("release", ["0.20.2", "0.32.0"])
def test_exactly_one_request_never_runs(release: str) -> None:
    found = _plan(
        model="llama-3.1-8b", num_gpu_blocks_override=8192, max_model_len=131_072, engine_version=release
    )
    assert not found["fits"] and found["concurrency"]["guaranteed"] == 0
    assert "keeps" in found["reason"]


def test_thirteen_b_example() -> None:
    keys = {
        "model": "meta-llama/Llama-2-13b-hf",
        "gpu": "a100-80",
        "engine_version": "0.11.0",
        "max_model_len": 4096,
    }
    found = _plan(gpu_memory_utilization=0.9, **keys)
    book = found["textbook"]
    assert book["bytes_per_token"] == 819_200
    assert book["kv_gib_per_request"] == 3.125
    assert book["concurrency"] == 16
    assert 13.5 <= found["kv_cache"]["max_concurrency"] <= 14.9


def test_deepseek_v3_on_eight_h200() -> None:
    found = _plan(model="deepseek-ai/DeepSeek-V3", gpu="h200", tensor_parallel_size=8, max_model_len=8192)
    assert 75 <= found["concurrency"]["guaranteed"] <= 80


def test_catalogue_names_resolve() -> None:
    assert model_spec("gpt-oss-120b").model_id == "openai/gpt-oss-120b"
