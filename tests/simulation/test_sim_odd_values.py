"""Values that no key expects: endless numbers, false in place of a word, bounds the wrong way round, keys of other verbs."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest

from capacity.cli import main
from capacity.errors import CapacityError
from capacity.simulate_cli import run_simulate

WORKLOAD = {"requests": [{"arrival_s": 0, "prompt_tokens": 200, "output_tokens": 50}]}
GOOD: dict[str, Any] = {
    "num_blocks": 100,
    "block_size": 16,
    "step_time": {"fixed_s": 0.02},
    "workload": WORKLOAD,
}
PLANNED: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "max_model_len": 8192,
    "prompt_tokens": 500,
    "output_tokens": 100,
    "workload": {"arrival": {"rate_rps": 5}, "num_requests": 5},
}
ADAPTIVE = {"policy": "adaptive_concurrency", "target_p99_s": 1}


def said(scenario: dict[str, Any]) -> str:
    with pytest.raises(CapacityError) as caught:
        run_simulate(scenario)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"num_blocks": 10**400}, "num_blocks"),
        ({"step_time": {"fixed_s": 10**400}}, "step_time.fixed_s"),
        ({"step_time_factors": {"fixed": -(10**400)}}, "step_time_factors.fixed"),
        ({"client": {"timeout_s": 10**400}}, "client.timeout_s"),
        ({"warmup_s": 10**400}, "warmup_s"),
    ],
)
def test_a_number_that_no_float_holds_is_refused_by_its_key(change: dict[str, Any], where: str) -> None:
    text = said({**GOOD, **change})
    assert text.startswith(f"{where} is a number of 401 digits; expected a")


def test_a_long_number_is_not_shown_as_a_shorter_one() -> None:
    assert said({**GOOD, "num_blocks": 10**30}).startswith("num_blocks is a number of 31 digits; expected")


@pytest.mark.parametrize("value", [False, 0, "", [], {}])
def test_false_is_not_the_default(value: Any) -> None:
    assert "preemption_mode is" in said({**GOOD, "preemption_mode": value})
    if value != []:
        assert "fleet.failures is" in said({**GOOD, "fleet": {"failures": value}})


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"policy": "block_gate", "status": 200}, "status is 200; expected a whole number, 400 to 599"),
        ({**ADAPTIVE, "target_p99_s": 0}, "target_p99_s is 0; expected a number above 0"),
        ({**ADAPTIVE, "minimum": 0}, "minimum is 0; expected a whole number, 1 to"),
        ({**ADAPTIVE, "minimum": 9, "maximum": 3}, "minimum is 9 and maximum 3; expected minimum at most"),
        ({**ADAPTIVE, "low": 0.99}, "low is 0.99 and high 0.95; expected low at most high"),
    ],
)
def test_a_gate_that_cannot_work_is_refused(policy: dict[str, Any], message: str) -> None:
    assert message in said({**GOOD, "admission": [policy]})


@pytest.mark.parametrize("key", ["prompt_tokens", "output_tokens"])
def test_a_length_of_the_plan_is_called_by_its_key(key: str) -> None:
    assert said({**PLANNED, key: "x"}) == f"{key} is 'x'; expected an object"
    assert said({**PLANNED, key: {"mean": -1}}) == f"{key}.mean is -1; expected a number, 0 to 100,000,000"


def test_keys_of_other_verbs_are_named_and_left_out() -> None:
    plain = run_simulate(PLANNED)
    more = run_simulate({**PLANNED, "engine": "vLLM", "concurrency": 8, "slo_ttft_s": 1, "question": "gpus"})
    assert more["e2e_s"] == plain["e2e_s"] and more["requests"] == plain["requests"]
    assert [note for note in more["warnings"] if "not used by" in note] == [
        "concurrency: a key of estimate and search, not used by simulate",
        "slo_ttft_s: a key of size, not used by simulate",
        "question: a key of search, not used by simulate",
    ]
    assert said({**GOOD, "zzz": 1}).startswith("unknown key 'zzz' in the scenario")


def test_lines_go_on_after_an_endless_number() -> None:
    out = StringIO()
    lines = f"{json.dumps({**GOOD, 'num_blocks': 10**400})}\n{json.dumps(GOOD)}\n"
    assert main(["simulate", "--jsonl"], stdin=StringIO(lines), stdout=out) == 0
    bad, good = (json.loads(line) for line in out.getvalue().splitlines())
    assert bad["field"] == "num_blocks" and good["requests"]["finished"] == 1
