"""What the engine does at start-up in unusual settings: dtype, lengths, decode context parallel, state and KV formats.

Source: the engine's own checks (config/model.py, kv_cache_interface.py, kv_cache_coordinator.py, mamba_utils.py).
"""

from __future__ import annotations

from typing import Any

import pytest

from capacity.engine import engine_release
from capacity.errors import CapacityError
from capacity.kv_cache.grouping import group_layers
from capacity.kv_cache.layer_cache import LayerCache
from capacity.plan import Plan, plan
from capacity.scenario import Scenario

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip


def planned(**keys: Any) -> Plan:
    return plan(Scenario.parse({"kv_cache_gib": 40, "max_model_len": 8192, **keys}))


def said(found: Plan, key: str) -> str:
    return next(f"{a.value}: {a.source}" for a in found.assumptions if a.key == key)


@pytest.mark.parametrize("stated", ["float32", "float64", "float8_e4m3fn"])
def test_a_checkpoint_that_is_not_16_bit_is_served_in_bfloat16(stated: str) -> None:
    found = planned(model_config={**LLAMA, "torch_dtype": stated})
    assert found.bytes_per_token_per_gpu == 32 * 8 * (128 + 128) * 2
    assert f"bfloat16 where the config says {stated}" in said(found, "dtype")


def test_float32_when_asked_for_keeps_four_bytes() -> None:
    found = planned(model_config={**LLAMA, "torch_dtype": "float32"}, dtype="float32")
    assert found.bytes_per_token_per_gpu == 32 * 8 * (128 + 128) * 4


@pytest.mark.parametrize(("release", "length"), [("0.11.0", 131072), ("0.11.1", 4096), ("0.32.0", 4096)])
def test_longrope_models_start_at_the_trained_length(release: str, length: int) -> None:
    for model in ("microsoft/Phi-3.5-mini-instruct", "microsoft/Phi-4-mini-instruct"):
        keys = {"model": model, "kv_cache_gib": 60, "engine_version": release}
        assert plan(Scenario.parse(keys)).resolved.max_model_len == length
        assert plan(Scenario.parse({**keys, "max_model_len": 131072})).resolved.max_model_len == 131072


def test_decode_context_parallel_is_refused_beside_windows() -> None:
    keys = {"model": "openai/gpt-oss-120b", "tensor_parallel_size": 16, "decode_context_parallel_size": 2}
    with pytest.raises(CapacityError, match="does not work with sliding-window layers"):
        planned(**keys)
    off = planned(**keys, disable_hybrid_kv_cache_manager=True)
    assert off.pool is not None and off.pool.blocks_per_max_request == 8192 // 2 // 16


def test_decode_context_parallel_beside_recurrent_state_depends_on_the_release() -> None:
    keys = {
        "model": "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "tensor_parallel_size": 4,
        "decode_context_parallel_size": 2,
    }
    with pytest.raises(CapacityError, match=r"recurrent state in release 0\.20\.2"):
        planned(**keys, engine_version="0.20.2")
    assert any("is not known" in text for text in planned(**keys, engine_version="0.26.0").warnings)
    assert not any("decode context" in text for text in planned(**keys, engine_version="0.29.0").warnings)


