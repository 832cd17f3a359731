"""When nothing meets a target: which constraint stops it, by how much the nearest misses it, and what would help."""

from __future__ import annotations

import json

import pytest

from capacity.errors import CapacityError
from capacity.estimate_cli import run_estimate, run_size
from capacity.sizing import percentile_factor

ASK = {
    "model": "llama-3.1-70b",
    "weight_formats": ["fp8"],
    "arrival_rate_rps": 10,
    "prompt_tokens": 1024,
    "output_tokens": 256,
    "gpus": ["h100-sxm", "h200", "l4"],
}


def said(answer) -> str:
    assert answer["deployments"] == [] and answer["found"] == 0
    json.dumps(answer, allow_nan=False)
    return next(text for text in answer["warnings"] if text.startswith("no deployment"))


def test_a_strict_slo_names_the_nearest_and_how_far_it_is() -> None:
    answer = run_size({**ASK, "slo_tpot_s": 0.001, "slo_percentile": 99})
    nearest = answer["left_out"][0]
    alone = run_estimate(
        {
            **{key: ASK[key] for key in ("model", "prompt_tokens", "output_tokens")},
            "weight_format": "fp8",
            "gpu": "h200",
            "tensor_parallel_size": 8,
            "concurrency": 1,
        }
    )
    times = alone["tpot_s"]["value"] * percentile_factor("tpot_s", 99) / 0.001
    assert nearest["candidate"] == "h200 TP8 fp8" and nearest["constraint"] == "tpot"
    assert nearest["needs_times"] == pytest.approx(times, rel=0.01)
    text = said(answer)
    assert f"h200 TP8 fp8: p99 TPOT is {1e3 * times * 0.001:.3g} ms" in text and "the 1 ms asked" in text
    assert text.endswith("relax slo_tpot_s")


def test_nothing_says_relax_the_slo_when_none_was_given() -> None:
    text = said(run_size({**ASK, "max_gpus": 1}))
    assert "above max_gpus 1" in text and text.endswith("raise max_gpus or lower spare_replicas")
    assert "slo" not in text.lower()


def test_too_many_gpus_are_counted_with_their_spare() -> None:
    answer = run_size({**ASK, "gpus": "h100-sxm", "tensor_parallel_sizes": 4, "max_gpus": 6})
    (miss,) = answer["left_out"]
    assert miss["reason"] == "needs 8 GPUs with 1 spare, above max_gpus 6"
    assert miss["constraint"] == "max_gpus" and miss["needs_times"] == pytest.approx(8 / 6, rel=1e-3)
    assert run_size({**ASK, "gpus": "h100-sxm", "tensor_parallel_sizes": 4, "max_gpus": 8})["found"] == 1


def test_a_format_that_the_card_cannot_run_is_left_out() -> None:
    answer = run_size({**ASK, "gpus": ["v100"]})
    assert {row["constraint"] for row in answer["left_out"]} == {"hardware", "memory"}
    assert any("has compute capability 7.0" in row["reason"] for row in answer["left_out"])


def test_no_legal_layout_lists_the_legal_ones() -> None:
    text = said(run_size({**ASK, "tensor_parallel_sizes": [3]}))
    assert "3 does not divide the model's heads; valid: 1, 2, 4, 8, 16, 32, 64" in text
    assert text.endswith("ask for other tensor_parallel_sizes")


def test_memory_shows_the_layout_that_comes_closest() -> None:
    text = said(run_size({**ASK, "gpus": ["l4"], "tensor_parallel_sizes": [1, 2]}))
    assert "2 do not fit in memory (l4 TP2 fp8: does not fit: weights take 33.8 GiB per GPU" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"prompt_tokens": 200_000},
            "prompt_tokens plus output_tokens is 200,256; expected at most max_model_len",
        ),
        ({"prompt_tokens": 0}, "prompt_tokens is 0; expected at least 1"),
        ({"slo": {"ttft": 1}}, "slo is an object with 'ttft'; expected ttft_s, tpot_s and percentile"),
        ({"slo": 1}, "slo is 1; expected ttft_s, tpot_s and percentile"),
    ],
)
def test_a_question_that_no_gpu_can_answer_is_refused(change, message) -> None:
    with pytest.raises(CapacityError, match=message):
        run_size({**ASK, **change})


def test_an_slo_object_is_the_same_question() -> None:
    keys = run_size({**ASK, "slo_ttft_s": 2.0, "slo_tpot_s": 0.05, "slo_percentile": 90})
    assert run_size({**ASK, "slo": {"ttft_s": 2.0, "tpot_s": 0.05, "percentile": 90}}) == keys
    assert run_size({**ASK, "slo": keys["slo"]}) == keys
    assert run_size({**ASK, "slo": {}})["slo"] == {"ttft_s": None, "tpot_s": None, "percentile": 50.0}
    assert any("no SLO is given" in text for text in run_size({**ASK, "slo": None})["warnings"])


def test_the_cheapest_is_first_by_its_own_price_range() -> None:
    answer = run_size({**ASK, "slo_ttft_s": 1.0, "slo_tpot_s": 0.05})
    prices = [row["usd_per_hour"] for row in answer["deployments"]]
    middles = [(one["low"] * one["high"]) ** 0.5 for one in prices]
    assert middles == sorted(middles) and len(middles) >= 4
    assert any("geometric middle" in text for text in answer["warnings"])
    fixed = run_size({**ASK, "slo_tpot_s": 0.05, "price_usd_per_gpu_hour": 2.0})
    assert not any("geometric" in text for text in fixed["warnings"])
    gpus = [row["gpus"] for row in fixed["deployments"]]
    assert gpus == sorted(gpus)
