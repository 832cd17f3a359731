"""Whole plans of models that no other golden row holds, against vLLM's layers and planner.

layer_specs.csv: a config, and the caches that the model's layers ask for: count x kind/bytes a token (state: bytes)
/window, read from get_kv_cache_spec of every layer of vLLM 0.32.0 (CPU build, weights on the meta device, one GPU, bfloat16).
kv_models.csv: those layers scaled to a TP and PP size and given to the planner module of 22 releases, with random
settings and memory. An empty tokens_logged: that release logs a line for each stage.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from capacity.errors import CapacityError
from capacity.kv_cache.layer_cache import LayerCache
from capacity.plan import plan
from capacity.scenario import Scenario

GOLDEN = Path(__file__).parents[1] / "golden"


def _rows(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


MODELS = {row["name"]: row for row in _rows("layer_specs.csv")}
ROWS = _rows("kv_models.csv")


def _label(cache: LayerCache, state_bytes: int) -> str:
    size = state_bytes if cache.kind == "state" else cache.page_bytes // cache.block_size
    return f"{cache.kind}/{size}" + (f"/{cache.window}" if cache.window else "")


@pytest.mark.parametrize("name", MODELS)
def test_layers_ask_for_the_caches_that_the_engines_layers_ask_for(name: str) -> None:
    row = MODELS[name]
    keys = {"model_config": json.loads(row["config"]), "kv_cache_gib": 64, "max_model_len": 1000}
    found = plan(Scenario.parse({**keys, "engine_version": "0.32.0", "kv_cache_dtype": "bfloat16"}))
    mine = Counter(_label(cache, found.layout.state_bytes) for cache in found.layout.layers)
    assert mine == {label: int(n) for n, label in re.findall(r"(\d+) x (\S+)", row["caches"])}


def _scenario(row: dict[str, str]) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "model_config": json.loads(MODELS[row["name"]]["config"]),
        "engine_version": row["release"],
        "tensor_parallel_size": int(row["tp"]),
        "pipeline_parallel_size": int(row["pp"]),
        "max_model_len": int(row["max_model_len"]),
        "max_num_batched_tokens": int(row["max_num_batched_tokens"]),
        "block_size": int(row["block_size"]),
        "kv_cache_dtype": row["kv_cache_dtype"],
        "async_scheduling": row["async"] == "yes",
        "enable_prefix_caching": row["prefix"] == "yes",
        "disable_hybrid_kv_cache_manager": row["hybrid"] == "no",
        "kv_cache_memory_bytes": [int(part) for part in row["kv_cache_memory_bytes"].split("+")],
    }
    if row["override"]:
        raw["num_gpu_blocks_override"] = int(row["override"])
    return raw


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['name']}-{row['release']}" for row in ROWS])
def test_plans_of_other_models_are_the_engines(row: dict[str, str]) -> None:
    if row["refused"] == "layout":
        with pytest.raises(CapacityError, match=f"release {row['release']} "):
            plan(Scenario.parse(_scenario(row)))
        return
    found = plan(Scenario.parse(_scenario(row)))
    assert found.pool is not None and found.pool.starts == (row["refused"] == "")
    if row["refused"]:
        return
    logged = int(row["tokens_logged"]) if row["tokens_logged"] else found.pool.tokens_logged
    assert (found.pool.num_blocks, found.pool.blocks_per_max_request, found.pool.tokens_logged) == (
        int(row["num_blocks"]),
        int(row["blocks_per_request"]),
        logged,
    )
