"""One scenario for every verb: keys of other verbs are named and left out, engines and releases read as people spell them."""

from __future__ import annotations

import pytest

from capacity.errors import CapacityError
from capacity.estimate_cli import run_estimate, run_size
from capacity.scenario import Scenario
from capacity.scenario_keys import for_verb
from capacity.verbs import run_export, run_plan, run_search

COMMON = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "prompt_tokens": 1000, "output_tokens": 200}
LOADED = {
    **COMMON,
    "arrival_rate_rps": 5,
    "measured_points": [{"concurrency": 8, "tpot_s": 0.011}],
    "slo_ttft_s": 1.0,
    "slo_tpot_s": 0.05,
    "spare_replicas": 1,
    "workload": {"requests": 10},
}


def test_a_plan_names_the_keys_that_it_leaves_out() -> None:
    plain, loaded = run_plan(COMMON), run_plan({**LOADED, "concurrency": 8})
    assert loaded["concurrency"] == plain["concurrency"] and loaded["memory"] == plain["memory"]
    assert loaded["warnings"][: -len(plain["warnings"]) or None] == [
        "arrival_rate_rps: a key of estimate and size, not used by plan",
        "measured_points: a key of estimate, not used by plan",
        "slo_ttft_s, slo_tpot_s, spare_replicas: keys of size, not used by plan",
        "workload: a key of simulate, not used by plan",
        "concurrency: a key of estimate and search, not used by plan",
    ]


def test_an_estimate_takes_a_sizing_question_and_the_other_way_round() -> None:
    without = {key: value for key, value in LOADED.items() if key in (*COMMON, "arrival_rate_rps")}
    asked = run_estimate({key: value for key, value in LOADED.items() if key != "measured_points"})
    assert asked["tpot_s"] == run_estimate(without)["tpot_s"]
    assert (
        asked["warnings"][0] == "slo_ttft_s, slo_tpot_s, spare_replicas: keys of size, not used by estimate"
    )
    sized = run_size(LOADED)
    assert sized["deployments"][0]["gpu"] == "h100-sxm"
    assert sized["warnings"][0] == "measured_points: a key of estimate, not used by size"


def test_search_and_export_take_them_too() -> None:
    found = run_search({**COMMON, "question": "gpus", "slo_ttft_s": 1})
    assert found["answer"] == {"tensor_parallel_size": 1} or found["sentence"]
    assert found["warnings"] == ["slo_ttft_s: a key of size, not used by search"]
    assert (
        run_export({**LOADED, "what": "csv"})["content"] == run_export({**COMMON, "what": "csv"})["content"]
    )


@pytest.mark.parametrize("verb", [run_plan, run_search, run_estimate, run_size, run_export])
def test_a_key_that_no_verb_knows_stays_refused(verb) -> None:
    more = {"question": "gpus"} if verb is run_search else {"what": "csv"} if verb is run_export else {}
    load = {"concurrency": 1} if verb is run_estimate else {"arrival_rate_rps": 1} if verb is run_size else {}
    with pytest.raises(CapacityError, match="unknown key 'nonsense'"):
        verb({**COMMON, **more, **load, "nonsense": 1})


@pytest.mark.parametrize("spelled", ["vLLM", "VLLM", " vllm ", "vLLM V1"])
def test_engines_are_spelled_alike_in_all_verbs(spelled: str) -> None:
    assert run_plan({**COMMON, "engine": spelled}) == run_plan({**COMMON, "engine": "vllm"})
    assert Scenario.parse({"engine": spelled}).engine == "vllm"
    assert for_verb({"engine": spelled}, "size") == ({"engine": "vllm"}, ())


@pytest.mark.parametrize("spelled", ["TensorRT-LLM", "TensorRT LLM", "trt-llm", "TRT", "tensorrt_llm"])
def test_tensorrt_llm_has_many_names(spelled: str) -> None:
    assert Scenario.parse({"engine": spelled}).engine == "trtllm"


def test_a_copy_of_an_engine_is_answered_and_said() -> None:
    asked = {**COMMON, "concurrency": 8}
    found = run_estimate({**asked, "engine": "vllm-ascend"})
    assert found["tpot_s"] == run_estimate(asked)["tpot_s"]
    assert found["warnings"][0].startswith("engine 'vllm-ascend' is taken as vllm: ")
    with pytest.raises(CapacityError, match="engine is 'vllm-ascend'; expected one of vllm, sglang, trtllm"):
        Scenario.parse({"engine": "vllm-ascend"})


@pytest.mark.parametrize(
    ("engine", "release"), [("sglang", "0.5.9"), ("sglang", "main"), ("trtllm", "1.2.0rc6.post3")]
)
def test_releases_of_other_engines_are_not_vllm_releases(engine: str, release: str) -> None:
    asked = {**COMMON, "engine": engine}
    assert run_plan({**asked, "engine_version": release})["memory"] == run_plan(asked)["memory"]


@pytest.mark.parametrize("release", ["", "None", "null", "n/a", "unknown", "-", None])
def test_a_release_that_a_table_leaves_open_is_not_given(release: str | None) -> None:
    asked = {**COMMON, "concurrency": 8}
    assert run_estimate({**asked, "engine_version": release}) == run_estimate(asked)
    assert run_plan({**COMMON, "engine_version": release}) == run_plan(COMMON)


def test_a_container_image_names_its_release() -> None:
    tagged = run_plan({**COMMON, "engine_version": "vllm/vllm-openai:v0.18.0"})
    assert tagged["engine_version"] == "0.18.0"
    assert tagged == run_plan({**COMMON, "engine_version": "v0.18.0"})
