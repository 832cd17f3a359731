"""Broken configs: one clear sentence each, whatever the field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.catalog import model_config, model_ids
from capacity.errors import CapacityError, ConfigError, UnknownArchitecture
from capacity.hf_config import parse_config, parse_config_text

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}  # fmt: skip
NUMBERS = [key for key, value in BASE.items() if isinstance(value, int)]
WRONG = [0, -1, "4096", True, float("inf"), float("nan"), 10**30, [], {}, 4096.5]


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_wrong_number_names_the_field_and_the_range(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({**BASE, field: value})
    message = str(caught.value)
    assert message.startswith(field) and "expected" in message and "\n" not in message


@pytest.mark.parametrize("field", [key for key in NUMBERS if key != "num_key_value_heads"])
def test_missing_field_is_named(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} is missing.*expected a whole number from"):
        parse_config({key: value for key, value in BASE.items() if key != field})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("<!doctype html><html></html>", "HTML"),
        ("[1, 2]", "an array"),
        ('"text"', "a text"),
        ("null", "null"),
        ("{}", "an empty object"),
        ("{hidden_size: 1}", "not JSON"),
        ('{"a":' * 1000 + "1" + "}" * 1000, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": "' + "x" * 5_000_000 + '"}', "5,000,0"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
    ],
    ids=lambda value: value[:20],
)
def test_text_that_is_no_config(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        parse_config_text(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "encoder-only"),
        ({"architectures": ["BertModel"]}, "encoder-only"),
        ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}, "encoder-decoder"),
        ({"architectures": ["FooForCausalLM"], "is_encoder_decoder": True}, "encoder-decoder"),
        ({"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}, "speech"),
        ({"architectures": ["CLIPModel"], "model_type": "clip"}, "vision"),
    ],
)
def test_models_without_a_decoder_are_refused(config: dict[str, Any], kind: str) -> None:
    with pytest.raises(ConfigError, match=kind):
        parse_config({**BASE, **config}, accept_upper_bound=True)


def test_unknown_architecture_is_refused_or_taken_as_an_upper_bound() -> None:
    config = {**BASE, "architectures": ["QuuxForCausalLM"], "layer_types": ["linear_attention"] * 32}
    with pytest.raises(UnknownArchitecture, match="QuuxForCausalLM"):
        parse_config(config)
    spec = parse_config(config, accept_upper_bound=True)
    assert spec.upper_bound
    assert any("upper bound" in note for note in spec.notes)
    assert all(getattr(mixer, "kind", "") == "full" for mixer in spec.mixers())


def test_neither_type_nor_architecture() -> None:
    with pytest.raises(UnknownArchitecture, match="model_type and architectures are both missing"):
        parse_config({key: value for key, value in BASE.items() if key != "architectures"})


@pytest.mark.parametrize(
    "architecture",
    ["NemotronHForCausalLM", "KimiLinearForCausalLM", "BambaForCausalLM", "MiMoV2FlashForCausalLM"],
)
def test_hybrid_without_its_pattern_is_never_taken_as_full_attention(architecture: str) -> None:
    with pytest.raises(ConfigError, match="is missing"):
        parse_config({**BASE, "architectures": [architecture]})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_key_value_heads": 7}, "divisor of num_attention_heads"),
        ({"hidden_size": 4100}, "head_dim is missing"),
        ({"layer_types": ["full_attention"]}, "one for each of the 32 layers"),
        ({"layer_types": ["spiral_attention"] * 32}, "spiral_attention"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window is missing"),
        ({"tie_word_embeddings": "yes"}, "true or false"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"model_type": 7}, "model_type"),
        ({"num_experts": 4, "num_experts_per_tok": 8}, "at most the 4 experts"),
        ({"quantization_config": []}, "quantization_config"),
        ({"quantization_config": {"quant_method": "gptq", "bits": "4"}}, "bits"),
        ({"vision_config": {"hidden_size": "wide"}}, "vision_config.hidden_size"),
        ({"text_config": [1], "hidden_size": None, "model_type": "gemma3"}, "hidden_size is missing"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim is missing"),
    ],
)
def test_other_faults(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        parse_config({**BASE, **changes})
    assert "\n" not in str(caught.value)


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(), st.text(max_size=8),
    st.lists(st.one_of(st.integers(-9, 9), st.text(max_size=3)), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(-9, 9), max_size=3),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(model_id=st.sampled_from(model_ids()), data=st.data())
def test_any_damage_ends_in_an_answer_or_one_sentence(model_id: str, data: st.DataObject) -> None:
    config = model_config(model_id)
    for _ in range(data.draw(st.integers(1, 3))):
        config[data.draw(st.sampled_from(sorted(config)))] = data.draw(JUNK)
    sentence = ""
    layers = 0
    try:
        layers = parse_config(config).num_hidden_layers
    except CapacityError as error:
        sentence = str(error)
    assert layers >= 1 or 10 < len(sentence) < 500
    assert "\n" not in sentence
