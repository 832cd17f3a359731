"""What people give beside a clean scenario: odd spellings, unnamed releases, points that disagree, engines with own rules."""

from __future__ import annotations

import json
import math

import pytest

from capacity.errors import CapacityError
from capacity.estimate_cli import run_estimate, run_size
from capacity.performance.measured import measured_points

BASE = {
    "model": "llama-3.1-70b",
    "gpu": "h100-sxm",
    "tensor_parallel_size": 4,
    "weight_format": "fp8",
    "prompt_tokens": 1024,
    "output_tokens": 256,
    "concurrency": 32,
}


def width(answer, key="tpot_s"):
    return math.log(answer[key]["high"] / answer[key]["value"])


@pytest.mark.parametrize(
    ("spelled", "engine"), [("vLLM", "vllm"), ("SGLang", "sglang"), ("TensorRT-LLM", "trtllm")]
)
def test_engines_as_benchmarks_spell_them(spelled, engine):
    assert run_estimate({**BASE, "engine": spelled}) == run_estimate({**BASE, "engine": engine})


@pytest.mark.parametrize("release", ["nightly-dev", "latest", "gpt-oss-dev", "glm5-hopper"])
def test_a_release_that_names_no_version_is_answered_widened_and_flagged(release):
    plain, unnamed = run_estimate(BASE), run_estimate({**BASE, "engine_version": release})
    assert unnamed["tpot_s"]["value"] == plain["tpot_s"]["value"]
    assert width(unnamed) == pytest.approx(1.25 * width(plain), rel=1e-3)
    assert unnamed["extrapolated"] and repr(release) in unnamed["extrapolated_reasons"][0]
    assert any(f"release {release!r} is not known" in text for text in unnamed["warnings"])


def test_a_release_before_any_known_one_takes_the_oldest_rules():
    old = run_estimate({**BASE, "engine_version": "0.2.0"})
    assert old["extrapolated"]
    assert any("rules of vLLM 0.6.6" in text for text in old["warnings"])


def test_engines_with_rules_of_their_own_are_not_refused_by_vllms_share():
    """DeepSeek-V3 in FP8 runs on 4 B200 under SGLang (167 of 178 GiB); vLLM's default share would not start."""
    tight = {**BASE, "model": "deepseek-ai/DeepSeek-V3", "gpu": "b200", "concurrency": 4}
    with pytest.raises(CapacityError, match="does not fit"):
        run_estimate(tight)
    answer = run_estimate({**tight, "engine": "sglang"})
    assert any("97% of the GPU" in text for text in answer["warnings"])
    with pytest.raises(CapacityError, match="does not fit"):
        run_estimate({**tight, "engine": "sglang", "gpu_memory_utilization": 0.9})


def test_repeated_points_count_and_disagreeing_ones_widen():
    one = {"concurrency": 32, "tpot_s": 0.022, "ttft_s": None}
    single = run_estimate({**BASE, "measured_points": [one]})
    twice = run_estimate({**BASE, "measured_points": [one, one]})
    assert twice["tpot_s"]["value"] == pytest.approx(single["tpot_s"]["value"], rel=0.01)
    apart = run_estimate({**BASE, "measured_points": [one, {**one, "tpot_s": 0.030}]})
    assert apart["tpot_s"]["low"] <= 0.0221 and apart["tpot_s"]["high"] >= 0.0299
    assert any("differs at one load" in text for text in apart["warnings"])


def test_points_that_fall_with_load_stay_inside_the_interval():
    falling = [{"concurrency": 8, "tpot_s": 0.024}, {"concurrency": 64, "tpot_s": 0.020}]
    answers = run_estimate({**BASE, "concurrency": [8, 64], "measured_points": falling})["curve"]
    for answer, point in zip(answers, falling, strict=True):
        assert answer["tpot_s"]["low"] <= point["tpot_s"] * 1.0001
        assert answer["tpot_s"]["high"] >= point["tpot_s"] * 0.9999
    assert answers[0]["tpot_s"]["value"] <= answers[1]["tpot_s"]["value"]


def test_contradiction_is_twice_as_slow_at_no_more_load():
    def points(slow):
        return [{"concurrency": 8, "tpot_s": slow}, {"concurrency": 64, "tpot_s": 0.02}]

    assert len(measured_points(points(0.0399))) == 2
    with pytest.raises(CapacityError, match="contradict each other"):
        measured_points(points(0.0401))


def test_a_ttft_with_waiting_in_it_does_not_correct_the_prefill():
    seats = {**BASE, "max_num_seqs": 8}
    plain = run_estimate({**seats, "concurrency": 8})
    waited = {"concurrency": 64, "tpot_s": plain["tpot_s"]["value"], "ttft_s": 25.0}
    answer = run_estimate({**seats, "concurrency": 8, "measured_points": [waited]})
    assert answer["ttft_s"]["value"] == pytest.approx(plain["ttft_s"]["value"])
    assert any("wait for a place" in text for text in answer["warnings"])


