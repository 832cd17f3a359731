"""The longest request that the engine allows for a config, and the length that it takes when none is asked for.

Source: the engine's _get_and_verify_max_len and its list of keys. Left out: the tokenizer's own limit.
"""

from __future__ import annotations

from collections.abc import Mapping

from capacity.hf_config.reader import Reader, names

# The keys that the engine reads; the smallest stated one holds. Other spellings count where none of these is stated.
KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length",
    "max_seq_length",
)  # fmt: skip
# Kinds of RoPE scaling whose stated limit already holds; the engine multiplies the others' by their factor.
UNSCALED = ("su", "longrope", "llama3", "default", "mrope", "proportional")


def longest_request(reader: Reader) -> int | None:
    """Tokens: the stated limit times the RoPE factor, with YaRN the original's; model_max_length wins over other keys.

    None where the config states no limit.
    """
    longest = _stated(reader)
    rope = _rope(reader)
    if longest is None or rope is None or "gemma3" in (reader.text("model_type") or ""):
        return longest
    kind = rope.get("rope_type") or rope.get("type")
    scaling = Reader(rope, name=reader.path("rope_scaling"))
    factor = scaling.number("factor")
    if not isinstance(kind, str) or kind in UNSCALED or not factor:
        return longest
    base = scaling.integer("original_max_position_embeddings", low=1) if kind == "yarn" else None
    return max(1, int((base or longest) * factor))


def longrope_length(reader: Reader) -> int | None:
    """With LongRoPE, the trained length that the engine takes when max_model_len is not given; else None."""
    rope = _rope(reader)
    if rope is None or (rope.get("rope_type") or rope.get("type")) not in ("longrope", "su"):
        return None
    return reader.integer("original_max_position_embeddings", low=1)


def _rope(reader: Reader) -> Mapping[str, object] | None:
    rope = reader.section.get("rope_scaling") or reader.section.get("rope_parameters")
    return rope if isinstance(rope, Mapping) else None


def _stated(reader: Reader) -> int | None:
    known = names()["max_position_embeddings"]

    def read(key: str) -> int | None:
        value = reader.section.get(key)
        if value is None:
            return None
        return reader.check(key, value, low=known.low, high=known.high)

    whole = read("model_max_length")
    if whole is not None:
        return whole
    stated = [value for key in KEYS if (value := read(key)) is not None]
    return min(stated) if stated else reader.integer("max_position_embeddings")
