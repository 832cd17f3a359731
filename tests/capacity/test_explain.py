"""How a number came about: every step's values, put into its formula, give the step's result and the plan's figure."""

import math
import re

import pytest

from capacity.explain import explain
from capacity.plan import Plan, plan
from capacity.scenario import Scenario
from capacity.textbook_steps import steps

CASES = [
    {"model": "meta-llama/Llama-2-13b-hf", "gpu": "a100-80gb", "engine_version": "0.11.0"},
    {"model": "llama-3.1-8b", "gpu": "h100", "prompt_tokens": 2000, "output_tokens": 300},
    {"model": "llama-3.1-70b", "gpu": "h100", "tensor_parallel_size": 16, "weight_format": "fp8"},
    {"model": "gemma-3-27b", "gpu": "h100", "tensor_parallel_size": 2},
    {"model": "gemma-3-27b", "gpu": "h100", "tensor_parallel_size": 2, "engine_version": "0.10.2"},
    {"model": "gpt-oss-120b", "gpu": "h200", "max_model_len": 32768},
    {"model": "gpt-oss-20b", "gpu": "h100", "disable_hybrid_kv_cache_manager": True},
    {"model": "deepseek-v3", "gpu": "h200", "tensor_parallel_size": 8, "max_model_len": 8192},
    {"model": "deepseek-v3", "kv_cache_gib": 40, "tensor_parallel_size": 8, "engine_version": "0.6.6"},
    {
        "model": "deepseek-v3.2",
        "gpu": "h200",
        "tensor_parallel_size": 8,
        "decode_context_parallel_size": 2,
        "kv_cache_dtype": "fp8",
        "num_speculative_tokens": 1,
    },
    {"model": "qwen3-next-80b-a3b", "gpu": "h100", "tensor_parallel_size": 4, "pipeline_parallel_size": 2},
    {"model": "qwen3-next-80b-a3b", "gpu": "h200", "tensor_parallel_size": 2, "engine_version": "0.11.2"},
    {
        "model": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "gpu": "h200",
        "tensor_parallel_size": 8,
        "max_model_len": 131072,
    },
    {"model": "qwen3-32b", "num_gpu_blocks_override": 4000},
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case['model']}-{case.get('engine_version', 'latest')}")
def found(request: pytest.FixtureRequest) -> Plan:
    return plan(Scenario.parse(request.param))


def computed(text: str) -> float:
    """The arithmetic of a ``values`` text: thousands separators out, x to *."""
    last = re.sub(r"(?<=\d),(?=\d{3})", "", text.split("; ")[-1]).replace(" x ", " * ")
    last = re.sub(r"ceil\((\d+) / (\d+)\) = \d+", r"ceil(\1 / \2)", last)
    return float(eval(last, {"ceil": math.ceil, "min": min, "max": max, "int": int, "__builtins__": {}}))


def test_the_values_give_the_result(found: Plan) -> None:
    checked = 0
    for step in explain(found):
        arithmetic = step.name.startswith(
            (
                "Bytes per block",
                "One block",
                "Blocks per full",
                "Block size",
                "Maximum",
                "Guaranteed",
                "Groups",
            )
        ) or (step.name.startswith("Bytes per token") and "rounded" not in step.formula)
        if not arithmetic or not re.search(r"\d [x/+-]|\(", step.values):
            continue
        assert computed(step.values) == pytest.approx(step.value, rel=1e-9), step
        checked += 1
    assert checked >= 5


def test_the_chain_ends_in_the_plans_own_figures(found: Plan) -> None:
    steps = {step.name: step.value for step in explain(found)}
    assert found.pool is not None
    assert steps["Blocks in the pool"] == found.pool.num_blocks
    assert steps["Blocks per full-length request"] == found.pool.blocks_per_max_request
    assert steps["Maximum concurrency as the engine logs it"] == found.pool.max_concurrency
    assert steps["KV cache size as the engine logs it"] == found.pool.tokens_logged
    assert steps["Guaranteed: whole full-length requests"] == found.concurrency.guaranteed
    assert steps["KV cache memory"] == found.kv_bytes[found.pool.stage]
    sizes = [value for name, value in steps.items() if name.startswith("Bytes per block")]
    assert found.pool.bytes_per_block in sizes and len(sizes) == len(found.inputs.stages)