@pytest.mark.parametrize(
    ("model", "weight_format", "gpu", "like"),
    [
        ("Qwen/Qwen3-VL-235B (BF16)", None, "MI325X", ("Qwen/Qwen3-VL-235B-A22B-Instruct", "bf16")),
        ("meta-llama/Llama-3.1-405B (FP8)", None, "MI325X", ("meta-llama/Llama-3.1-405B-Instruct", "fp8")),
        ("nvidia/DeepSeek-R1-0528-FP4", None, "GB200 NVL72", ("deepseek-ai/DeepSeek-R1", "nvfp4")),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "fp8", "H200", ("Qwen/Qwen3-235B-A22B", "fp8")),
        (
            "mistralai/Mixtral-8x7B-v0.1",
            "bf16",
            "A100-80GB",
            ("mistralai/Mixtral-8x7B-Instruct-v0.1", "bf16"),
        ),
    ],
)
def test_names_as_benchmark_tables_spell_them(model, weight_format, gpu, like):
    base = {**BASE, "tensor_parallel_size": 8, "concurrency": 16, "gpu": gpu}
    asked = {**base, "model": model, "weight_format": weight_format}
    plain = {**base, "model": like[0], "weight_format": like[1]}
    assert run_estimate(asked)["tpot_s"]["value"] == pytest.approx(
        run_estimate(plain)["tpot_s"]["value"], rel=0.01
    )


def test_sizing_tries_each_candidate_once_and_names_sizes_that_cannot_be():
    ask = {
        key: value for key, value in BASE.items() if key not in ("gpu", "tensor_parallel_size", "concurrency")
    }
    ask |= {
        "arrival_rate_rps": 5,
        "gpus": ["h100", "h100-sxm"],
        "tensor_parallel_sizes": [3, 4, 4, 16],
        "max_gpus": 64,
    }
    found = run_size(ask)
    assert [(o["gpu"], o["tensor_parallel_size"]) for o in found["deployments"]] == [("h100-sxm", 4)]
    reasons = {row["candidate"]: row["reason"] for row in found["left_out"]}
    assert "does not divide" in reasons["TP3"]
    assert "link domain of 8" in reasons["h100-sxm TP16"]
    assert found["deployments"][0]["most_concurrency_per_replica"] >= 1


def test_the_largest_load_within_an_slo_is_part_of_the_answer():
    ask = {key: value for key, value in BASE.items() if key != "concurrency"}
    option = run_size({**ask, "arrival_rate_rps": 5, "slo_tpot_s": 0.02, "spare_replicas": 0})["deployments"][
        0
    ]
    at_edge = run_estimate({**BASE, "concurrency": option["most_concurrency_per_replica"]})
    assert at_edge["tpot_s"]["value"] == pytest.approx(0.02, rel=0.01)
    open_loop = {key: value for key, value in BASE.items() if key != "concurrency"}
    there = run_estimate({**open_loop, "arrival_rate_rps": option["most_rate_per_replica_rps"]})
    assert there["concurrency"] == pytest.approx(option["most_concurrency_per_replica"], rel=0.01)
    assert option["stopped_by"] == "TPOT SLO"


def test_flags_reach_estimate_and_size(capsys):
    from capacity.cli import main

    work = ["--model", "llama-3.1-8b", "--prompt-tokens", "1000", "--output-tokens", "200", "--json"]
    point = '[{"concurrency": 8, "tpot_s": 0.012}]'
    assert main(["estimate", *work, "--gpu", "h100", "--concurrency", "8", "--measured-points", point]) == 0
    assert json.loads(capsys.readouterr().out)["tpot_s"]["value"] == pytest.approx(0.012, rel=0.03)
    ask = ["--gpu", "h100", "--arrival-rate-rps", "5", "--price-usd-per-gpu-hour", "2.5", "--rank-by", "gpus"]
    assert main(["size", *work, *ask, "--limit", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rank_by"] == "gpus" and len(found["deployments"]) == 1
    one = found["deployments"][0]
    assert one["usd_per_hour"] == {"low": 2.5 * one["gpus"], "high": 2.5 * one["gpus"], "source": "yours"}
    assert main(["size", *work, *ask, "--limit", "-1"]) == 2
    assert capsys.readouterr().err.strip() == "limit is -1; expected a number, 1 to 1,000"


def test_lengths_that_vary_are_said_to_be_taken_at_their_mean():
    spread = run_estimate({**BASE, "prompt_tokens": {"mean": 1024, "cv": 1.0}})
    assert spread["tpot_s"] == run_estimate(BASE)["tpot_s"]
    assert (
        "prompt_tokens vary: speeds are at their mean of 1,024; simulate plays the spread"
        in spread["warnings"]
    )
    assert not any("vary" in text for text in run_estimate(BASE)["warnings"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"concurrency": [1, None]}, r"^concurrency\[1\] is missing; expected a number, 1 to 1,000,000$"),
        ({"concurrency": 1e7}, "^concurrency is 10000000; expected"),
        (
            {"measured_points": [[8, 0.01]]},
            r"measured_points\[0\] is a list of 2; expected concurrency and tpot_s",
        ),
        (
            {"measured_points": [{"concurrency": 8, "tpot_s": 0.02}, {"concurrency": 8, "tpot_s": 0.05}]},
            "tpot_s is 0.02 s and 0.05 s, both at concurrency 8; expected points of one deployment",
        ),
        ({"tensor_parallel_size": 24}, "To use 24 GPUs anyway set pipeline_parallel_size 24$"),
        (
            {"tensor_parallel_size": 96},
            "96 GPUs anyway set tensor_parallel_size 32 and data_parallel_size 3$",
        ),
        ({"num_gpu_blocks_override": 1}, "the pool has [0-9.]+ MiB"),
    ],
)
def test_sentences_name_the_item_and_never_round_to_zero(change, message):
    with pytest.raises(CapacityError, match=message):
        run_estimate({**BASE, **change})


def test_acceptance_without_drafts_is_said_to_be_unused():
    answer = run_estimate({**BASE, "speculative_acceptance": 0.7})
    assert answer["warnings"][0] == "speculative_acceptance: not used without num_speculative_tokens"
