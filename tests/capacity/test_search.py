"""Inverse questions and fixes: the right answer, what binds it, and nothing that nobody would deploy."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.catalog import model_spec
from capacity.errors import CapacityError
from capacity.parallelism import valid_tensor_parallel_sizes
from capacity.plan import plan
from capacity.scenario import Scenario
from capacity.search import enough, fewest_gpus, search
from capacity.verbs import run_plan
from tests.capacity.test_breaks import CONFIG, LLAMA, answer


def test_fixes_that_hold_by_the_estimate_alone_come_last_and_say_so() -> None:
    found = run_plan(
        {"model": "gpt-oss-120b", "gpu": "h100", "engine_version": "0.11", "max_model_len": 131_072}
    )
    assert [fix["fit"] for fix in found["fixes"]] == ["yes", "yes", "marginal", "marginal", "marginal"]
    assert found["fixes"][-1]["changes"] == {"max_model_len": 80_336}  # 80,352 starts, its request never runs
    assert found["fixes"][2]["changes"] == {"max_num_seqs": 256, "max_num_batched_tokens": 2048}


def test_a_length_of_no_use_is_not_offered() -> None:
    found = run_plan(
        {
            "model": "llama-3.3-70b",
            "weight_format": "fp8",
            "gpu": "h100",
            "max_model_len": 8192,
            "engine_version": "0.32",
        }
    )
    offered = [fix["changes"].get("max_model_len") for fix in found["fixes"]]
    assert offered[-1] == 3136 and not any(length and length < 512 for length in offered)
    longest = search(
        Scenario.parse({"model": "llama-3.3-70b", "weight_format": "fp8", "gpu": "h100"}), "max_model_len"
    )
    assert "the estimate alone holds 3,136" in longest.sentence


def test_stages_are_not_the_only_answer_where_heads_divide() -> None:
    wanted = {"model": "deepseek-v3", "gpu": "h200", "max_model_len": 8192, "engine_version": "0.32"}
    stages = search(Scenario.parse(wanted), "gpus", concurrency=64)
    assert stages.changes == {"tensor_parallel_size": 1, "pipeline_parallel_size": 7}
    assert stages.alternative == {"tensor_parallel_size": 8, "pipeline_parallel_size": 1}
    assert "without pipeline stages: 8 GPUs (TP 8)" in stages.sentence


def test_a_16_bit_checkpoint_is_offered_in_4_bits_and_by_tensor_parallelism_alone() -> None:
    changes = [
        fix["changes"]
        for fix in run_plan({"model": "llama-3.3-70b", "gpu": "h100", "max_model_len": 8192})["fixes"]
    ]
    assert {"weight_format": "awq"} in changes
    assert {"tensor_parallel_size": 4, "pipeline_parallel_size": 1} in changes


@pytest.mark.parametrize(
    ("scenario", "why"),
    [
        (
            {"model": "deepseek-v3", "gpu": "h200", "tensor_parallel_size": 8},
            "8 tensor-parallel ranks keep the whole MLA",
        ),
        ({"model": "qwen3-32b", "gpu": "h200", "tensor_parallel_size": 16}, "8 KV heads are fewer than 16"),
        ({"model": "qwen3-32b", "gpu": "h200", "tensor_parallel_size": 8}, "by the formula"),
    ],
)
def test_the_walk_from_the_textbook_names_what_ranks_copy(scenario: dict[str, Any], why: str) -> None:
    walk = run_plan({**scenario, "max_model_len": 8192})["textbook"]["steps"]
    (detail,) = [step["detail"] for step in walk if step["name"] == "layout and blocks"]
    assert why in detail and detail.endswith(("would divide it", "keep copies", "by the formula"))


def found(question: str, concurrency: int = 8, **changes: Any) -> Any:
    return search(
        Scenario.parse({**LLAMA, "max_model_len": 131_072, **changes}), question, concurrency=concurrency
    )


def test_searches_over_gpus_leave_out_what_was_measured_on_others() -> None:
    for changes in (
        {"kv_cache_gib": 5},
        {"num_gpu_blocks_override": 100},
        {"pipeline_parallel_size": 2, "pipeline_layer_split": [16, 16]},
    ):
        for question in ("cheapest", "gpus"):
            held = {k: v for k, v in found(question, **changes).changes.items() if v is not None}
            assert held == found(question).changes, (question, changes)
    spread = found("gpus", weights_gib=150)
    again = {**LLAMA, "max_model_len": 131_072, "weights_gib": 150, **spread.changes}
    assert enough(plan(Scenario.parse(again)), 8)
    assert spread.plan.bill.terms[0].bytes == pytest.approx(150 * 2**30 / spread.plan.resolved.parallel.gpus)


def test_replicas_are_paid_and_counted() -> None:
    one, two = found("cheapest"), found("cheapest", data_parallel_size=2)
    assert two.changes["usd_per_hour"] == 2 * one.changes["usd_per_hour"]
    assert found("gpus", data_parallel_size=2).sentence == (
        "6 GPUs (TP 1 x PP 3 x DP 2) hold 8 full-length requests per replica; without pipeline stages: "
        "8 GPUs (TP 4 x DP 2) hold 8 full-length requests per replica"
    )


def test_searches_say_when_seats_and_not_memory_bind() -> None:
    for question in ("max_model_len", "gpu_memory_utilization", "gpus", "cheapest"):
        assert found(question, max_num_seqs=4).sentence.startswith("max_num_seqs 4 allows fewer than 8"), (
            question
        )


def test_a_given_pool_leaves_no_utilization_to_search() -> None:
    with pytest.raises(CapacityError, match="kv_cache_gib sets the pool whatever the utilization"):
        found("gpu_memory_utilization", kv_cache_gib=5)


def test_a_length_searched_without_a_limit_of_the_model_does_not_claim_one() -> None:
    config = {k: v for k, v in CONFIG.items() if k != "max_position_embeddings"}
    scenario = Scenario.parse({"model_config": config, "gpu": "h200", "max_model_len": 4096})
    assert "the config states no limit" in search(scenario, "max_model_len").sentence


@pytest.mark.parametrize("model", ["microsoft/phi-4", "Qwen/Qwen2.5-7B-Instruct", "gpt-oss-120b"])
@pytest.mark.parametrize("concurrency", [4, 30])
def test_fewest_gpus_has_no_smaller_neighbour(model: str, concurrency: int) -> None:
    scenario = Scenario.parse({"model": model, "gpu": "a100-40-sxm"})
    best = fewest_gpus(scenario, concurrency=concurrency, max_gpus=16)
    assert best.plan is not None
    used = best.plan.resolved.parallel.gpus
    for tensor in valid_tensor_parallel_sizes(model_spec(model), limit=8):
        for stages in range(1, 16):
            if tensor * stages < used:
                raw = {**scenario.to_json(), "tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
                assert not enough(plan(Scenario.parse(raw)), concurrency), (tensor, stages)


def test_memory_that_others_hold_is_answered_by_a_lower_utilization() -> None:
    """79.18 GiB less 10 is 87.4 % of the card: 0.87 starts, 0.88 does not."""
    held = answer(other_memory_gib=10)
    assert held["binding_constraint"] == "free_memory"
    assert "that starts is 0.87" in held["reason"]
    assert held["fixes"][0]["changes"] == {"gpu_memory_utilization": 0.87}
    assert answer(other_memory_gib=10, gpu_memory_utilization=0.87)["fits"]
    assert not answer(other_memory_gib=10, gpu_memory_utilization=0.88)["fits"]
    smallest = found("gpu_memory_utilization", max_model_len=8192, other_memory_gib=10)
    assert smallest.changes == found("gpu_memory_utilization", max_model_len=8192).changes
    full = answer(other_memory_gib=100)
    assert "only 0.0 GiB are free; no gpu_memory_utilization starts" in full["reason"]


def test_formats_that_a_card_is_too_old_for_are_said_and_not_offered() -> None:
    """FP8 weights need compute capability 8.0 (Marlin) on NVIDIA cards; a T4 has 7.5."""
    old = answer(gpu="t4", weight_format="fp8")
    assert any("weight_format fp8-tensor needs cc 8.9+" in text for text in old["warnings"])
    assert not any("needs cc" in text for text in answer(weight_format="nvfp4")["warnings"])
    fixes = answer(gpu="t4")["fixes"]
    assert fixes and not any(fix["changes"].get("weight_format") == "fp8" for fix in fixes)
    assert found("cheapest", 1, max_model_len=1024).plan.warnings == ()
