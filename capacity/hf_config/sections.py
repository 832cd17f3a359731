"""Which part of a config.json describes the language model: the top, or a sub-config of a multimodal wrapper.

Left out: speech and image generators, whose text part is no causal language model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capacity.errors import ConfigError

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
