"""Names that point at a catalogue row: what is taken, and that it is said."""

from __future__ import annotations

import pytest

from capacity.catalog import model_spec
from capacity.errors import CapacityError


@pytest.mark.parametrize(
    ("name", "base", "weight_format", "length"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", None, 8192),
        (
            "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8",
            "meta-llama/Llama-3.1-8B-Instruct",
            "int8-w8a8",
            131_072,
        ),
        ("RedHatAI/Qwen2.5-7B-Instruct-fp8-dynamic", "Qwen/Qwen2.5-7B-Instruct", "fp8-channel", 32_768),
        ("Qwen/Qwen2.5-14B-Instruct-AWQ", "Qwen/Qwen2.5-14B-Instruct", "awq-int4-g128", 32_768),
        ("moonshotai/Kimi-K2-Thinking", "moonshotai/Kimi-K2-Instruct", "ct-int4-g32-sym", 262_144),
        ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct", None, 131_072),
        ("Qwen/QwQ-32B", "Qwen/Qwen2.5-32B-Instruct", None, 40_960),
        ("RedHatAI/QwQ-32B-quantized.w4a16", "Qwen/Qwen2.5-32B-Instruct", "ct-int4-g128-sym", 40_960),
        ("Qwen/Qwen2.5-3B-Instruct (bnb 4-bit)", "Qwen/Qwen2.5-3B-Instruct", "bnb-nf4", 32_768),
        ("moonshotai/Kimi-K2.6", "moonshotai/Kimi-K2.5", "ct-int4-g32-sym", 262_144),
        ("nvidia/Kimi-K2.6-NVFP4", "moonshotai/Kimi-K2.5", "nvfp4", 262_144),
        ("MiniMaxAI/MiniMax-M2.7", "MiniMaxAI/MiniMax-M2", "fp8-block128", 204_800),
        ("Nemotron-Ultra-253B", "nvidia/Llama-3_1-Nemotron-Ultra-253B-v1", None, 131_072),
        ("codellama/CodeLlama-34b-hf", "codellama/CodeLlama-34b-Instruct-hf", None, 16_384),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-ai/DeepSeek-R1", "nvfp4", 163_840),
        ("llama-4-scout", "meta-llama/Llama-4-Scout-17B-16E-Instruct", None, 10_485_760),
    ],
)
def test_a_relative_is_its_row_with_what_differs(
    name: str, base: str, weight_format: str | None, length: int
) -> None:
    found, row = model_spec(name), model_spec(base)
    assert found.model_id == name and found.layers == row.layers
    assert found.max_position_embeddings == length
    assert (found.quantization.weight_format if found.quantization else None) == weight_format
    assert found.notes[0].startswith(f"taken as {base}")


@pytest.mark.parametrize("name", ["nobody/nothing-7b", "llama-9", "someone/else-AWQ"])
def test_other_names_stay_unknown(name: str) -> None:
    with pytest.raises(CapacityError, match="not in the catalogue"):
        model_spec(name)


def test_a_relative_costs_no_search_for_names_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*_: object, **__: object) -> list[str]:
        raise AssertionError("looked for names alike")

    monkeypatch.setattr("capacity.catalog.models.difflib.get_close_matches", search)
    found = model_spec("someone/Qwen2.5-14B-Instruct-AWQ")
    assert found.notes[0].startswith("taken as Qwen/Qwen2.5-14B-Instruct: ")
    with pytest.raises(AssertionError):
        model_spec("nobody/nothing-7b")
