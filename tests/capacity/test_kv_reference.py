"""The KV planner against vLLM's own: 54 cases over 22 releases, from facts and from catalogue models.

Source: kv_cases.csv (facts in) and kv_results.csv (plan out), recorded by calling the planner of each release.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from capacity.engine import engine_release
from capacity.errors import CapacityError
from capacity.kv_cache.grouping import Grouping, group_layers
from capacity.kv_cache.layer_cache import LayerCache, attention_page_bytes
from capacity.kv_cache.pool import Pool, PoolInputs, build_pool
from capacity.parallelism import even_split
from capacity.plan import plan
from capacity.scenario import Scenario

GOLDEN = Path(__file__).parents[1] / "golden"


def _rows(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


CASES = {row["case_id"]: row for row in _rows("kv_cases.csv")}
RESULTS = [(release, row) for row in _rows("kv_results.csv") for release in row["releases"].split()]


def _number(row: dict[str, str], key: str) -> int:
    return int(row[key] or 0)


def _layers(case: dict[str, str]) -> list[LayerCache]:
    block, element = _number(case, "block_size"), _number(case, "kv_elem_bytes")

    def page(heads: int, width: int) -> int:
        return attention_page_bytes(
            block_size=block, kv_heads=heads, head_dim=width, v_head_dim=width, elem_bytes=element
        )

    heads, width = _number(case, "kv_heads_per_gpu"), _number(case, "head_dim")
    sliding = page(
        _number(case, "sliding_kv_heads_per_gpu") or heads, _number(case, "sliding_head_dim") or width
    )
    kinds = {
        "F": LayerCache("full", block, page(heads, width)),
        "S": LayerCache("sliding", block, sliding, _number(case, "sliding_window")),
        "C": LayerCache("chunked", block, page(heads, width), _number(case, "chunk_size")),
        "L": LayerCache("mla", block, block * _number(case, "mla_row_bytes")),
        "I": LayerCache("indexer", block, block * _number(case, "indexer_row_bytes")),
        "M": LayerCache(
            "state",
            _number(case, "mamba_block_size") or _number(case, "max_model_len"),
            _number(case, "mamba_page_padded_bytes") or _number(case, "mamba_state_bytes_per_gpu"),
        ),
    }
    pattern = re.sub(r"\(([A-Z]+)\)x(\d+)", lambda m: m[1] * int(m[2]), case["layer_pattern"]).replace(
        "+", ""
    )
    if case["hybrid_manager"] == "off":
        pattern = pattern.replace("S", "F").replace("C", "F")
    return [kinds[letter] for letter in pattern]


def _pool(case: dict[str, str], release: str) -> tuple[Grouping, Pool, range]:
    rules = engine_release(release).kv
    layers = _layers(case)
    ends = [0]
    for size in even_split(len(layers), _number(case, "pp")):
        ends.append(ends[-1] + size)
    stages = tuple(range(a, b) for a, b in pairwise(ends))
    steps = _number(case, "max_concurrent_batches") if rules.concurrent_steps_counted else 1
    override = case["num_blocks_override"]
    inputs = PoolInputs(
        available_bytes=tuple(int(v) for v in case["available_bytes_per_worker"].split("+")),
        stages=stages,
        max_model_len=_number(case, "max_model_len"),
        max_num_batched_tokens=_number(case, "max_num_batched_tokens"),
        block_size=_number(case, "block_size"),
        concurrent_steps=steps,
        decode_context_parallel_size=_number(case, "dcp"),
        align_state=case["mamba_cache_mode"] == "align",
        num_gpu_blocks_override=int(override) if override else None,
    )
    grouping = group_layers(layers, rules)
    return grouping, build_pool(grouping, layers, inputs, rules), stages[0]


@pytest.mark.parametrize(("release", "want"), RESULTS, ids=[f"{row['case_id']}-{v}" for v, row in RESULTS])
def test_facts_give_the_engines_plan(release: str, want: dict[str, str]) -> None:
    case = CASES[want["case_id"]]
    if want["error"].startswith("NotImplementedError"):
        with pytest.raises(CapacityError, match=r"needs 0\.1[12] or newer"):
            _pool(case, release)
        return
    grouping, pool, first = _pool(case, release)
    if want["error"]:
        assert not pool.starts
        assert f"estimated maximum model length is {pool.longest_max_model_len}." in want["error"]
        needed = re.search(r"\(([\d.]+) GiB KV cache is needed", want["error"])
        assert needed is not None and float(needed[1]) == pytest.approx(pool.needed_bytes / 2**30, abs=0.006)
        return
    assert pool.starts
    per_group = "+".join(str(sum(1 for i in group.layers if i in first)) for group in grouping.groups)
    assert (per_group, "+".join(str(group.cache.block_size) for group in grouping.groups)) == (
        want["layers_per_group"],
        want["group_block_sizes"],
    )
    assert pool.bytes_per_block == _number(want, "bytes_per_block")
    assert pool.num_blocks == _number(want, "num_blocks")
    assert pool.blocks_per_max_request == _number(want, "blocks_per_max_request")
    assert pool.max_concurrency == float(want["max_concurrency"])
    assert pool.tokens_logged == _number(want, "tokens_logged")
    logged = re.findall(r"[\d,.]+x|[\d,]+ tokens(?! per)", want["log_line"])
    assert all(part in " ".join(pool.log_lines) for part in logged)


def _from_catalogue() -> Iterator[tuple[str, dict[str, str]]]:
    for release, want in RESULTS:
        if CASES[want["case_id"]]["catalogue_model"]:
            yield release, want


@pytest.mark.parametrize(
    ("release", "want"),
    list(_from_catalogue()),
    ids=[f"{row['case_id']}-{v}" for v, row in _from_catalogue()],
)
def test_catalogue_models_give_the_engines_plan(release: str, want: dict[str, str]) -> None:
    case = CASES[want["case_id"]]
    pp = _number(case, "pp")
    raw = {
        "model": case["catalogue_model"],
        "engine_version": release,
        "tensor_parallel_size": _number(case, "tp"),
        "pipeline_parallel_size": pp,
        "decode_context_parallel_size": _number(case, "dcp"),
        "max_model_len": _number(case, "max_model_len"),
        "max_num_batched_tokens": _number(case, "max_num_batched_tokens"),
        "async_scheduling": _number(case, "max_concurrent_batches") > pp,
        "kv_cache_memory_bytes": [int(v) for v in case["available_bytes_per_worker"].split("+")],
        "kv_cache_dtype": {"1": "fp8", "2": "bfloat16"}[case["kv_elem_bytes"]],
        "disable_hybrid_kv_cache_manager": case["hybrid_manager"] == "off",
    }
    if case["num_blocks_override"]:
        raw["num_gpu_blocks_override"] = _number(case, "num_blocks_override")
    if _number(case, "mamba_layers"):
        raw["enable_prefix_caching"] = case["mamba_cache_mode"] == "align"
        raw["mamba_ssm_cache_dtype"] = "float32" if "fp32" in case["model_label"] else "bfloat16"
    else:
        raw["block_size"] = _number(case, "block_size")
    if want["error"].startswith("NotImplementedError"):
        with pytest.raises(CapacityError, match="or newer"):
            plan(Scenario.parse(raw))
        return
    found = plan(Scenario.parse(raw))
    if want["error"]:
        assert found.fit == "no" and found.pool is not None and not found.pool.starts
        return
    assert found.pool is not None
    assert found.layout.block_size == _number(case, "block_size")
    assert (found.pool.num_blocks, found.pool.blocks_per_max_request, found.pool.tokens_logged) == (
        _number(want, "num_blocks"),
        _number(want, "blocks_per_max_request"),
        _number(want, "tokens_logged"),
    )
