"""Every spelling of a config.json: names, patterns, wrappers, quantisation."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from capacity.catalog import model_spec
from capacity.errors import ConfigError
from capacity.hf_config import parse_config, parse_config_text, spec_from_form
from capacity.model import Attention, DenseMlp, LatentAttention, ModelSpec, MoeMlp, RecurrentState
from capacity.parameters import count_parameters

SHAPES = Path(__file__).parents[1] / "fixtures" / "model_shapes"
RAW = Path(__file__).parents[3] / "shared" / "model_configs"
BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def shape(name: str) -> ModelSpec:
    return parse_config_text((SHAPES / f"{name}.json").read_text(encoding="utf-8"))


def attentions(spec: ModelSpec) -> list[Attention]:
    return [mixer for mixer in spec.mixers() if isinstance(mixer, Attention)]


def bytes_per_token(spec: ModelSpec) -> int:
    return sum(2 * mixer.num_kv_heads * (mixer.head_dim + mixer.v_head_dim) for mixer in attentions(spec))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama3_8b", 131_072),
        ("qwen3_32b", 262_144),
        ("gpt_style_names", 307_200),
        ("falcon7b_mqa", 8_192),
        ("llama33_70b", 327_680),
        ("qwen3_30b_a3b", 98_304),
        ("gptoss_120b", 73_728),
    ],
)
def test_bytes_per_token_of_public_cases(name: str, expected: int) -> None:
    assert bytes_per_token(shape(name)) == expected


def test_latent_attention_is_one_vector_per_layer() -> None:
    spec = shape("deepseek_v3")
    mla = [mixer for mixer in spec.mixers() if isinstance(mixer, LatentAttention)]
    assert sum(2 * (m.kv_lora_rank + m.qk_rope_head_dim) for m in mla) == 70_272
    assert all(m.indexer is None for m in mla)
    assert any("intermediate_size is missing" in note for note in spec.notes)


def test_nested_section_is_named() -> None:
    spec = shape("gemma3_27b_nested")
    kinds = [mixer.kind for mixer in attentions(spec)]
    assert spec.config_section == "text_config"
    assert (kinds.count("full"), kinds.count("sliding")) == (10, 52)
    assert spec.vocab_size == 262_208
    assert spec.encoder is not None and spec.encoder.parameters == 423_060_336


def test_tie_absent_means_what_the_family_says() -> None:
    spec = shape("gemma2_2b_tie_absent")
    assert spec.tie_word_embeddings
    assert count_parameters(spec).embedding == 589_824_000
    assert count_parameters(spec).total == 2_614_341_888
    assert not shape("qwen3_32b").tie_word_embeddings
    assert not parse_config({k: v for k, v in BASE.items() if k != "tie_word_embeddings"}).tie_word_embeddings


def test_kv_groups_means_the_number_of_kv_heads() -> None:
    spec = parse_config(
        {
            "model_type": "llama", "n_layers": 32, "n_heads": 32, "n_kv_groups": 8, "head_dim": 128,
            "emb_dim": 4096, "hidden_dim": 14336, "vocab_size": 128256, "context_length": 8192,
        }
    )  # fmt: skip
    assert {mixer.num_kv_heads for mixer in attentions(spec)} == {8}
    assert spec.max_position_embeddings == 8192


FAMILY_CASES: list[tuple[str, dict[str, Any], str]] = [
    ("bloom", {"model_type": "bloom", "hidden_size": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880,
               "intermediate_size": None, "num_hidden_layers": None, "num_attention_heads": None,
               "num_key_value_heads": None}, "7069016064"),
    ("mpt", {"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "expansion_ratio": 4,
             "vocab_size": 50432, "max_seq_len": 2048, "hidden_size": None, "num_hidden_layers": None,
             "num_attention_heads": None, "num_key_value_heads": None,
             "intermediate_size": None}, "6649286656"),
    ("phi-2", {"model_type": "phi", "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
               "num_key_value_heads": None, "intermediate_size": 10240, "vocab_size": 51200}, "2779683840"),
    ("gpt-neox-20b", {"model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44,
                      "num_attention_heads": 64, "num_key_value_heads": None, "intermediate_size": 24576,
                      "vocab_size": 50432}, "20554567680"),
    ("gemma-7b", {"model_type": "gemma", "hidden_size": 3072, "num_hidden_layers": 28,
                  "num_attention_heads": 16,
                  "num_key_value_heads": 16, "head_dim": 256, "intermediate_size": 24576,
                  "vocab_size": 256000}, "8537680896"),
    ("qwen-7b", {"model_type": "qwen", "hidden_size": 4096, "num_hidden_layers": 32,
                 "num_attention_heads": 32, "num_key_value_heads": None,
                 "intermediate_size": 22016, "vocab_size": 151936}, "7721324544"),
    ("baichuan2-7b", {"model_type": "baichuan", "num_key_value_heads": None, "intermediate_size": 11008,
                      "vocab_size": 125696}, "7505973248"),
    ("qwen1.5-moe-a2.7b", {"model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24,
                           "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 5632,
                           "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
                           "num_experts": 60, "num_experts_per_tok": 4, "vocab_size": 151936,
                           "decoder_sparse_step": 1}, "14315784192"),
    ("dbrx", {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352,
              "attn_config": {"kv_n_heads": 8},
              "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16,
              "moe_top_k": 4}, "hidden_size": None, "num_hidden_layers": None, "num_attention_heads": None,
              "num_key_value_heads": None, "intermediate_size": None}, "131596523520"),
    ("olmoe-1b-7b", {"model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16,
                     "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 1024,
                     "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 50304}, "6919161856"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "published"), FAMILY_CASES, ids=lambda value: str(value)[:20])
def test_other_families_count_right(name: str, changes: dict[str, Any], published: str) -> None:
    spec = parse_config({**{k: v for k, v in BASE.items() if k != "architectures"}, **changes})
    assert count_parameters(spec).total == pytest.approx(int(published), rel=0.002)


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 512}, "sfsf"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096,
          "max_position_embeddings": 32768}, "ssss"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, "ffff"),
        ({"architectures": ["Phi3ForCausalLM"], "sliding_window": 262144,
          "max_position_embeddings": 131072}, "ssss"),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096,
          "use_sliding_window": False}, "ffff"),
        (
            {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096, "use_sliding_window": True,
             "max_window_layers": 3},
            "fffs",
        ),
        ({"architectures": ["Gemma2ForCausalLM"], "sliding_window": 4096}, "sfsf"),
        ({"architectures": ["GptOssForCausalLM"], "num_local_experts": 4}, "sfsf"),
        ({"architectures": ["Cohere2ForCausalLM"]}, "sssf"),
        ({"architectures": ["Gemma3ForCausalLM"], "sliding_window_pattern": 2}, "sfsf"),
        ({"architectures": ["Exaone4ForCausalLM"], "sliding_window": 4096,
          "sliding_window_pattern": "LLLG"}, "sssf"),
        ({"architectures": ["Llama4ForCausalLM"], "intermediate_size_mlp": 16384}, "cccf"),
        ({"architectures": ["Llama4ForCausalLM"], "no_rope_layers": [1, 0, 1, 0]}, "cfcf"),
        ({"architectures": ["BambaForCausalLM"], "attn_layer_indices": [1],
          "mamba_n_heads": 128, "mamba_d_head": 64,
          "mamba_d_state": 128}, "mfmm"),
        ({"architectures": ["JambaForCausalLM"], "attn_layer_period": 4, "attn_layer_offset": 2}, "mmfm"),
        ({"architectures": ["MiniMaxM1ForCausalLM"], "attn_type_list": [0, 0, 0, 1]}, "mmmf"),
        ({"architectures": ["Lfm2ForCausalLM"], "full_attn_idxs": [2]}, "mmfm"),
    ],
)  # fmt: skip
def test_hybrid_patterns(changes: dict[str, Any], kinds: str) -> None:
    spec = parse_config({**BASE, "num_hidden_layers": 4, **changes})
    words = {"full": "f", "sliding": "s", "chunked": "c"}
    seen = "".join("m" if isinstance(m, RecurrentState) else words[m.kind] for m in spec.mixers())  # type: ignore[union-attr]
    assert seen == kinds


def test_attention_and_state_side_by_side() -> None:
    spec = parse_config(
        {**BASE, "architectures": ["FalconH1ForCausalLM"], "mamba_n_heads": 24, "mamba_d_ssm": 3072,
         "mamba_d_head": 128, "mamba_d_state": 256, "mamba_n_groups": 2}
    )  # fmt: skip
    assert all([type(m) for m in layer.mixers] == [Attention, RecurrentState] for layer in spec.layers)


def test_layers_of_a_letter_pattern_hold_one_module_each() -> None:
    spec = model_spec("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    assert spec.num_hidden_layers == 52
    assert sum(isinstance(layer.mlp, MoeMlp) for layer in spec.layers) == 23
    assert all(bool(layer.mixers) != (layer.mlp is not None) for layer in spec.layers)
    assert {m.state_dtype for m in spec.mixers() if isinstance(m, RecurrentState)} == {"float32"}


def test_kv_heads_that_differ_by_layer() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 2.625, "no_op": False}},
        {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 1.0, "no_op": False}},
        {"attention": {"n_heads_in_group": 4, "no_op": False}, "ffn": {"ffn_mult": None, "no_op": True}},
    ]
    config = {**BASE, "architectures": ["DeciLMForCausalLM"], "num_hidden_layers": 3, "block_configs": blocks,
              "num_key_value_heads": None, "intermediate_size": None}  # fmt: skip
    spec = parse_config(config)
    assert [len(layer.mixers) for layer in spec.layers] == [1, 0, 1]
    assert [m.num_kv_heads for m in attentions(spec)] == [4, 8]
    assert [layer.mlp.intermediate_size if isinstance(layer.mlp, DenseMlp) else None for layer in
    spec.layers] == [
        7168, 2816, None,
    ]  # fmt: skip
    listed = parse_config({**BASE, "num_hidden_layers": 3, "num_key_value_heads": [1, 2, 4]})
    assert [m.num_kv_heads for m in attentions(listed)] == [1, 2, 4]


def test_keys_and_values_of_different_width() -> None:
    widths = {
        (m.kind, m.num_kv_heads, m.head_dim, m.v_head_dim) for m in attentions(model_spec("mimo-v2-flash"))
    }
    assert widths == {("full", 4, 192, 128), ("sliding", 8, 192, 128)}


def test_global_layers_with_other_heads() -> None:
    widths = {
        (m.kind, m.num_kv_heads, m.head_dim, m.key_is_value) for m in attentions(model_spec("gemma-4-31b"))
    }
    assert widths == {("full", 4, 512, True), ("sliding", 16, 256, False)}


def test_layers_that_share_a_cache() -> None:
    spec = parse_config({**BASE, "architectures": ["Gemma3nForCausalLM"], "num_hidden_layers": 10,
                         "num_kv_shared_layers": 4})  # fmt: skip
    assert [m.shares_kv for m in attentions(spec)] == [False] * 6 + [True] * 4


def test_indexer_and_latent_without_query_rank() -> None:
    sparse = next(model_spec("deepseek-v3.2").mixers())
    lite = next(model_spec("deepseek-v2-lite").mixers())
    assert isinstance(sparse, LatentAttention) and sparse.indexer is not None
    assert sparse.indexer.head_dim == 128
    assert isinstance(lite, LatentAttention) and lite.q_lora_rank is None and lite.indexer is None


@pytest.mark.parametrize(
    ("quantization", "weight_format", "kv"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block128", None),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8-tensor", None),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, "fp8-channel", None),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq-int4-g128", None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "gptq-int4-g64", None),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8-w8a16", None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
         "bnb-nf4-dq", None),
        ({"quant_method": "mxfp4"}, "mxfp4", None),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, "nvfp4", "fp8"),
        (
            {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"},
             "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": {"num_bits": 8},
                               "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}},
            "int8-w8a8", "fp8",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"],
             "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}}}},
            "nvfp4", None,
        ),
    ],
)  # fmt: skip
def test_quantization_config(quantization: dict[str, Any], weight_format: str, kv: str | None) -> None:
    spec = parse_config({**BASE, "quantization_config": quantization})
    assert spec.quantization is not None
    assert (spec.quantization.weight_format, spec.quantization.kv_cache_dtype) == (weight_format, kv)


def test_quantisation_without_a_rule_is_said() -> None:
    spec = parse_config({**BASE, "quantization_config": {"quant_method": "aqlm"}})
    assert spec.quantization is None
    assert any("aqlm" in note for note in spec.notes)


def test_form_takes_kv_heads_not_groups() -> None:
    spec = spec_from_form(layers=40, heads=40, kv_heads=40, hidden=5120, vocab=32000, intermediate=13824)
    assert bytes_per_token(spec) == 819_200
    assert count_parameters(spec).total == pytest.approx(13.02e9, rel=0.001)
    with pytest.raises(ConfigError, match="kv_heads is 7"):
        spec_from_form(layers=40, heads=40, kv_heads=7, hidden=5120, vocab=32000)


def raw_files() -> list[Path]:
    return sorted(RAW.glob("*.json")) if RAW.is_dir() else []


@pytest.mark.skipif(not RAW.is_dir(), reason="the folder of raw configs lies outside the repository")
@pytest.mark.parametrize("path", raw_files(), ids=lambda path: path.stem)
def test_raw_config_reads_as_its_catalogue_row(path: Path) -> None:
    sources = csv.DictReader((RAW / "_sources.csv").open(encoding="utf-8"))
    model_id = next(row["model_id"] for row in sources if row["file"] == path.name)
    mine, row = parse_config(json.loads(path.read_text(encoding="utf-8"))), model_spec(model_id)
    assert [layer.mixers for layer in mine.layers] == [layer.mixers for layer in row.layers]
    assert mine.tie_word_embeddings == row.tie_word_embeddings
    base_vocabulary = path.stem.startswith("mistralai__Mixtral-8x22B")
    if not base_vocabulary:
        assert count_parameters(mine).text == count_parameters(row).text
