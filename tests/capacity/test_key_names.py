"""Errors name the key that was given, also where another table answers, and no key takes junk where it has no use."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.errors import CapacityError
from capacity.estimate_cli import run_size
from capacity.verbs import run_plan

COMMON: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "prompt_tokens": 1000,
    "output_tokens": 200,
}


def test_a_draft_model_is_not_called_model() -> None:
    with pytest.raises(CapacityError) as caught:
        run_plan({**COMMON, "draft_model": "nothing-like-it", "num_speculative_tokens": 3})
    assert str(caught.value).startswith("draft_model 'nothing-like-it' is not in the catalogue; ")
    assert not str(caught.value).endswith("config.json") and caught.value.field == "draft_model"


@pytest.mark.parametrize("model", ["llama-3.1-8b", "nvidia/NVIDIA-Nemotron-Nano-9B-v2"])
def test_a_state_dtype_is_checked_with_and_without_states(model: str) -> None:
    with pytest.raises(CapacityError, match=r"^mamba_ssm_cache_dtype is 'x'; expected .*float32") as caught:
        run_plan({**COMMON, "model": model, "mamba_ssm_cache_dtype": "x"})
    assert caught.value.field == "mamba_ssm_cache_dtype"


def test_a_price_of_an_unknown_card_names_the_prices() -> None:
    with pytest.raises(CapacityError, match=r"^prices_usd_per_gpu_hour: gpu 'zzz' is not") as caught:
        run_size({**COMMON, "arrival_rate_rps": 1, "prices_usd_per_gpu_hour": {"zzz": 2}})
    assert caught.value.field == "prices_usd_per_gpu_hour"


@pytest.mark.parametrize("value", [False, 0, "", [], {}])
def test_ranking_by_nothing_is_refused(value: Any) -> None:
    with pytest.raises(CapacityError, match=r"^rank_by is .*; expected one of cost, gpus"):
        run_size({**COMMON, "arrival_rate_rps": 1, "rank_by": value})
