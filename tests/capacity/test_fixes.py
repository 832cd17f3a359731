"""What to change when a plan does not fit: computed where nothing helps on the GPU at hand, and applied it holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from capacity.fixes import fixes
from capacity.plan import plan
from capacity.scenario import Scenario

CROWDED: list[dict[str, Any]] = [
    {"model": "deepseek-v3", "gpu": "l4"},
    {"model": "deepseek-v3", "gpu": "h100"},
    {"model": "llama-3.1-405b", "gpu": "t4"},
    {"model": "deepseek-v3", "gpu": "l4", "gpu_memory_gib": 23, "weights_gib": 640, "kv_cache_gib": 3},
    {"model": "llama-3.1-70b", "gpu": "h100", "kv_cache_gib": 0.5},
    {"model": "llama-3.1-70b", "gpu": "h100", "num_gpu_blocks_override": 10},
    {"model": "llama-3.1-8b", "gpu": "h100", "kv_cache_gib": 90},
]


@pytest.mark.parametrize("raw", CROWDED, ids=lambda raw: "-".join(map(str, raw.values())))
def test_each_fix_holds_what_it_says(raw: dict[str, Any]) -> None:
    found = plan(Scenario.parse(raw))
    offered = fixes(found)
    assert found.fit == "no" and offered
    for fix in offered:
        changed = plan(replace(found.resolved.scenario, **fix["changes"]))
        assert changed.fit == fix["fit"] != "no"
        assert changed.concurrency.guaranteed == fix["guaranteed"]


def test_a_model_too_large_for_any_number_of_small_cards_is_put_on_larger_ones() -> None:
    (only,) = fixes(plan(Scenario.parse({"model": "deepseek-v3", "gpu": "l4"})))
    assert only["action"] == "use 4 x B300 SXM"
    assert only["changes"] == {"gpu": "b300", "tensor_parallel_size": 4, "pipeline_parallel_size": 1}


@pytest.mark.parametrize(
    ("raw", "action"),
    [
        ({"model": "llama-3.1-8b", "gpu": "t4", "max_model_len": 8192}, "use 1 x GeForce RTX 3090"),
        ({"model": "llama-3.1-70b", "gpu": "mi210"}, "use 1 x AMD MI325X"),
    ],
)
def test_a_larger_gpu_stays_with_the_vendor_and_is_the_cheapest_of_so_few(
    raw: dict[str, Any], action: str
) -> None:
    larger = [fix["action"] for fix in fixes(plan(Scenario.parse(raw))) if "gpu" in fix["changes"]]
    assert larger == [action]
