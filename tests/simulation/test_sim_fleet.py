"""Fleets over long quiet times and with settings that make no sense."""

from __future__ import annotations

import time
from typing import Any

import pytest

from capacity.errors import CapacityError
from capacity.simulate_cli import run_simulate

ENGINE: dict[str, Any] = {"num_blocks": 100, "max_num_seqs": 1, "step_time": {"fixed_s": 0.1}}


def requests(*at: float) -> dict[str, Any]:
    return {"requests": [{"arrival_s": one, "prompt_tokens": 16, "output_tokens": 10} for one in at]}


@pytest.mark.parametrize("process", ["open", "closed_loop"])
def test_checks_of_an_idle_fleet_are_skipped(process: str) -> None:
    """Years between two requests are a hundred million checks of five seconds; none of them sees anything."""
    quiet = {"arrival": {"process": "closed_loop", "users": 1, "think_s": 5e8}, "num_requests": 2}
    workload = requests(0, 5e8) if process == "open" else {**quiet, "prompt_tokens": 16, "output_tokens": 10}
    began = time.process_time()
    answer = run_simulate({**ENGINE, "workload": workload, "fleet": {"autoscale": {}}})
    assert time.process_time() - began < 2
    assert answer["requests"]["finished"] == 2
    assert answer["e2e_s"]["mean"] == pytest.approx(1.0)
    assert len(answer["replicas"]) == 1


def test_checks_keep_their_times_after_a_quiet_stretch() -> None:
    """Checks at 5, 10, ... 100, 105 s. Eleven arrive at 101.0 s; at 105 s six still wait: one more is ready at 107 s."""
    answer = run_simulate(
        {
            **ENGINE,
            "workload": requests(0, *[101.0] * 11),
            "fleet": {"router": "least_loaded", "autoscale": {"start_delay_s": 2, "max_replicas": 2}},
            "timeline": True,
        }
    )
    assert len(answer["replicas"]) == 2
    assert answer["requests"]["finished"] == 12
    assert answer["utilisation"] == pytest.approx(
        12.0 / (112.0 + 5.0)
    )  # the second engine is up from 107 s on


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        ({"autoscale": {"check_s": 0}}, "fleet.autoscale.check_s is 0; expected a number, 0.01 to"),
        ({"autoscale": {"kv_threshold": 3}}, "fleet.autoscale.kv_threshold is 3"),
        ({"autoscale": {"max_replicas": 0}}, "fleet.autoscale.max_replicas is 0"),
        ({"breaker": {"factor": 0}}, "fleet.breaker.factor is 0"),
        ({"breaker": {"min_answers": 0}}, "fleet.breaker.min_answers is 0"),
    ],
)
def test_settings_without_sense_are_refused(fleet: dict[str, Any], words: str) -> None:
    with pytest.raises(CapacityError, match=words):
        run_simulate({**ENGINE, "workload": requests(0), "fleet": fleet})


@pytest.mark.parametrize("name", [None, [], {}, 7, "gate"])
def test_a_policy_of_any_other_kind_is_a_sentence(name: Any) -> None:
    with pytest.raises(CapacityError, match="expected one of queue_limit, block_gate"):
        run_simulate({**ENGINE, "workload": requests(0), "admission": [{"policy": name}]})
