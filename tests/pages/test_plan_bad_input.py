"""Every bad input of the Plan page is a sentence in the page, and what was typed stays."""

from __future__ import annotations

import json

import pytest

from tests.pages.plan_page import LLAMA, figures, page, problem

BERT = '{"architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12}'
BAD_FIELDS = [
    ("max_model_len", "nan", "finite number"),
    ("max_model_len", "inf", "finite number"),
    ("max_model_len", "-5", "1 to 100,000,000"),
    ("max_model_len", "0", "1 to 100,000,000"),
    ("max_model_len", "9" * 40, "1 to 100,000,000"),
    ("max_model_len", "9" * 5000, "whole number"),
    ("max_model_len", "1e308", "1 to 100,000,000"),
    ("max_model_len", "many", "whole number"),
    ("max_model_len", "4096.5", "whole number"),
    ("max_model_len", "1000000", "at most 131,072"),
    ("gpu_memory_utilization", "0", "0.01 to 1"),
    ("gpu_memory_utilization", "1.5", "0.01 to 1"),
    ("tensor_parallel_size", "5", "attention heads"),
    ("model", "nobody/nothing", "nobody/nothing"),
    ("gpu", "h9000", "h9000"),
    ("weight_format", "fp3", "fp3"),
    ("engine_version", "latest", "release"),
    ("engine_version", "0.1.0", "older"),
    ("kv_cache_dtype", "fp12", "fp12"),
    ("prompt_tokens", "-1", "0 to"),
    ("prompt_tokens_cv", "nan", "finite"),
    ("kv_cache_gib", "1 two 3", "number"),
    ("enforce_eager", "perhaps", "true or false"),
    ("pipeline_layer_split", "10 10", "stage"),
]


@pytest.mark.parametrize(("key", "text", "expected"), BAD_FIELDS)
def test_bad_field_is_a_sentence_and_stays(key: str, text: str, expected: str) -> None:
    link = {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100-sxm", "prompt_tokens": "1024"}
    found = page(**{**link, key: text})
    assert expected in problem(found)
    widget = next(w for w in (*found.text_input, *found.selectbox) if w.key == f"plan_{key}")
    assert widget.value == text


BAD_CONFIGS = {
    "html": ("<!DOCTYPE html><html><body>Sign in</body></html>", "HTML"),
    "bert": (BERT, "encoder-only"),
    "not json": ("{hidden_size: 4096}", "not JSON"),
    "deep": ("[" * 1000 + "]" * 1000, "nested"),
    "deep objects": ('{"a":' * 1000 + "1" + "}" * 1000, "nested"),
    "very deep": ("[" * 100_000 + "]" * 100_000, "nested"),
    "an array": ("[1, 2]", "array"),
    "nan": (LLAMA.replace("4096", "NaN", 1), "hidden_size"),
    "infinity": (LLAMA.replace("4096", "Infinity", 1), "hidden_size"),
    "negative": (LLAMA.replace("32,", "-32,", 1), "num_hidden_layers"),
    "zero": (LLAMA.replace('"num_attention_heads": 32', '"num_attention_heads": 0'), "num_attention_heads"),
    "text": (LLAMA.replace('"hidden_size": 4096', '"hidden_size": "wide"'), "hidden_size"),
    "huge number": (LLAMA.replace("4096", "9" * 5000, 1), "digits"),
    "five megabytes": (json.dumps({"pad": "x" * 5_000_000}), "at most"),
    "unknown architecture": (
        LLAMA.replace("LlamaForCausalLM", "NovelForCausalLM").replace('"llama"', '"novel"'),
        "ovel",
    ),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_bad_config_is_a_sentence_and_stays(name: str) -> None:
    text, expected = BAD_CONFIGS[name]
    found = page(source="Config", gpu="h100-sxm", engine_version="0.32.0")
    found.text_area(key="plan_config_text").set_value(text).run()
    assert expected in problem(found)
    assert found.text_area(key="plan_config_text").value == text


def test_bad_input_keeps_the_last_answer_marked() -> None:
    found = page()
    before = figures(found)
    found.text_input(key="plan_max_model_len").set_value("lots").run()
    assert "lots" in problem(found)
    assert "Below is the last answer" in problem(found)
    assert figures(found) == before
    assert any("**Last answer**" in str(one.value) for one in found.markdown)
    assert not found.success
    found.text_input(key="plan_max_model_len").set_value("4096").run()
    assert not found.error
    assert figures(found) != before