def test_switching_the_hybrid_manager_off_changes_nothing_where_all_layers_have_the_window() -> None:
    windowed = {**LLAMA, "model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 32768}
    keys = {"model_config": windowed, "max_model_len": 32768, "max_num_batched_tokens": 2048}
    on, off = planned(**keys), planned(**keys, disable_hybrid_kv_cache_manager=True)
    assert on.pool is not None and off.pool is not None
    assert (
        on.pool.blocks_per_max_request == off.pool.blocks_per_max_request == 513
    )  # (4095 + 2 x 2048) / 16 + 1
    old = planned(**keys, engine_version="0.6.6")
    assert old.pool is not None and old.pool.blocks_per_max_request == 2048


def test_windows_of_one_length_share_a_group_though_their_pages_differ() -> None:
    layers = [LayerCache("sliding", 16, 65536, 1024), LayerCache("sliding", 16, 32768, 1024)] * 4
    grouping = group_layers(layers, engine_release("0.29.0").kv)
    assert grouping.uniform and len(grouping.groups) == 1
    assert grouping.bytes_per_block() == 4 * (65536 + 32768)


@pytest.mark.parametrize(
    ("dtype", "bytes_per_token"), [("int8_per_token_head", 68), ("fp8_per_token_head", 68), ("fp8", 64)]
)
def test_scales_per_token_and_head_take_four_bytes_for_k_and_for_v(dtype: str, bytes_per_token: int) -> None:
    """Head width 64: 2 x (64 + 4) bytes per head and layer; 32 layers of 8 heads."""
    found = planned(model_config={**LLAMA, "head_dim": 64}, kv_cache_dtype=dtype)
    assert found.bytes_per_token_per_gpu == 32 * 8 * 2 * bytes_per_token


@pytest.mark.parametrize("asked", [None, "float32"])
def test_lightning_state_is_kept_in_the_models_dtype(asked: str | None) -> None:
    keys = {} if asked is None else {"mamba_ssm_cache_dtype": asked}
    found = planned(model="MiniMaxAI/MiniMax-M1-80k", tensor_parallel_size=8, **keys)
    assert found.layout.state_bytes == 64 * 128 // 8 * 128 * 2


def test_mamba_groups_that_do_not_divide_are_as_many_as_the_ranks() -> None:
    found = planned(
        model="nvidia/Nemotron-H-56B-Base-8K", tensor_parallel_size=16, mamba_ssm_cache_dtype="float32"
    )
    channels = (256 * 64 + 2 * 16 * 256) // 16
    assert found.layout.state_bytes == 3 * channels * 2 + 256 * 64 // 16 * 256 * 4


@pytest.mark.parametrize(("asked", "warned"), [(10, False), (40, True)])
def test_an_offload_above_the_weights_is_said(asked: float, warned: bool) -> None:
    found = plan(
        Scenario.parse(
            {"model": "llama-3.1-8b", "gpu": "h100-sxm", "max_model_len": 8192, "cpu_offload_gib": asked}
        )
    )
    assert any("cpu_offload_gib 40 is more than the 14." in text for text in found.warnings) is warned


@pytest.mark.parametrize(
    ("gpu", "block", "warned"),
    [("h200", 16, True), ("h200", 64, False), ("h200", 128, False), ("a100-80-sxm", 16, False)],
)
def test_blocks_that_an_mla_kernel_does_not_take_are_said(gpu: str, block: int, warned: bool) -> None:
    keys = {"model": "deepseek-ai/DeepSeek-V2-Lite", "gpu": gpu, "block_size": block}
    assert (
        any("no multiple of 64, which the MLA kernels" in text for text in planned(**keys).warnings) is warned
    )


@pytest.mark.parametrize(
    ("release", "asked", "bytes_per_token"),
    [("0.11.0", None, 656 + 132), ("0.11.0", "bfloat16", 1152 + 132), ("0.11.2", None, 1152 + 132)],
)
def test_sparse_mla_is_packed_by_itself_in_0_11_0_only(
    release: str, asked: str | None, bytes_per_token: int
) -> None:
    keys = {} if asked is None else {"kv_cache_dtype": asked}
    found = planned(model="deepseek-ai/DeepSeek-V3.2", engine_version=release, tensor_parallel_size=8, **keys)
    assert found.bytes_per_token_per_gpu == 61 * bytes_per_token


@pytest.mark.parametrize("model", ["microsoft/Phi-3.5-mini-instruct", "microsoft/Phi-4-mini-instruct"])
def test_a_window_longer_than_the_request_takes_one_block_more(model: str) -> None:
    """vLLM builds SlidingWindowSpec(262144) for these models, though requests end at 131,072 tokens."""
    found = planned(model=model, max_model_len=131072, engine_version="0.32.0")
    assert found.pool is not None and found.pool.blocks_per_max_request == 131072 // 16 + 1


def test_a_stage_without_a_cache_of_its_own_does_not_start() -> None:
    """Gemma-3n: the last 15 of 35 layers read the caches of earlier ones."""
    gemma = {
        "model_type": "gemma3n_text", "hidden_size": 2048, "num_hidden_layers": 35, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 16384, "vocab_size": 262400,
        "sliding_window": 512, "num_kv_shared_layers": 15, "max_position_embeddings": 32768,
        "hidden_size_per_layer_input": 256,
    }  # fmt: skip
    with pytest.raises(CapacityError, match="pipeline stage 3 of 3 holds no layer with a cache of its own"):
        planned(model_config=gemma, pipeline_parallel_size=3)
    assert planned(model_config=gemma, pipeline_parallel_size=3, pipeline_layer_split=[8, 8, 19]).pool


def test_a_length_that_starts_and_never_runs_is_not_the_advice() -> None:
    # 0.10.0 checks one request against all 1,862 blocks of 16 tokens and keeps one of them
    scenario = {
        "model": "nvidia/Llama-3.1-Nemotron-Nano-8B-v1",
        "gpu": "l4",
        "max_model_len": 32768,
        "engine_version": "0.10.0",
        "max_num_batched_tokens": 2048,
    }
    found = plan(Scenario.parse({**scenario, "num_gpu_blocks_override": 1862}))
    assert found.reason.endswith(
        "; the longest max_model_len that starts is 29,792, and the longest request beside the block that the engine keeps "
        "has 29,776 tokens"
    )
    # 0.32.0 checks against the blocks that requests can get: both are the same
    newer = {**scenario, "engine_version": "0.32.0", "num_gpu_blocks_override": 1862}
    assert plan(Scenario.parse(newer)).reason.endswith("; the longest max_model_len that starts is 29,776")
