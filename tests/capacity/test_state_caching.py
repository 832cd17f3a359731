"""Recurrent state where a release departs from what is counted: the plan says so, and the command makes it true.

Source: models/config.py and kv_cache_interface.py of vLLM 0.13 to 0.32.
"""

from __future__ import annotations

from typing import Any

import pytest

from capacity.export.serve_command import serve_command
from capacity.plan import Plan, plan
from capacity.scenario import Scenario
from capacity.state_caching import state_caching_warnings

GRANITE = "ibm-granite/granite-4.0-h-small"
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"
NEMOTRON = "nvidia/Nemotron-H-56B-Base-8K"


def planned(**keys: Any) -> Plan:
    return plan(Scenario.parse({"kv_cache_gib": 20, "enable_prefix_caching": True, **keys}))


def test_the_command_asks_for_the_mode_that_was_counted() -> None:
    found = planned(model=GRANITE, engine_version="0.26.0", max_model_len=131072)
    assert found.pool is not None and found.pool.blocks_per_max_request == 249 + 9 * 2
    assert "--mamba-cache-mode align" in serve_command(found)
    more = 9 * (249 - 2)  # a state for each of 249 blocks of 528 tokens, in each of 9 groups
    assert any(f"{more:,} block ids more" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("model", "release", "said"),
    [
        (NEXT, "0.13.0", "switches prefix caching off"),
        (NEXT, "0.26.0", ""),
        (GRANITE, "0.29.0", ""),
        (GRANITE, "0.32.0", "9 block ids more for each request"),
        (NEMOTRON, "0.32.0", "float32 where the config names no dtype"),
        (NEMOTRON, "0.19.1", "planned for --mamba-cache-mode align"),
    ],
)
def test_what_the_release_does_by_itself_is_said(model: str, release: str, said: str) -> None:
    found = planned(model=model, engine_version=release, max_model_len=8192, tensor_parallel_size=4)
    own = state_caching_warnings(found.resolved, found.grouping)
    assert said in "; ".join(own) and bool(own) == bool(said)
    assert set(own) <= set(found.warnings)
    assert ("--mamba-cache-mode" in serve_command(found)) == (release == "0.19.1")


def test_a_stated_dtype_of_the_state_needs_no_flag() -> None:
    found = planned(
        model=NEMOTRON, max_model_len=8192, tensor_parallel_size=4, mamba_ssm_cache_dtype="float32"
    )
    assert not any("names no dtype" in text for text in found.warnings)
    assert serve_command(found).count("--mamba-ssm-cache-dtype") == 1


@pytest.mark.parametrize(("release", "block"), [("0.19.1", 528), ("0.20.0", 576)])
def test_a_block_size_asked_for_sets_the_multiple_since_0_20(release: str, block: int) -> None:
    found = planned(model=GRANITE, engine_version=release, max_model_len=131072, block_size=64)
    assert found.layout.block_size == block


@pytest.mark.parametrize(("release", "block"), [("0.26.0", 960), ("0.27.1", 1024)])
def test_mla_beside_state_is_aligned_to_128_tokens_since_0_27(release: str, block: int) -> None:
    linear = {"full_attn_layers": [4, 8], "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}
    kimi = {
        "model_type": "kimi_linear", "hidden_size": 2304, "num_hidden_layers": 8, "num_attention_heads": 32,
        "intermediate_size": 9216, "vocab_size": 163840, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 131072, "linear_attn_config": linear,
    }  # fmt: skip
    found = planned(model_config=kimi, engine_version=release, tensor_parallel_size=2, max_model_len=8192)
    assert found.layout.block_size == block


@pytest.mark.parametrize(("release", "widths"), [("0.19.1", 2 * 192), ("0.20.0", 192 + 128)])
def test_v_takes_its_own_width_since_0_20(release: str, widths: int) -> None:
    found = planned(
        model="XiaomiMiMo/MiMo-V2-Flash", engine_version=release, tensor_parallel_size=4, max_model_len=8192
    )
    full = next(cache for cache in found.layout.layers if cache.kind == "full")
    assert full.page_bytes == 16 * widths * 2
