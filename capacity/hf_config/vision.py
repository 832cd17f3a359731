"""A vision tower's parameters, estimated from its config: layers, patch embedding, positions and projector.

Source: catalog/vision_towers.csv, exact for the towers in the model catalogue. Left out: audio towers'
details.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from capacity.catalog.table import read_table
from capacity.hf_config.reader import Reader
from capacity.model import Encoder

COMMON = {
    "attention_bias": "yes",
    "mlp_bias": "yes",
    "norm_vectors": "4",
    "projector": "linear",
    "positions": "none",
}


@lru_cache(maxsize=1)
def towers() -> dict[str, dict[str, str]]:
    """The table by model_type."""
    return {name: row for row in read_table("vision_towers") for name in row["model_types"].split("|")}


def encoder(
    section: Mapping[str, Any], *, name: str, text_hidden: int, outer_type: str, top: Mapping[str, Any]
) -> Encoder:
    """The tower as a record. Raises ConfigError for a field out of range."""
    model_type = str(section.get("model_type") or "")
    row = towers().get(model_type) or towers().get(outer_type) or {}
    if section.get("hidden_size") == 3200 and row.get("tower") == "intern_vit":
        row = towers()["intern_vit_6b"]
    reader = Reader(_square(section), name=name)

    def size(*keys: str) -> int | None:
        for key in keys:
            value = reader.integer(key, low=1, high=10**7)
            if value is not None:
                return value
        return int(row[keys[0]]) if row.get(keys[0]) else None

    width = size("hidden_size", "embed_dim", "vt_hidden_size", "width")
    layers = size("num_layers", "num_hidden_layers", "depth", "vt_num_hidden_layers")
    if row.get("tower") == "qwen2_vl" and section.get("embed_dim") is not None:
        width = reader.integer("embed_dim", low=1)
    if width is None or layers is None:
        return Encoder(parameters=0)
    inner = size("intermediate_size", "vt_intermediate_size") or 4 * width
    if row.get("tower") == "qwen2_vl":
        inner = int(width * (reader.number("mlp_ratio") or 4))
    patch = size("patch_size") or 14
    return Encoder(
        parameters=_tower(row or COMMON, reader, width, layers, inner, patch, text_hidden, top),
        hidden_size=width,
        num_layers=layers,
        image_tokens=reader.integer("image_tokens", low=1) or _tokens(top, row),
        max_image_tokens=int(row["max_image_tokens"]) if row.get("max_image_tokens") else None,
    )


def _square(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section with sizes given as [height, width] read as one side; equal sides are all that towers here have."""
    sides = {}
    for key in ("image_size", "patch_size"):
        value = section.get(key)
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            sides[key] = value[0]
    return {**section, **sides}


def _tokens(top: Mapping[str, Any], row: Mapping[str, str]) -> int | None:
    for key in ("mm_tokens_per_image", "vision_soft_tokens_per_image", "image_seq_length"):
        if isinstance(top.get(key), int) and not isinstance(top[key], bool) and 0 < top[key] < 10**6:
            return int(top[key])
    return int(row["image_tokens"]) if row.get("image_tokens") else None


def _tower(
    row: Mapping[str, str],
    reader: Reader,
    width: int,
    layers: int,
    inner: int,
    patch: int,
    out: int,
    top: Mapping[str, Any],
) -> int:
    gated = row.get("gated") == "yes"
    bias = {"yes": 4 * width, "half": width}.get(row.get("attention_bias", ""), 0)
    layer = 4 * width * width + bias + (3 if gated else 2) * width * inner
    if row.get("mlp_bias") == "yes":
        layer += (2 if gated else 1) * inner + width
    layer += int(row.get("norm_vectors") or 4) * width
    heads = reader.integer("num_attention_heads", low=1) or reader.integer("num_heads", low=1) or 16
    layer += int(row.get("head_norms") or 0) * (width // heads)
    embedding = 3 * int(row.get("temporal") or 1) * patch * patch * width
    embedding += width if row.get("patch_bias") == "yes" else 0
    side = (
        reader.integer("image_size", low=1)
        or {"siglip": 896, "llama4": 336, "clip": 336}.get(row.get("tower", ""), 448)
    ) // patch
    positions = {
        "grid_64": 64 * 64,
        "patches": side * side,
        "patches_and_class": side * side + 1,
        "num_position_embeddings": reader.integer("num_position_embeddings", low=1) or 2304,
        "two_tables": 2 * (reader.integer("position_embedding_size", low=1) or 10240),
    }.get(row.get("positions", ""), 0)
    vectors = positions + int(row.get("other_vectors") or 0)
    deepstack = len(reader.listed("deepstack_visual_indexes") or ())
    return (
        layers * layer
        + embedding
        + vectors * width
        + _projector(row.get("projector", "linear"), width, out, deepstack)
    )


def _projector(style: str, width: int, out: int, deepstack: int) -> int:
    merged = 4 * width
    if style == "qwen":
        return width + merged * merged + merged + merged * out + out
    if style == "qwen3":
        body = merged * merged + merged + merged * out + out
        return 2 * width + body + deepstack * (2 * merged + body)
    if style == "gemma3":
        return width * out + width
    if style == "mistral3":
        return width + merged * width + width * out + out * out
    if style == "internvl":
        return 2 * merged + merged * out + out + out * out + out
    if style == "llama4":
        return merged * 4096 + 4096 * 4096 + 4096 * out
    if style == "llava":
        return width * out + out + out * out + out
    return width * out
