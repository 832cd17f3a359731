"""Which family a config belongs to, and what its classes do where the config is silent.

Source: catalog/model_families.csv, catalog/not_decoders.csv. Left out: anything that a config states itself.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from capacity.catalog.table import read_table
from capacity.errors import ConfigError, UnknownArchitecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One row of the table. Columns that hold a config key ("attention_bias") mean: as that key says, else
    no.
    """

    family: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    tie: bool
    norms: str
    norm_bias: bool
    qkv_bias: str
    o_bias: str
    mlp_bias: str
    qk_norm: str
    gated: bool
    position: str
    rule: str
    state: str
    router_bias: bool
    mtp: str
    defaults: Mapping[str, Any]
    unknown_kv: str
    source: str


GENERIC = "generic"
ENCODER_HEADS = re.compile(
    r"For(MaskedLM|QuestionAnswering|TokenClassification|ImageClassification|CTC|PreTraining)$"
)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split("|") if part)


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """All rows."""
    return tuple(
        Family(
            family=row["family"],
            model_types=_split(row["model_types"]),
            architectures=_split(row["architectures"]),
            tie=row["tie"] == "yes",
            norms=row["norms"],
            norm_bias=row["norm_bias"] == "yes",
            qkv_bias=row["qkv_bias"],
            o_bias=row["o_bias"],
            mlp_bias=row["mlp_bias"],
            qk_norm=row["qk_norm"],
            gated=row["gated"] == "yes",
            position=row["position"],
            rule=row["rule"],
            state=row["state"],
            router_bias=row["router_bias"] == "yes",
            mtp=row["mtp"],
            defaults=json.loads(row["defaults"]) if row["defaults"] else {},
            unknown_kv=row["unknown_kv"],
            source=row["source"],
        )
        for row in read_table("model_families")
    )


@lru_cache(maxsize=1)
def _by_name() -> dict[str, Family]:
    found: dict[str, Family] = {}
    for row in families():
        for name in (*row.model_types, *row.architectures):
            found.setdefault(name, row)
    return found


@lru_cache(maxsize=1)
def _not_decoders() -> dict[str, str]:
    return {name: row["kind"] for row in read_table("not_decoders") for name in row["model_types"].split("|")}


def choose_family(
    model_type: str, architectures: tuple[str, ...], *, encoder_decoder: bool, accept_upper_bound: bool
) -> Family:
    """The family by model_type, else by architecture. Raises ConfigError for encoders, UnknownArchitecture
    otherwise.
    """
    label = "".join(c for c in (architectures[0] if architectures else model_type) if c.isprintable())
    kind = _not_decoders().get(model_type)
    if kind is None and encoder_decoder:
        kind = "encoder-decoder"
    if kind is None and model_type not in _by_name() and ENCODER_HEADS.search(label):
        kind = "encoder-only"
    if kind is None and not model_type:
        kind = next(
            (
                k
                for t, k in _not_decoders().items()
                if label.lower().startswith(f"{t}for") or label.lower() == f"{t}model"
            ),
            None,
        )
    if kind is not None:
        raise ConfigError(
            f"{label or model_type} is an {kind} model; expected a causal model with a KV cache"
            if kind[0] in "aeiou"
            else f"{label or model_type} is a {kind}; expected a causal language model"
        )
    for name in (model_type, *architectures):
        if name in _by_name():
            return _by_name()[name]
    if accept_upper_bound:
        return generic_family()
    if not label:
        raise UnknownArchitecture(
            "model_type and architectures are both missing; expected one of them, "
            "or accept an upper bound with every layer as full attention"
        )
    stems = {_stem(name): name for name in _by_name()}
    close = difflib.get_close_matches(_stem(label), list(stems), n=1, cutoff=0.75)
    near = [stems[stem] for stem in close]
    hint = f"; the closest known one is {near[0]}" if near else ""
    raise UnknownArchitecture(
        f"architecture {label[:60]!r} has no rule here{hint}; missing: which layers keep which cache. "
        "An upper bound with every layer as full attention can be accepted"
    )


def for_config(family: Family, section: Mapping[str, Any]) -> Family:
    """The family with ``unknown_kv`` set where the config switches something on that has no rule (``no_rule_for``)."""
    for key, reason in family.defaults.get("no_rule_for", {}).items():
        if section.get(key):
            return replace(family, unknown_kv=reason)
    return family


def _stem(name: str) -> str:
    return re.sub(r"(ForCausalLM|ForConditionalGeneration|LMHeadModel|Model)$", "", name).lower()


def generic_family() -> Family:
    """Every layer full attention with a gated MLP: the upper bound for an unknown architecture."""
    return Family(
        family=GENERIC, model_types=(), architectures=(), tie=False, norms="2", norm_bias=False,
        qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias", qk_norm="none", gated=True,
        position="rope", rule="full", state="", router_bias=False, mtp="", defaults={}, unknown_kv="",
        source="",
    )  # fmt: skip
