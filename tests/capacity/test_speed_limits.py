"""The most requests that a speed counts on is the plan's own typical concurrency, by formula and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from capacity.estimate_cli import run_estimate
from capacity.performance.deployment import planned, pool_requests
from capacity.plan import plan
from capacity.scenario import Scenario
from capacity.speed_grid import Axis, speed_grid

WORK = {"prompt_tokens": 1024, "output_tokens": 256, "max_model_len": 8192}


def scenario(**keys):
    return Scenario.parse({**WORK, **keys})


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "openai/gpt-oss-120b", "gpu": "h100-sxm"},
        {
            "model": "openai/gpt-oss-120b",
            "gpu": "h200",
            "num_speculative_tokens": 3,
            "async_scheduling": True,
        },
        {"model": "google/gemma-3-27b-it", "gpu": "h100-sxm"},
        {"model": "llama-3.1-8b", "gpu": "l4", "shared_prefix_tokens": 512},
        {"model": "llama-3.1-8b", "gpu": "h100-sxm", "shared_prefix_tokens": 5000},
        {"model": "llama-3.1-8b", "gpu": "l4", "shared_prefix_tokens": 512, "enable_prefix_caching": False},
        {"model": "Qwen/Qwen3.5-397B-A17B", "gpu": "b200", "tensor_parallel_size": 8},
        {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine_version": "0.6.6"},
    ],
    ids=lambda keys: "-".join(str(value) for value in keys.values()),
)
def test_the_limit_is_the_plans_typical_concurrency(keys):
    asked = scenario(**keys)
    usual = plan(asked).concurrency.typical
    assert usual is not None
    assert math.floor(planned(asked).kv_requests + 1e-9) == usual.mean


def test_windows_hold_a_step_of_decode_and_not_a_full_step():
    """gpt-oss: 36 layers, every other one keeps 128 tokens. A request in decode of 1,024 + 256 tokens holds 65 to 80 blocks
    of 16 in each full group and (127 + 2) / 16 -> 9 + 1 blocks in each windowed one, two steps being in flight."""
    found = planned(scenario(model="openai/gpt-oss-120b", gpu="h100-sxm", async_scheduling=True))
    groups = found.plan.grouping.groups
    full = sum(group.cache.plans_as_full for group in groups)
    windowed = len(groups) - full
    assert full and windowed and found.plan.inputs.concurrent_steps == 2
    lengths = [math.ceil(1024 + 256 * (i + 0.5) / 8) for i in range(8)]
    held = sum(full * math.ceil(n / 16) + windowed * (math.ceil(129 / 16) + 1) for n in lengths) / 8
    assert found.kv_requests == pytest.approx((found.plan.pool.num_blocks - 1) / held)


def test_a_grid_counts_the_shared_prefix_once():
    asked = scenario(model="llama-3.1-8b", gpu="l4", shared_prefix_tokens=512, max_num_seqs=1000)
    one = planned(asked)
    found = speed_grid(
        asked, Axis(key="concurrency", values=(1, 1000)), Axis(key="output_tokens", values=(64, 256))
    )
    limit = pool_requests(one.plan, np.array([1024.0]), np.array([256.0]), 512.0)[0]
    running = found.measures["output_tokens_per_s"][1, 1] * found.measures["e2e_s"][1, 1] / 256
    assert running == pytest.approx(1000)  # Little's law over all in flight, waiting ones too
    alone = speed_grid(asked, Axis(key="concurrency", values=(float(limit), 1000.0)))
    assert alone.measures["tpot_s"][0, 0] == pytest.approx(alone.measures["tpot_s"][0, 1])
    assert one.kv_requests == pytest.approx(limit)


def test_images_lengthen_the_prompt():
    keys = {"model": "Qwen/Qwen3-VL-32B-Instruct", "gpu": "h200"}
    with_images = planned(scenario(**keys, images_per_request=2, image_tokens=256))
    longer = planned(scenario(**{**keys, "prompt_tokens": 1536}))
    assert with_images.prompt_tokens == longer.prompt_tokens == 1536
    grid = speed_grid(
        scenario(**keys, images_per_request=2, image_tokens=256),
        Axis(key="prompt_tokens", values=(512, 1024)),
    )
    plain = speed_grid(scenario(**keys), Axis(key="prompt_tokens", values=(1024, 1536)))
    assert grid.measures["tpot_s"][0] == pytest.approx(plain.measures["tpot_s"][0], rel=1e-3)


@pytest.mark.parametrize("concurrency", [1, 100, 400, 1000, 1_000_000])
def test_a_first_token_never_comes_after_the_last_one(concurrency: int) -> None:
    found = run_estimate(
        {
            "model": "llama-3.1-8b",
            "gpu": "h100",
            "max_model_len": 8192,
            "prompt_tokens": 1024,
            "output_tokens": 256,
            "concurrency": concurrency,
        }
    )
    for end in ("low", "value", "high"):
        assert found["ttft_s"][end] < found["e2e_s"][end]
