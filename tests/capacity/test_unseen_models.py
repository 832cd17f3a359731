"""Configs of models outside the catalogue: parameters against published counts, layers that own a cache, bytes per token.

Sources: the models' public config.json files and cards. Shapes are typed in here; nothing is read from a hub.
"""

from __future__ import annotations

from typing import Any

import pytest

from capacity.errors import CapacityError, ConfigError
from capacity.hf_config import parse_config
from capacity.model import Attention, LatentAttention, ModelSpec
from capacity.parameters import count_parameters
from capacity.verbs import run_plan


def _owned(spec: ModelSpec) -> tuple[int, int]:
    """(layers that own an attention cache, 16-bit bytes per token of a token inside every window)."""
    layers = size = 0
    for mixer in spec.mixers():
        if isinstance(mixer, LatentAttention):
            layers, size = layers + 1, size + 2 * (mixer.kv_lora_rank + mixer.qk_rope_head_dim)
        elif isinstance(mixer, Attention) and not mixer.shares_kv:
            layers += 1
            size += 2 * mixer.num_kv_heads * (mixer.head_dim + mixer.v_head_dim)
    return layers, size


def _text(
    model_type: str, layers: int, hidden: int, heads: int, kv: int, inner: int, vocab: int, **more: Any
) -> Any:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **more,
    }


MAMBA2 = {
    "model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64,
    "state_size": 128, "n_groups": 8, "conv_kernel": 4, "expand": 2, "vocab_size": 32768,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
FALCON_MAMBA = {
    "model_type": "falcon_mamba", "hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 64,
    "state_size": 16, "conv_kernel": 4, "expand": 16, "time_step_rank": 256, "vocab_size": 65024,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAVA = {
    "model_type": "llava", "torch_dtype": "float16",
    "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
        "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14,
    },
}  # fmt: skip
PIXTRAL = {
    "model_type": "llava", "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 14336,
        "max_position_embeddings": 1024000, "num_hidden_layers": 40, "num_key_value_heads": 8,
        "sliding_window": None, "vocab_size": 131072,
    },
    "vision_config": {"model_type": "pixtral", "head_dim": 64, "image_size": 1024, "patch_size": 16},
}  # fmt: skip
MINICPM3 = _text(
    "minicpm3", 62, 2560, 40, 40, 6400, 73448, kv_lora_rank=256, q_lora_rank=768, qk_nope_head_dim=64,
    qk_rope_head_dim=32, tie_word_embeddings=True, max_position_embeddings=32768,
)  # fmt: skip
JAMBA = _text(
    "jamba", 32, 4096, 32, 8, 14336, 65536, num_experts=16, num_experts_per_tok=2, mamba_d_state=16,
    mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=256,
)  # fmt: skip
OLMO3 = _text(
    "olmo3", 32, 4096, 32, 32, 11008, 100278, sliding_window=4096,
    layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 8,
)  # fmt: skip
CASES = {
    "Mamba-Codestral-7B": (MAMBA2, 7.285, 0, 0),
    "falcon-mamba-7b": (FALCON_MAMBA, 7.273, 0, 0),
    "llava-1.5-7b": (LLAVA, 7.063, 32, 524_288),
    "pixtral-12b": (PIXTRAL, 12.68, 40, 163_840),
    "Jamba-1.5-Mini": (JAMBA, 51.57, 4, 16_384),
    "Olmo-3-7B": (OLMO3, 7.298, 32, 524_288),
    "starcoder2-15b": (
        _text("starcoder2", 40, 6144, 48, 4, 24576, 49152, sliding_window=4096, max_position_embeddings=16384),
        15.96, 40, 81_920,
    ),
    "Command-A": (
        _text("cohere2", 64, 12288, 96, 8, 36864, 256000, head_dim=128, tie_word_embeddings=True), 111.06, 64, 262_144
    ),
    "DeepSeek-V2.5": (
        _text(
            "deepseek_v2", 60, 5120, 128, 128, 12288, 102400, moe_intermediate_size=1536, kv_lora_rank=512,
            q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=160,
            n_shared_experts=2, num_experts_per_tok=6, first_k_dense_replace=1,
        ),
        235.74, 60, 69_120,
    ),
    "SmolLM3-3B": (_text("smollm3", 36, 2048, 16, 4, 11008, 128256, tie_word_embeddings=True), 3.075, 36, 73_728),
    "Seed-OSS-36B": (
        _text("seed_oss", 64, 5120, 80, 8, 27648, 155136, head_dim=128, attention_bias=True), 36.15, 64, 262_144
    ),
    "EXAONE-4.0-32B": (
        _text("exaone4", 64, 5120, 40, 8, 27392, 102400, head_dim=128, sliding_window=4096, sliding_window_pattern="LLLG"),
        32.0, 64, 262_144,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_parameters_and_caches_of_models_outside_the_catalogue(name: str) -> None:
    config, billions, layers, bytes_per_token = CASES[name]
    spec = parse_config(config)
    assert count_parameters(spec).total / 1e9 == pytest.approx(billions, rel=0.002)
    assert _owned(spec) == (layers, bytes_per_token)


def test_a_sub_config_takes_its_classes_defaults_and_says_so() -> None:
    (note,) = parse_config(LLAVA).notes
    assert "text_config leaves out" in note and "hidden_size 4,096" in note and "num_hidden_layers 32" in note
    assert "vocab_size" not in note
    with pytest.raises(ConfigError, match="hidden_size is missing"):
        parse_config({"model_type": "llama", "vocab_size": 32000})


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (_text("hunyuan", 64, 6400, 80, 8, 18304, 129024, use_cla=True), "cross-layer attention"),
        (MINICPM3, "keeps every head"),
        ({"model_type": "mllama", "text_config": _text("mllama_text_model", 40, 4096, 32, 8, 14336, 128256)}, "cross-attention"),
    ],
)  # fmt: skip
def test_caches_without_a_rule_are_refused_with_the_reason(more: dict[str, Any], reason: str) -> None:
    spec = parse_config(more)
    assert not spec.kv_layout_known and reason in str(spec.kv_layout_reason)
    with pytest.raises(CapacityError, match=reason):
        run_plan({"model_config": more, "kv_cache_gib": 10, "max_model_len": 2048})
    assert parse_config({**more, "use_cla": False}).kv_layout_known is ("use_cla" in more)


