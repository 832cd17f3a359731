"""Widget texts to scenario keys and back: every input of a page is a text, so nothing that was typed is ever lost.

Numbers take vLLM's human-readable forms (8k is 8,000, 8K is 8,192). What is no number goes on as typed: the planner
refuses it with a sentence. Left out: widgets (inputs).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from capacity.errors import CapacityError
from capacity.scenario import field_table
from capacity.typed import number as number

GROUPS = ("model", "hardware", "engine", "workload")
BASIC = {
    "model": (("weight_format",),),
    "hardware": (("gpu",), ("tensor_parallel_size", "pipeline_parallel_size")),
    "engine": (
        ("engine_version",),
        ("max_model_len",),
        ("gpu_memory_utilization",),
        ("kv_cache_dtype", "max_num_seqs"),
    ),
    "workload": (("prompt_tokens",), ("output_tokens",), ("shared_prefix_tokens",)),
}
SOURCES = ("Catalogue", "Config", "Form")
FORM = (
    ("num_hidden_layers", "Layers"),
    ("num_attention_heads", "Heads"),
    ("num_key_value_heads", "KV heads"),
    ("head_dim", "Head dim"),
    ("hidden_size", "Hidden size"),
    ("intermediate_size", "Intermediate size"),
    ("vocab_size", "Vocabulary"),
    ("max_position_embeddings", "Longest length"),
)
FORM_HELP = {
    "num_hidden_layers": "Decoder layers; each keeps its own keys and values. num_hidden_layers in a config.json.",
    "num_attention_heads": "Query heads of one layer. num_attention_heads in a config.json.",
    "num_key_value_heads": "Heads whose keys and values are cached: the query heads, or fewer with grouped-query "
    "attention. num_key_value_heads in a config.json.",
    "head_dim": "Width of one head; left empty it is the hidden size divided by the heads.",
    "hidden_size": "Width of the vector that a token is between layers. hidden_size in a config.json.",
    "intermediate_size": "Width inside the MLP; left empty it is 8/3 of the hidden size.",
    "vocab_size": "Tokens that the model knows; they size its embedding. vocab_size in a config.json.",
    "max_position_embeddings": "Most tokens of one request that the model is made for. Left empty the maximum length "
    "under Engine decides.",
}
FORM_OPTIONAL = ("head_dim", "intermediate_size", "max_position_embeddings")


class Incomplete(CapacityError):
    """Nothing is wrong yet: the visitor has still to enter what the message names."""


def advanced(group: str) -> tuple[str, ...]:
    """Keys of a group that sit behind "Advanced", in the table's order."""
    hidden = (*(key for keys in BASIC[group] for key in keys), "model", "model_config", "accept_upper_bound")
    return tuple(key for key, field in field_table().items() if field.group == group and key not in hidden)


def to_scenario(texts: Mapping[str, str]) -> dict[str, Any]:
    """Filled-in texts as a scenario object: empty ones are left out, the planner checks the rest."""
    raw: dict[str, Any] = {}
    for key, field in field_table().items():
        text = str(texts.get(key) or "").strip()
        if not text or key == "model_config":
            continue
        if field.type == "flag":
            raw[key] = {"on": True, "off": False}.get(text, text)
        elif field.type == "text" or field.choices:
            raw[key] = text
        elif field.type in ("numbers", "integers"):
            raw[key] = [number(part) for part in re.split(r"[\s,;]+", text)]
        elif field.type == "length":
            spread = str(texts.get(f"{key}_cv") or "").strip()
            raw[key] = {"mean": number(text), "cv": number(spread)} if spread else number(text)
        else:
            raw[key] = number(text)
    return raw


def to_texts(scenario: Mapping[str, Any]) -> dict[str, str]:
    """A scenario object as the texts that its widgets show.

    >>> to_texts({"max_model_len": 8192, "prompt_tokens": {"mean": 1024.0, "cv": 1}, "enforce_eager": True})
    {'max_model_len': '8192', 'prompt_tokens': '1024', 'prompt_tokens_cv': '1', 'enforce_eager': 'on'}
    """
    texts: dict[str, str] = {}
    for key, value in scenario.items():
        if isinstance(value, Mapping):
            if "mean" in value:
                texts[key] = _text(value["mean"])
                texts[f"{key}_cv"] = _text(value.get("cv", 0))
        elif isinstance(value, list | tuple):
            texts[key] = " ".join(_text(item) for item in value)
        else:
            texts[key] = _text(value)
    return texts


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return str(value)


def form_config(texts: Mapping[str, str]) -> dict[str, Any]:
    """The small form as a config object: full attention, a gated MLP.

    Raises Incomplete naming what has still to be filled in, CapacityError on what cannot be.
    """
    values = {key: number(str(texts.get(key) or "").strip()) for key, _ in FORM}
    missing = [label for key, label in FORM if values[key] == "" and key not in FORM_OPTIONAL]
    given = {key: value for key, value in values.items() if value != ""}
    for key, label in FORM:
        if key in given and (not isinstance(given[key], int) or given[key] < 1):
            raise CapacityError(
                f"{label.lower()} is {str(texts.get(key))[:40]!r}; expected a whole number of at least 1"
            )
    if missing:
        raise Incomplete(f"still to fill in: {', '.join(missing)}")
    given.setdefault("intermediate_size", round(8 * given["hidden_size"] / 3))
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "_name_or_path": "form", **given}
