"""Which part of a config.json describes the language model: the top, or a sub-config of a multimodal wrapper.

Left out: speech and image generators, whose text part is no causal language model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from capacity.catalog.table import read_table
from capacity.errors import ConfigError
from capacity.hf_config.reader import names

TEXT_SECTIONS = (
    "text_config", "llm_config", "language_config", "language_model_config", "lm_config", "thinker_config",
    "text_model_config", "decoder_config", "llm",
)  # fmt: skip
VISION_SECTIONS = ("vision_config", "vit_config", "vision_tower_config", "visual", "vision_encoder_config")
INHERITED = (
    "tie_word_embeddings", "torch_dtype", "dtype", "quantization_config", "max_position_embeddings",
    "vocab_size",
    "compression_config",
)  # fmt: skip
# Parts of a checkpoint beside the language model and its vision tower, whose weights no rule here counts.
OTHER_PARTS = (
    "audio_config", "audio_encoder_config", "audio_processor", "speech_config", "sound_config", "embd_layer",
    "vision_lora", "speech_lora", "talker_config", "code2wav_config", "token2wav_config",
)  # fmt: skip


def language_section(config: Mapping[str, Any]) -> tuple[dict[str, Any], str, list[Mapping[str, Any]]]:
    """The language model's fields, the section's name ("" = top) and the wrappers around it, innermost last.

    Fields that wrappers state for the whole model (dtype, tie, quantisation) are filled in where the
    section is silent.
    """
    section: Mapping[str, Any] = config
    name = ""
    wrappers: list[Mapping[str, Any]] = []
    for _ in range(4):
        found = next((key for key in TEXT_SECTIONS if isinstance(section.get(key), Mapping)), None)
        if found is None:
            wrong = next((key for key in TEXT_SECTIONS if section.get(key) not in (None, "")), None)
            if wrong is not None and not isinstance(section[wrong], Mapping) and "hidden_size" not in section:
                raise ConfigError(f"{wrong} is not an object; expected the language model's config")
            break
        wrappers.append(section)
        section = section[found]
        name = f"{name}.{found}" if name else found
    merged = dict(section)
    for wrapper in reversed(wrappers):
        for key in INHERITED:
            if merged.get(key) is None and wrapper.get(key) is not None:
                merged[key] = wrapper[key]
    # MPT and DBRX keep part of the fields one level down
    for key in ("attn_config", "ffn_config"):
        inner = merged.get(key)
        if isinstance(inner, Mapping):
            merged.update({k: v for k, v in inner.items() if k not in merged and not isinstance(v, Mapping)})
    return merged, name, wrappers


def vision_section(
    config: Mapping[str, Any], wrappers: list[Mapping[str, Any]]
) -> tuple[Mapping[str, Any] | None, str]:
    """The vision tower's fields and the section's name, or (None, "")."""
    for holder in [config, *wrappers]:
        for key in VISION_SECTIONS:
            if isinstance(holder.get(key), Mapping):
                return holder[key], key
    return None, ""


@lru_cache(maxsize=1)
def _class_defaults() -> dict[str, tuple[dict[str, Any], str]]:
    return {
        row["model_type"]: (json.loads(row["defaults"]), row["source"])
        for row in read_table("class_defaults")
    }


def with_class_defaults(
    section: dict[str, Any], name: str, model_type: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A wrapper's sub-config with what it leaves out because its class has that value, and a note that names it.

    A config of its own (``name`` "") is left as it is: there a missing field is a fault.
    """
    if not name or model_type not in _class_defaults():
        return section, ()
    defaults, source = _class_defaults()[model_type]
    known = names()
    taken = {
        field: value
        for field, value in defaults.items()
        if not any(alias in section for alias in (known[field].aliases if field in known else (field,)))
    }
    if not taken:
        return section, ()
    listed = ", ".join(f"{field} {value:,}" for field, value in taken.items())
    return {**section, **taken}, (f"{name} leaves out what {source} has by default: {listed}",)


def uncounted(
    config: Mapping[str, Any], wrappers: list[Mapping[str, Any]], empty_tower: str
) -> tuple[str, ...]:
    """A note on the parts whose weights are not in the count. ``empty_tower``: a vision section without widths."""
    found = [key for key in OTHER_PARTS if any(holder.get(key) for holder in (config, *wrappers))]
    if empty_tower:
        found.insert(0, empty_tower)
    if not found:
        return ()
    return (f"the weights of {', '.join(found)} are not counted: add them by weights_gib or parameters",)