def test_the_upper_bound_of_low_rank_attention_keeps_every_head() -> None:
    found = run_plan(
        {"model_config": MINICPM3, "accept_upper_bound": True, "kv_cache_gib": 10, "max_model_len": 2048}
    )
    assert found["kv_cache"]["bytes_per_token_per_gpu"] == 62 * 40 * (96 + 96) * 2
    assert count_parameters(parse_config(MINICPM3)).total / 1e9 == pytest.approx(4.07, rel=0.01)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"audio_config": {"hidden_size": 1536}}, "audio_config"),
        ({"vision_config": {"model_type": "new_tower"}}, "vision_config"),
        ({"embd_layer": {"a": 1}, "vision_lora": {"r": 256}}, "embd_layer, vision_lora"),
    ],
)
def test_parts_without_a_count_are_named(more: dict[str, Any], named: str) -> None:
    notes = parse_config({**_text("phi3", 32, 3072, 24, 8, 8192, 200064), **more}).notes
    assert any(f"the weights of {named} are not counted" in note for note in notes)


@pytest.mark.parametrize(
    ("lengths", "longest"),
    [
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({"n_positions": 1024, "n_ctx": 512}, 1024),
        ({"max_position_embeddings": 4096, "seq_length": 2048}, 2048),
        ({"context_length": 777}, 777),
        ({}, None),
    ],
)
def test_the_longest_request_follows_the_engines_keys(lengths: dict[str, int], longest: int | None) -> None:
    config = _text("cohere", 64, 12288, 96, 8, 33792, 256000, **lengths)
    assert parse_config(config).max_position_embeddings == longest


@pytest.mark.parametrize("model_type", ["rwkv7", "whisper", "t5", "bert", "modernbert"])
def test_models_that_are_no_decoders_are_refused(model_type: str) -> None:
    with pytest.raises(ConfigError, match="expected a causal"):
        parse_config(_text(model_type, 2, 64, 2, 2, 128, 1000))


def test_low_rank_families_need_their_rank_unless_the_config_switches_it_off() -> None:
    config = _text("deepseek_v2", 12, 1280, 10, 10, 6848, 129280, qk_nope_head_dim=128, qk_rope_head_dim=64)
    with pytest.raises(ConfigError, match="kv_lora_rank is missing"):
        parse_config(config)
    plain = parse_config(
        {**config, "use_mla": False, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "kv_lora_rank": None}
    )
    assert _owned(plain) == (12, 12 * 2 * 10 * (128 + 128))