def test_terms_add_up_to_the_budget(found: Plan) -> None:
    steps = {step.name: step for step in explain(found)}
    if found.bill is None or "Budget" not in steps:
        assert steps["KV cache memory"].formula == "as given, not estimated"
        return
    charged = sum(
        step.value or 0.0
        for step in steps.values()
        if step.section == "Memory per GPU"
        and step.name not in ("Budget", "KV cache memory")
        and "outside" not in step.formula
    )
    budget, left = steps["Budget"].value or 0.0, steps["KV cache memory"].value or 0.0
    if left > 0:
        assert charged + left == pytest.approx(budget, abs=16)
    assert all(step.result and step.source for step in steps.values())


def test_the_13b_example() -> None:
    steps = explain(plan(Scenario.parse({"model": "meta-llama/Llama-2-13b-hf", "kv_cache_gib": 45.0})))
    by_name = {step.name: step for step in steps}
    assert by_name["Bytes per block"].value == 819_200 * 16
    assert by_name["Maximum concurrency as the engine logs it"].result == "14.40x"


def test_the_bills_terms_are_equations_with_their_values() -> None:
    raw = {"model": "meta-llama/Llama-2-13b-hf", "gpu": "a100-80-sxm", "engine_version": "0.11.0"}
    by_name = {step.name: step for step in explain(plan(Scenario.parse(raw)))}
    weights, peak = by_name["Weights"], by_name["Activation peak"]
    assert weights.values == "13.016e9 x 2.000 B" and weights.result == "24.24 GiB (24.00-24.49)"
    assert peak.formula == "max(forward pass, sampler) + workspace"
    assert peak.values == "max(0.23, 0.31) + 0.01 GiB" and peak.result.startswith("0.32 GiB")
    assert by_name["CUDA graphs"].formula.endswith("outside the budget in this release")


def test_weights_and_activation_give_their_results(found: Plan) -> None:
    by_name = {step.name: step for step in explain(found)}
    for name in ("Weights", "Activation peak"):
        if name in by_name:
            text, value = by_name[name].values, (by_name[name].value or 0.0) / 2**30
            given = computed(re.sub(r" B\b", " / 2**30", text).replace(" GiB", ""))
            assert given == pytest.approx(value, rel=1e-3, abs=0.021), by_name[name]


def test_measured_weights_are_not_called_computed() -> None:
    raw = {"model": "llama-3.1-70b", "gpu": "h100", "pipeline_parallel_size": 4, "weights_gib": 35}
    by_name = {step.name: step for step in explain(plan(Scenario.parse(raw)))}
    assert (by_name["Weights"].formula, by_name["Weights"].values) == ("as given", "35.00 GiB")
    raw = {"model": "llama-3.1-8b", "gpu": "h100", "cpu_offload_gib": 4}
    by_name = {step.name: step for step in explain(plan(Scenario.parse(raw)))}
    assert by_name["Weights"].values == "8.030e9 x 2.000 B - 4 GiB"


def test_the_textbook_walk_starts_unrounded() -> None:
    raw = {"model": "meta-llama/Llama-2-13b-hf", "gpu": "a100-80-sxm", "engine_version": "0.11.0"}
    found = plan(Scenario.parse(raw))
    first = steps(found)[0]
    assert first.requests == pytest.approx((80e9 - 26.032e9) / (819_200 * 4096), abs=0.01)
    assert found.textbook.concurrency == 16


@pytest.mark.parametrize(
    ("raw", "reasons"),
    [
        (
            {"model": "google/gemma-3-27b-it", "gpu": "h100", "max_model_len": 131072},
            [
                "52 layers keep 17,424 tokens, their window of 1,024 and the steps in flight",
                "8 layers of padding make the groups even",
            ],
        ),
        (
            {"model": "qwen3-next-80b-a3b", "gpu": "h100", "tensor_parallel_size": 4, "max_model_len": 65536},
            [
                "2 KV heads are fewer than 4 tensor-parallel ranks, so ranks keep copies",
                "36 layers keep a recurrent state of 2 blocks, which the formula leaves out",
            ],
        ),
        (
            {"model": "deepseek-v3.2", "gpu": "h200", "tensor_parallel_size": 8},
            [
                "8 tensor-parallel ranks keep the whole MLA latent each: data-parallel attention or decode "
                "context parallelism would divide it",
                "the sparse indexer keeps a key of its own per token, which the formula leaves out",
            ],
        ),
        ({"model": "meta-llama/Llama-2-13b-hf", "gpu": "a100-80-sxm"}, []),
    ],
)
def test_the_layout_step_names_each_reason(raw: dict[str, object], reasons: list[str]) -> None:
    layout = next(s for s in steps(plan(Scenario.parse(raw))) if s.name == "layout and blocks")
    assert layout.detail.split("; ")[1:] == reasons
