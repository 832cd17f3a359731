"""First tokens at an arrival rate, outputs of one and of a few tokens, and prompts longer than any measured mixed step."""

from __future__ import annotations

import numpy as np
import pytest

from capacity.compare import column, frontier
from capacity.compare_set import Entry
from capacity.errors import CapacityError
from capacity.estimate_cli import run_estimate, run_size
from capacity.performance.predict import ONE_TOKEN
from capacity.scenario import Scenario
from capacity.speed_grid import Axis, speed_grid
from capacity.speed_options import disaggregated, layout_variants

BASE = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "prompt_tokens": 1000, "output_tokens": 1}

# AccelMark, verified results (Apache-2.0): model, GPU, tensor size, release, requests/s; p50 prompt 280, output 310; TTFT.
POISSON = (
    ("meta-llama/Meta-Llama-3-8B-Instruct", "NVIDIA A100-SXM4-80GB", 1, "0.20.1", 5, 0.0402),
    ("meta-llama/Meta-Llama-3-8B-Instruct", "NVIDIA A100-SXM4-80GB", 1, "0.7.3", 5, 0.0554),
    ("meta-llama/Meta-Llama-3-8B-Instruct", "NVIDIA RTX 6000 Ada Generation", 1, "0.7.3", 5, 0.0843),
    ("meta-llama/Meta-Llama-3-8B-Instruct", "NVIDIA RTX A6000", 1, "0.7.3", 5, 0.1181),
    ("meta-llama/Meta-Llama-3-70B-Instruct", "NVIDIA A100-SXM4-40GB", 8, "0.7.3", 2, 0.1213),
    ("meta-llama/Meta-Llama-3-70B-Instruct", "NVIDIA A100-SXM4-40GB", 8, "0.7.3", 5, 0.1646),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "NVIDIA A800-SXM4-80GB", 8, "0.7.3", 2, 0.0514),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "NVIDIA H200", 8, "0.7.3", 2, 0.0461),
)


@pytest.mark.parametrize(("model", "gpu", "tensor", "release", "rate", "seen_s"), POISSON)
def test_first_token_of_poisson_arrivals(model, gpu, tensor, release, rate, seen_s):
    """No such row is in the fit; the same load as a closed loop would say three to five times as much."""
    asked = {
        "model": model,
        "gpu": gpu,
        "tensor_parallel_size": tensor,
        "engine_version": release,
        "arrival_rate_rps": rate,
        "prompt_tokens": 280,
        "output_tokens": 310,
    }
    answer = run_estimate(asked)
    assert answer["ttft_s"]["low"] <= seen_s <= answer["ttft_s"]["high"]
    assert answer["ttft_s"]["value"] == pytest.approx(seen_s, rel=0.45)


def test_first_token_at_a_rate_grows_with_the_rate():
    rates = [0.1, 1, 3, 10, 20, 30]
    base = {**BASE, "output_tokens": 200}
    first = [run_estimate({**base, "arrival_rate_rps": r})["ttft_s"]["value"] for r in rates]
    assert first == sorted(first)


def test_one_output_token_has_no_tpot():
    answer = run_estimate({**BASE, "concurrency": 8})
    assert answer["tpot_s"] is answer["itl_s"] is answer["physical_bound_tpot_s"] is None
    assert answer["warnings"][0] == ONE_TOKEN
    assert answer["bound"] == "prefill-bound"
    assert 0 < answer["mfu"] <= 1
    assert answer["e2e_s"] == answer["ttft_s"]
    at_rate = run_estimate({**BASE, "arrival_rate_rps": 10})
    assert at_rate["tpot_s"] is None and at_rate["ttft_s"]["value"] > 0
    assert run_estimate({**BASE, "output_tokens": 2, "concurrency": 8})["tpot_s"]["value"] > 0


def test_one_output_token_everywhere_else():
    scenario = Scenario.parse(BASE)
    entry = Entry(name="a", scenario=scenario)
    found = column(entry, concurrency=8).figures
    assert found["tpot_s"].value is None and found["tpot_s"].reason == ONE_TOKEN
    assert found["ttft_s"].value is not None
    assert frontier(entry).reason == ONE_TOKEN
    with pytest.raises(CapacityError, match="no decode to move"):
        disaggregated(scenario, prefill_replicas=1, decode_replicas=1, concurrency=8)
    grid = speed_grid(scenario, Axis(key="output_tokens", values=(1, 2, 100)), concurrency=8)
    assert np.isnan(grid.measures["tpot_s"][0]).tolist() == [True, False, False]
    assert np.isfinite(grid.measures["ttft_s"]).all()
    for row in layout_variants(scenario, gpus=2, concurrency=8):
        assert row.traffic_gb_per_s is not None and np.isfinite(row.traffic_gb_per_s)
    ask = {"model": "llama-3.1-8b", "gpus": ["h100-sxm"], "prompt_tokens": 1000, "output_tokens": 1}
    sized = run_size({**ask, "arrival_rate_rps": 5, "slo_tpot_s": 0.05, "slo_ttft_s": 1})
    assert sized["deployments"][0]["tpot_s"] is None
    assert ONE_TOKEN in sized["warnings"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_shorter_outputs_are_never_fewer_requests(engine):
    outputs = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    rates = [
        run_estimate({**BASE, "engine": engine, "output_tokens": o, "concurrency": 64})["requests_per_s"][
            "value"
        ]
        for o in outputs
    ]
    assert rates == sorted(rates, reverse=True)


def test_prompts_beyond_the_measured_ones_cost_what_they_cost_alone():
    """vLLM 0.20.1 on one A100-80: half an hour at 8 in flight, prompts of 28,650 tokens, 260 out, 0.2292 requests/s."""
    answer = run_estimate(
        {
            "model": "meta-llama/Llama-3.1-8B-Instruct",
            "gpu": "NVIDIA A100-SXM4-80GB",
            "engine_version": "0.20.1",
            "prompt_tokens": 28_650,
            "output_tokens": 260,
            "concurrency": 8,
        }
    )
    assert answer["requests_per_s"]["value"] == pytest.approx(0.2292, rel=0.1)
    assert answer["ttft_s"]["value"] == pytest.approx(5.59, rel=0.1)
