"""Which of vLLM's model runners a release takes for a model: it decides what profiling measures and charges.

Source: catalog/model_runners.csv, read in config/vllm.py of each release. Left out: features that send a model back
to the older runner (custom speculators, dual batch overlap).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from capacity.catalog.table import read_table
from capacity.engine import EngineRelease, Version, parse_version
from capacity.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRunner:
    """``name`` v0, v1 or v2; ``charges_graphs``: the CUDA-graph estimate comes out of the budget."""

    name: Literal["v0", "v1", "v2"]
    charges_graphs: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    first: Version
    dense: frozenset[str]
    listed: frozenset[str]
    all_dense: bool
    quantised: bool
    everything: bool
    graphs_profiled: bool
    source: str


def model_runner(spec: ModelSpec, release: EngineRelease, *, quantised: bool) -> ModelRunner:
    """The runner of ``release`` for ``spec``, and whether its start-up charges CUDA graphs.

    >>> from capacity.catalog import model_spec
    >>> from capacity.engine import engine_release
    >>> [model_runner(model_spec("qwen3-8b"), engine_release(v), quantised=False).name for v in ("0.19.0", "0.26.0")]
    ['v1', 'v2']
    """
    if release.runner == "v0":
        return ModelRunner(name="v0", charges_graphs=False, source=release.source)
    rule = _rule(release.version)
    if rule is None or not _takes(rule, spec, quantised):
        return ModelRunner(name="v1", charges_graphs=release.graphs_in_budget, source=release.source)
    charged = release.graphs_in_budget and rule.graphs_profiled
    return ModelRunner(name="v2", charges_graphs=charged, source=rule.source)


def _takes(rule: _Rule, spec: ModelSpec, quantised: bool) -> bool:
    if rule.everything:
        return True
    if spec.architecture in rule.listed:
        return True
    if spec.is_moe or spec.has_state or (quantised and not rule.quantised):
        return False
    return rule.all_dense or spec.architecture in rule.dense


@lru_cache(maxsize=64)
def _rule(version: Version) -> _Rule | None:
    found = None
    for rule in _rules():
        if rule.first <= version:
            found = rule
    return found


@lru_cache(maxsize=1)
def _rules() -> tuple[_Rule, ...]:
    return tuple(
        _Rule(
            first=parse_version(row["first_release"]),
            dense=frozenset(filter(None, row["dense_architectures"].split("|"))),
            listed=frozenset(filter(None, row["any_architectures"].split("|"))),
            all_dense=row["all_dense"] == "yes",
            quantised=row["quantised"] == "yes",
            everything=row["everything"] == "yes",
            graphs_profiled=row["graphs_profiled"] == "yes",
            source=row["source"],
        )
        for row in read_table("model_runners")
    )
