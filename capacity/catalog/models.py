"""The bundled model catalogue: id or short name to a ModelSpec, offline.

Source: models.csv, each row with its own; every row goes through the same reader as a pasted config.json.
Left out: models that nobody has asked for yet; those come as a config.json.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from capacity.catalog.relatives import as_relative, is_alias, relative
from capacity.catalog.table import read_table
from capacity.errors import CapacityError
from capacity.model import ModelSpec

WHOLE = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size", "max_position_embeddings",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCount:
    """A published parameter count, what it includes and who published it."""

    parameters: int
    basis: str
    source: str
    active_billions: float | None


@lru_cache(maxsize=1)
def _rows() -> dict[str, dict[str, str]]:
    return {row["model_id"]: row for row in read_table("models")}


@lru_cache(maxsize=1)
def _short_names() -> dict[str, tuple[str, ...]]:
    """Lower-case spellings to the ids that they may mean."""
    found: dict[str, list[str]] = {}
    for model_id in _rows():
        name = model_id.lower()
        short = name.split("/")[-1]
        spellings = {name, short}
        for ending in ("-instruct", "-it", "-chat", "-hf", "-instruct-hf", "-bf16", "-pt"):
            if short.endswith(ending):
                spellings |= {short.removesuffix(ending), name.removesuffix(ending)}
        for spelling in spellings:
            found.setdefault(spelling, []).append(model_id)
    return {name: tuple(ids) for name, ids in found.items()}


@lru_cache(maxsize=1)
def _loose_names() -> dict[str, tuple[str, ...]]:
    """The spellings without spaces, dashes and underscores, to the ids that they may mean."""
    found: dict[str, list[str]] = {}
    for spelling, ids in _short_names().items():
        found.setdefault(_loose(spelling), []).extend(ids)
    return {name: tuple(dict.fromkeys(ids)) for name, ids in found.items()}


def _loose(name: str) -> str:
    """
    >>> _loose("Llama 3.3_70B"), _loose("llama-3.3-70b")
    ('llama3.370b', 'llama3.370b')
    """
    return re.sub(r"[\s_-]", "", name.lower())


@lru_cache(maxsize=1)
def _ids() -> frozenset[str]:
    return frozenset(model_id.lower() for model_id in _rows())


def model_ids() -> tuple[str, ...]:
    """All ids in the table's order."""
    return tuple(_rows())


def find_model_id(name: str) -> str:
    """The catalogue id for an id or a short name. Case does not matter; spaces, dashes and underscores are alike.

    Part of a name is never taken for one. Raises CapacityError naming the ids that hold it or are close to it.

    >>> find_model_id("llama-3.1-8b"), find_model_id("OPENAI/GPT OSS 120B")
    ('meta-llama/Llama-3.1-8B-Instruct', 'openai/gpt-oss-120b')
    """
    wanted, ids = _meant(name)
    if len(ids) == 1:
        return ids[0]
    if len(ids) > 1:
        raise CapacityError(
            f"model {name[:60]!r} is ambiguous; expected one of {', '.join(ids)}", field="model"
        )
    found = _close(wanted)
    hint = f"close: {', '.join(found)}" if found else f"{len(_rows())} ids are known"
    raise CapacityError(
        f"model {name[:60]!r} is not in the catalogue; {hint}, or give a config.json", field="model"
    )


def _meant(name: str) -> tuple[str, tuple[str, ...]]:
    """(the name as it is looked up, the ids that it may mean)."""
    wanted = name.strip().lower()
    if wanted not in _short_names():
        wanted = re.sub(r"(^|/)meta-llama-", r"\1llama-", wanted)
    ids = _short_names().get(wanted, ()) or _loose_names().get(_loose(wanted), ())
    exact = tuple(
        model_id for model_id in ids if wanted in (model_id.lower(), model_id.lower().split("/")[-1])
    )
    return wanted, exact if len(exact) == 1 else ids


def _close(wanted: str) -> list[str]:
    """At most four ids: those that hold what was typed, else those that look like it."""
    part = _loose(wanted).replace(".", "")
    holding = [one for one in _rows() if len(part) > 1 and part in _loose(one).replace(".", "")]
    if holding:
        return sorted(holding, key=len)[:4]
    near = difflib.get_close_matches(re.sub(r"[\s_]+", "-", wanted), list(_short_names()), n=8, cutoff=0.6)
    return list(dict.fromkeys(model_id for key in near for model_id in _short_names()[key]))[:4]


def model_config(name: str) -> dict[str, Any]:
    """The row as a config.json object, for showing and exporting."""
    row = _rows()[find_model_id(name)]
    config: dict[str, Any] = {"architectures": [row["architecture"]], "model_type": row["model_type"]}
    config.update({key: int(row[key]) for key in WHOLE if row[key]})
    config["tie_word_embeddings"] = row["tie_word_embeddings"] == "true"
    config["torch_dtype"] = row["torch_dtype"]
    config.update(json.loads(row["more"] or "{}"))
    for column, key in (("vision", "vision_config"), ("quantization", "quantization_config")):
        if row[column]:
            config[key] = json.loads(row[column])
    return config


def model_facts(name: str) -> Mapping[str, str]:
    """The row as written: sources, evidence, notes."""
    return dict(_rows()[find_model_id(name)])


def published_count(name: str) -> PublishedCount:
    """The published parameter count of a model."""
    row = _rows()[find_model_id(name)]
    return PublishedCount(
        parameters=int(row["params_published"]),
        basis=row["count_basis"],
        source=row["params_published_source"],
        active_billions=float(row["active_params_published_b"]) if row["active_params_published_b"] else None,
    )


@lru_cache(maxsize=256)
def _spec(model_id: str) -> ModelSpec:
    from capacity.hf_config import parse_config

    row = _rows()[model_id]
    spec = parse_config(model_config(model_id), model_id=model_id)
    return replace(
        spec,
        published_parameters=int(row["params_published"]),
        checkpoint_bytes=int(row["checkpoint_bytes"]) if row["checkpoint_bytes"] else None,
        count_basis=row["count_basis"],
        notes=spec.notes + ((row["notes"],) if row["notes"] else ()),
        source=row["source"],
    )


def model_spec(name: str) -> ModelSpec:
    """The model by id or short name. Raises CapacityError naming close matches.

    A whole id ("Qwen/Qwen2.5-7B") of an alias is that release, with its own length; a short name is the row's.

    >>> model_spec("qwen3-32b").num_hidden_layers
    64
    """
    if "/" in name and name.strip().lower() not in _ids() and is_alias(name):
        found = _relative_spec(name)
        if found is not None:
            return found
    _, ids = _meant(name)
    found = _relative_spec(name) if len(ids) != 1 else None
    return found if found is not None else _spec(find_model_id(name))


@lru_cache(maxsize=256)
def _relative_spec(name: str) -> ModelSpec | None:
    found = relative(name)
    for candidate in found.candidates if found is not None else ():
        _, ids = _meant(candidate)
        if len(ids) == 1:
            assert found is not None
            return as_relative(_spec(ids[0]), name, found)
    return None
