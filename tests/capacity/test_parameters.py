"""Parameters by module, bytes by module, and whole checkpoints against published sizes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from capacity.catalog import model_ids, model_spec
from capacity.errors import CapacityError
from capacity.hf_config import parse_config
from capacity.parameters import LAYER_MODULES, count_parameters
from capacity.precision import resolve_weight_format
from capacity.weight_bytes import (
    checkpoint_modules,
    matches,
    module_bytes_per_parameter,
    quantised_share,
    served_bytes,
    stored_bytes,
)

GIB = 1 << 30
SIZES = list(
    csv.DictReader((Path(__file__).parents[1] / "golden" / "weight_sizes.csv").open(encoding="utf-8"))
)


@pytest.mark.parametrize("row", SIZES, ids=lambda row: f"{row['model_id']}-{row['weight_format']}")
def test_weights_match_published_sizes(row: dict[str, str]) -> None:
    spec = model_spec(row["model_id"])
    fmt = resolve_weight_format(row["weight_format"], spec)
    size = stored_bytes(spec, fmt) if row["kind"] == "stored" else served_bytes(spec, fmt)
    assert size / GIB == pytest.approx(float(row["gib"]), rel=0.015)


@pytest.mark.parametrize("model_id", model_ids())
def test_modules_sum_to_the_total(model_id: str) -> None:
    spec = model_spec(model_id)
    count = count_parameters(spec)
    parts = checkpoint_modules(spec, resolve_weight_format("bf16"))
    assert sum(size for module, (size, _) in parts.items() if module != "mtp") == count.total
    assert all(layer.attention == layer.attention_parts.total for layer in count.layers)
    assert count.active <= count.text
    assert len(count.layers) == spec.num_hidden_layers
    assert served_bytes(spec, resolve_weight_format("bf16")) == 2 * count.total


@pytest.mark.parametrize("name", ["fp8", "awq", "nvfp4", "w8a8", "bnb", "gguf-q4_k_m"])
@pytest.mark.parametrize(
    "model_id", ["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3"]
)
def test_lower_precision_is_smaller_and_never_below_its_elements(model_id: str, name: str) -> None:
    spec = model_spec(model_id)
    fmt = resolve_weight_format(name)
    count = count_parameters(spec)
    assert count.total * fmt.bytes_per_weight * 0.999 <= served_bytes(spec, fmt) < 2 * count.total
    assert 0.5 < quantised_share(spec, fmt) <= 1


def test_attention_splits_by_what_tensor_parallelism_does() -> None:
    llama = count_parameters(model_spec("llama-3.1-8b")).layers[0].attention_parts
    assert (llama.q, llama.kv, llama.o, llama.replicated) == (4096 * 4096, 2 * 4096 * 1024, 4096 * 4096, 0)
    mla = count_parameters(model_spec("deepseek-v3")).layers[0].attention_parts
    assert mla.kv == 0
    assert mla.replicated == 7168 * (512 + 64) + 512 + 7168 * 1536 + 1536
    sparse = count_parameters(model_spec("deepseek-v3.2")).layers[0].attention_parts
    assert sparse.replicated - mla.replicated == 13_959_424


def test_mixture_counts_all_experts() -> None:
    count = count_parameters(model_spec("mixtral-8x7b-instruct-v0.1"))
    assert count.total == 46_702_792_704
    assert count.module("experts") == 32 * 8 * 3 * 4096 * 14336
    assert count.module("router") == 32 * 8 * 4096


def test_exclude_list_is_honoured_by_layer() -> None:
    base = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 4096, "vocab_size": 32000,
    }  # fmt: skip
    skip = ["lm_head", "model.layers.0.mlp.down_proj", "model.layers.3.self_attn"]
    spec = parse_config(
        {**base, "quantization_config": {"quant_method": "fbgemm_fp8", "modules_to_not_convert": skip}}
    )
    fmt = resolve_weight_format("auto", spec)
    assert fmt.id == "fp8-channel"
    assert module_bytes_per_parameter(spec, fmt, "attention", 3) == 2
    assert module_bytes_per_parameter(spec, fmt, "attention", 2) == pytest.approx(1.001)
    assert module_bytes_per_parameter(spec, fmt, "mlp", 0) == pytest.approx((2 * 1.001 + 2) / 3)
    assert module_bytes_per_parameter(spec, fmt, "lm_head") == 2


def test_mixed_checkpoint() -> None:
    flash = model_spec("deepseek-v4-flash")
    fmt = resolve_weight_format("auto", flash)
    assert fmt.id == "fp8-block128"
    assert module_bytes_per_parameter(flash, fmt, "experts") == pytest.approx(0.53125)
    assert module_bytes_per_parameter(flash, fmt, "shared_experts") == pytest.approx(1.00024)


def test_latent_projections_that_a_checkpoint_keeps() -> None:
    spec = model_spec("nvidia/DeepSeek-V3.1-NVFP4")
    fmt = resolve_weight_format("auto", spec)
    assert fmt.id == "nvfp4"
    assert module_bytes_per_parameter(spec, fmt, "attention.q") == 2
    assert module_bytes_per_parameter(spec, fmt, "attention.o") == pytest.approx(0.5625)
    assert module_bytes_per_parameter(spec, fmt, "experts") == pytest.approx(0.5625)


def test_unknown_module_is_named() -> None:
    with pytest.raises(CapacityError, match="module 'attn' is unknown"):
        module_bytes_per_parameter(model_spec("qwen3-8b"), resolve_weight_format("bf16"), "attn")


@pytest.mark.parametrize(
    ("pattern", "name", "covers"),
    [
        ("lm_head", "lm_head", True),
        ("model.layers.*.self_attn", "model.layers.7.self_attn.q_proj", True),
        ("re:.*mlp\\.(gate|up|down)_proj.*", "model.layers.7.mlp.experts.0.up_proj", False),
        ("gate", "model.layers.7.mlp.gate_proj", False),
        ("model.layers.1", "model.layers.11.mlp.up_proj", False),
        ("model.language_model.layers.1.mlp", "model.layers.1.mlp.up_proj", True),
        ("re:[", "model.layers.1.mlp.up_proj", False),
    ],
)
def test_exclude_patterns(pattern: str, name: str, covers: bool) -> None:
    assert matches(pattern, name) is covers


def test_layer_modules_are_stable() -> None:
    layer = count_parameters(model_spec("qwen3-next-80b-a3b")).layers[0]
    assert LAYER_MODULES == (
        "attention", "state", "mlp", "experts", "shared_experts", "router", "norms", "other",
    )  # fmt: skip
    assert layer.attention == 0 and layer.state > 0 and layer.experts > 0 and layer.shared_experts > 0
