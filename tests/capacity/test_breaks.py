"""Faults once found by hostile input and by recomputing figures by hand, each with the right value."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from capacity.cli import main
from capacity.errors import CapacityError
from capacity.hf_config import parse_config, parse_config_text
from capacity.plan import plan
from capacity.scenario import Scenario
from capacity.verbs import run_plan
from capacity.weight_bytes import matches

LLAMA: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu": "h100-sxm",
    "max_model_len": 8192,
}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def answer(**changes: Any) -> dict[str, Any]:
    return run_plan({**LLAMA, **changes})


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e308, float("inf"), float("nan")])
@pytest.mark.parametrize("key", ["hidden_size", "num_key_value_heads", "head_dim", "vocab_size"])
def test_numbers_beyond_any_float_are_refused_in_a_config(key: str, value: float) -> None:
    with pytest.raises(CapacityError, match=f"{key} is .*; expected a whole number from"):
        parse_config({**CONFIG, key: value})


def test_ratios_beyond_reason_are_refused_in_a_config() -> None:
    config = {k: v for k, v in CONFIG.items() if k != "intermediate_size"}
    for value in (10**400, 1e308):
        with pytest.raises(CapacityError, match="expected a number from 0 to"):
            parse_config({**config, "model_type": "mpt", "architectures": [], "expansion_ratio": value})


def test_layer_lists_of_odd_entries_do_not_break_a_moe_config() -> None:
    moe = {
        **CONFIG,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 512,
    }
    assert parse_config({**moe, "mlp_only_layers": [[1], {}]}).is_moe


def test_names_that_no_encoding_can_print_are_left_out_of_the_answer(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "scenario.json"
    config = {**CONFIG, "_name_or_path": "\ud800my\nmodel", "architectures": ["LlamaForCausalLM\udfff"]}
    path.write_text(json.dumps({"model_config": config, "gpu": "h100-sxm"}), encoding="utf-8")
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    assert main(["plan", "--scenario", str(path)], stdout=out) == 0
    assert parse_config(config).model_id == "mymodel"
    assert capsys.readouterr().err == ""


def test_an_exclude_list_of_hundreds_of_names_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [f"model.layers.{i}.mlp.gate" for i in range(94)] + ["lm_head"]
    names = [f"model.layers.{i}.input_layernorm" for i in range(400)]
    config = {
        **CONFIG,
        "num_hidden_layers": 94,
        "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": kept + names},
    }
    calls: list[str] = []

    def counted(pattern: str, name: str) -> bool:
        calls.append(f"{pattern} {name}")
        return False

    monkeypatch.setattr("capacity.weight_bytes.matches", counted)
    found = plan(Scenario.parse({"model_config": config, "gpu": "h200"}))
    assert found.resolved.weight_format.id.startswith("fp8")
    assert calls == []  # every entry was once compared with every tensor: 4 s for a plan


def test_a_pattern_that_would_run_for_ever_matches_nothing() -> None:
    assert not matches(r"re:(\w+\.?)+$X", "model.layers.0.self_attn.q_proj")
    assert matches(r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.up_proj")


def test_kv_dtype_asked_for_wins_over_a_float32_model() -> None:
    """2 x 32 layers x 8 heads x 128 x 2 bytes = 131,072 B a token in bfloat16; twice that in float32."""
    given = {"dtype": "float32", "kv_cache_gib": 10}
    assert answer(**given)["kv_cache"]["bytes_per_token_per_gpu"] == 262_144
    assert answer(**given, kv_cache_dtype="bfloat16")["kv_cache"]["bytes_per_token_per_gpu"] == 131_072


def test_textbook_counts_measured_weights_on_every_gpu() -> None:
    """(2 x 80e9 - 2 x 10 GiB) / (131,072 x 8,192) = 129."""
    found = answer(pipeline_parallel_size=2, weights_gib=10)
    assert found["textbook"]["concurrency"] == int((160e9 - 2 * 10 * 2**30) / (131_072 * 8192)) == 129
    fewer = answer(parameters=4_015_130_624)["textbook"]
    assert fewer["concurrency"] > answer()["textbook"]["concurrency"]


def test_a_prefix_is_never_longer_than_the_prompt() -> None:
    """A prompt of 1,000 shares 62 blocks of 16 tokens (the last token is computed); one full of them each."""
    found = answer(prompt_tokens=1000, output_tokens=0, shared_prefix_tokens=5000)
    assert found["concurrency"]["typical"] == found["kv_cache"]["usable_blocks"] - 62
    assert any("whole prompt is taken as shared" in text for text in found["warnings"])
    far = answer(prompt_tokens=100, output_tokens=100, shared_prefix_tokens=100_000_000)
    assert far["concurrency"]["typical"] >= far["concurrency"]["guaranteed"]


def test_a_shared_prefix_is_split_over_decode_context_ranks_like_the_rest() -> None:
    """4,000 of 8,000 tokens over 2 ranks: 125 of 250 blocks of 16 shared, so 125 own."""
    found = run_plan(
        {
            "model": "deepseek-v3",
            "gpu": "h200",
            "tensor_parallel_size": 8,
            "decode_context_parallel_size": 2,
            "block_size": 16,
            "prompt_tokens": 8000,
            "output_tokens": 0,
            "shared_prefix_tokens": 4000,
        }
    )
    assert found["concurrency"]["typical_blocks"] == 125


def test_requests_without_tokens_count_as_one_token() -> None:
    found = answer(prompt_tokens=0)["fragmentation"]
    assert found["used_tokens"] == 1
    assert found["paged_requests"] >= found["contiguous_requests"] > 0


def test_prompts_that_the_engine_refuses_are_named() -> None:
    assert any("the engine refuses them" in text for text in answer(prompt_tokens=20_000)["warnings"])
    images = answer(prompt_tokens=100, images_per_request=10, image_tokens=2000)
    assert any("20,100 tokens with their images" in text for text in images["warnings"])
    assert images["fragmentation"]["used_tokens"] == 8192
    assert not any("refuses" in text for text in answer(prompt_tokens=8000)["warnings"])


def test_kv_memory_that_no_card_has_does_not_fit() -> None:
    for key, value in (
        ("kv_cache_gib", 1000),
        ("kv_cache_memory_bytes", 10**12),
        ("num_gpu_blocks_override", 10**9),
    ):
        found = answer(**{key: value})
        assert (found["fit"], found["binding_constraint"]) == ("no", "memory"), key
        assert found["fixes"], key
        for fix in found["fixes"]:
            assert answer(**{key: value, **fix["changes"]})["fits"], fix["action"]
    assert answer(num_gpu_blocks_override=20_000)["fits"]
    assert answer(kv_cache_gib=60)["fits"]


@pytest.mark.parametrize(
    ("model", "tensor", "ranks", "valid"),
    [("meta-llama/Llama-3.1-8B-Instruct", 8, 2, "1"), ("meta-llama/Llama-3.1-8B-Instruct", 16, 4, "1, 2")],
)
def test_decode_context_ranks_must_share_a_kv_head(model: str, tensor: int, ranks: int, valid: str) -> None:
    """The engine: TP 4 "must be greater than total num kv heads 8 when enable decode context parallel"."""
    scenario = {**LLAMA, "model": model, "tensor_parallel_size": tensor}
    with pytest.raises(CapacityError, match=rf"valid: {valid}$"):
        run_plan({**scenario, "decode_context_parallel_size": ranks})


def test_decode_context_ranks_of_mla_are_all_of_tensor_parallel() -> None:
    deepseek = {"model": "deepseek-v3", "gpu": "h200", "tensor_parallel_size": 8}
    assert run_plan({**deepseek, "decode_context_parallel_size": 8})["kv_cache"]["num_blocks"] > 0


def test_what_the_engine_would_not_take_is_said() -> None:
    assert any("block_size 7" in text for text in answer(block_size=7)["warnings"])
    mtp = answer(num_speculative_tokens=1, speculative_method="mtp")
    assert any("no multi-token-prediction layer" in text for text in mtp["warnings"])


def test_the_verdict_names_what_binds_full_length_requests_and_the_workload() -> None:
    text = answer(prompt_tokens=1000, output_tokens=100, shared_prefix_tokens=800)["verdict"]
    assert "bound by KV cache" in text and "seats (max_num_seqs) bind first" in text


def test_one_seat_is_spoken_of_as_one() -> None:
    assert "the one seat (max_num_seqs) binds" in answer(max_num_seqs=1)["verdict"]
    assert "the 2 seats (max_num_seqs) bind" in answer(max_num_seqs=2)["verdict"]


def test_a_marginal_plan_without_one_request_says_what_its_high_end_holds() -> None:
    found = run_plan({"model": "llama-3.1-8b", "gpu_memory_gib": 18.6, "max_model_len": 8192})
    assert found["fit"] == "marginal" and found["concurrency"]["guaranteed"] == 0
    assert found["verdict"].startswith("Marginal: by the estimate one request of 8,192 tokens needs")
    assert found["verdict"].endswith(
        f"at the high end of its interval {found['concurrency']['guaranteed_high']} request would fit."
    )


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131_072),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131_072),
        ({"type": "linear", "factor": 2.0}, 81_920),
        ({"rope_type": "dynamic", "factor": 2}, 81_920),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 40_960),
        ({"type": "longrope", "factor": 8.0}, 40_960),
        ({"rope_type": "default"}, 40_960),
        (None, 40_960),
    ],
)
def test_scaled_positions_lengthen_the_model_as_the_engine_reads_them(rope: Any, length: int) -> None:
    """The engine multiplies the limit by the factor (from the original length with YaRN), but not for llama3, longrope."""
    config = {**CONFIG, "max_position_embeddings": 40_960, "rope_scaling": rope}
    assert parse_config(config).max_position_embeddings == length


def test_image_sizes_given_as_height_and_width_are_read() -> None:
    tower = {"model_type": "internvl_vision", "hidden_size": 1024, "num_hidden_layers": 24}
    text = {k: v for k, v in CONFIG.items()}
    found = [
        parse_config(
            {
                "model_type": "internvl",
                "text_config": text,
                "vision_config": {**tower, "image_size": image, "patch_size": patch},
            }
        ).encoder
        for image, patch in (([448, 448], [14, 14]), (448, 14))
    ]
    assert found[0] is not None and found[0].parameters > 250e6
    assert found[0] == found[1]


def test_a_scenario_file_may_start_with_a_byte_order_mark(tmp_path: Any) -> None:
    path = tmp_path / "scenario.json"
    path.write_text("\ufeff" + json.dumps(LLAMA), encoding="utf-8")
    assert main(["plan", "--json", "--scenario", str(path)], stdout=io.StringIO()) == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"model":"llama-3.1-8b","model":"qwen3-8b"}', "'model'"),
        ('{"model_config":{"hidden_size":8,"hidden_size":4096}}', "'hidden_size'"),
        ('{"max_model_len":1,"model":"x","max_model_len":2}', "'max_model_len'"),
    ],
)
def test_a_key_written_twice_is_refused_by_its_name(
    text: str, named: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(text)
    assert main(["plan", "--scenario", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and f"the key {named} is written twice" in said.err and said.err.count("\n") == 1
    out = io.StringIO()
    assert main(["plan", "--jsonl"], stdin=io.StringIO(text + "\n"), stdout=out) == 0
    assert f"line 1: the key {named} is written twice" in json.loads(out.getvalue())["error"]


def test_a_config_with_a_key_written_twice_is_refused() -> None:
    with pytest.raises(CapacityError, match="'vocab_size' is written twice"):
        parse_config_text('{"model_type":"llama","vocab_size":1,"vocab_size":2}')


def test_an_engine_that_does_not_start_runs_nothing() -> None:
    found = answer(gpu="l4", max_model_len=131_072, prompt_tokens=1000, output_tokens=200)
    assert not found["fits"] and found["concurrency"]["typical"] == found["concurrency"]["typical_safe"] == 0
    assert found["concurrency"]["typical_reason"] == "the engine does not start"
