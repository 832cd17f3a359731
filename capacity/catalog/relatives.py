"""Names that are not catalogue rows but say which row they are: other hubs' copies, quantised copies, older releases.

Source: model_aliases.csv and name_suffixes.csv. What was taken is said in the model's notes, never silently.
Left out: fine-tunes whose name does not hold their base's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from capacity.catalog.table import read_table
from capacity.model import CheckpointQuantization, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """What a name stands for: names to try in the catalogue, and what differs from that row."""

    candidates: tuple[str, ...]
    weight_format: str | None
    max_position_embeddings: int | None
    reason: str


def relative(name: str) -> Relative | None:
    """The catalogue row that a name points at; None when it says nothing.

    >>> found = relative("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8")
    >>> found.candidates[0], found.weight_format
    ('meta-llama-3.1-8b-instruct', 'w8a8')
    """
    short = name.strip().lower().split("/")[-1]
    weight_format, reason = None, "a copy under another name"
    for row in read_table("name_suffixes"):
        if short.endswith(row["suffix"]):
            base = short.removesuffix(row["suffix"])
            short = f"{base}-instruct" if row["suffix"].startswith("-instruct") else base
            weight_format, reason = row["weight_format"], f"{row['weight_format']} weights, {row['source']}"
            break
    for row in read_table("model_aliases"):
        if row["alias"].lower() == short:
            length = row["max_position_embeddings"]
            return Relative(
                candidates=(row["model_id"],),
                weight_format=weight_format or row["weight_format"] or None,
                max_position_embeddings=int(length) if length else None,
                reason=row["source"],
            )
    if "/" not in name and weight_format is None:
        return None
    plain = short.removeprefix("meta-")
    return Relative(
        candidates=tuple(dict.fromkeys((short, plain))),
        weight_format=weight_format,
        max_position_embeddings=None,
        reason=reason,
    )


@lru_cache(maxsize=1)
def _aliases() -> frozenset[str]:
    return frozenset(row["alias"].lower() for row in read_table("model_aliases"))


def is_alias(name: str) -> bool:
    """Whether the name without its organisation is an alias of the table, letter case aside."""
    return name.strip().lower().split("/")[-1] in _aliases()


def as_relative(spec: ModelSpec, name: str, found: Relative) -> ModelSpec:
    """The row's spec under the asked name, with what differs and a note that says what was taken."""
    from capacity.precision import resolve_weight_format

    quantization = spec.quantization
    if found.weight_format is not None:
        quantization = CheckpointQuantization(
            weight_format=resolve_weight_format(found.weight_format, spec).id
        )
    return replace(
        spec,
        model_id=name.strip(),
        quantization=quantization,
        max_position_embeddings=found.max_position_embeddings or spec.max_position_embeddings,
        published_parameters=None,
        checkpoint_bytes=None,
        notes=(f"taken as {spec.model_id}: {found.reason}", *spec.notes),
    )
