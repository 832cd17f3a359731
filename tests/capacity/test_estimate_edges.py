"""Edges of `estimate`: an overload has no count of waiting requests, an empty prompt has no speed."""

from __future__ import annotations

import pytest

from capacity.errors import CapacityError
from capacity.estimate_cli import run_estimate
from capacity.simulate_cli import run_simulate

BASE = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "max_model_len": 8192,
    "prompt_tokens": 1024,
    "output_tokens": 256,
}


def test_an_overload_has_no_number_of_waiting_requests() -> None:
    over = run_estimate({**BASE, "arrival_rate_rps": 1e6})
    assert over["waiting"] is None
    assert "waiting, TTFT and E2E have no value" in over["warnings"][0]
    assert run_estimate({**BASE, "arrival_rate_rps": 1.0})["waiting"] == 0.0


def test_an_empty_prompt_has_no_speed_as_the_simulation_refuses_it() -> None:
    with pytest.raises(CapacityError, match="prompt_tokens is 0; expected at least 1"):
        run_estimate({**BASE, "prompt_tokens": 0, "concurrency": 8})
    load = {"arrival": {"process": "poisson", "rate_rps": 1}, "num_requests": 3}
    run = run_simulate({**BASE, "prompt_tokens": 0, "workload": load})
    assert run["requests"]["rejected"] == {"empty_prompt": 3}


def test_images_alone_are_a_prompt() -> None:
    raw = {**BASE, "model": "qwen2.5-vl-7b", "prompt_tokens": 0, "images_per_request": 1, "image_tokens": 500}
    assert run_estimate({**raw, "concurrency": 1})["ttft_s"]["value"] > 0
