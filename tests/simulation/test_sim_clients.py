"""Clients in the line with and without `queueing` notices, and what a report says over time: hand-computed."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.errors import CapacityError
from capacity.simulate_cli import run_simulate

# One seat; a step takes 0.1 s. Request 0 holds the seat for 5 s: its prompt in the first step, 49 more tokens after it.
ONE_SEAT: dict[str, Any] = {
    "num_blocks": 100,
    "max_num_seqs": 1,
    "step_time": {"fixed_s": 0.1},
    "workload": {
        "requests": [
            {"arrival_s": 0, "prompt_tokens": 16, "output_tokens": 50},
            {"arrival_s": 0.05, "prompt_tokens": 16, "output_tokens": 10},
        ]
    },
}


@pytest.mark.parametrize(
    ("client", "end_s", "outcome", "reason", "notices"),
    [
        ({}, 6.0, "finished", None, 0),
        ({"patience_s": 1.0}, 1.05, "aborted", "impatient", 0),
        ({"patience_s": 1.0, "queueing_patience_s": 3.0}, 3.05, "aborted", "impatient_in_line", 1),
        ({"patience_s": 1.0, "queueing_patience_s": 20.0}, 6.0, "finished", None, 1),
        ({"patience_s": 1.0, "queueing_patience_s": 20.0, "timeout_s": 4.0}, 4.1, "aborted", "timeout", 1),
    ],
)
def test_a_notice_keeps_a_client_in_the_line(
    client: dict[str, Any], end_s: float, outcome: str, reason: str | None, notices: int
) -> None:
    answer = run_simulate({**ONE_SEAT, "client": client, "requests_detail": True})
    row = answer["gantt"][
        1
    ]  # the last case: number 0 hangs up at 4.0 s, so that number 1 is in a step until 4.1 s
    assert (row["outcome"], row["reason"]) == (outcome, reason)
    assert row["end_s"] == pytest.approx(end_s)
    assert answer["queueing_notices"] == notices


def test_a_running_prompt_gets_no_notice() -> None:
    """Four steps of prefill: the first token comes at 0.4 s, the client leaves when the step of 0.25 s ends."""
    lone = {"arrival_s": 0, "prompt_tokens": 400, "output_tokens": 5}
    answer = run_simulate(
        {
            "num_blocks": 100,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 100,
            "step_time": {"fixed_s": 0.1},
            "client": {"patience_s": 0.25, "queueing_patience_s": 9.0},
            "workload": {"requests": [lone]},
            "requests_detail": True,
        }
    )
    assert answer["queueing_notices"] == 0
    assert answer["gantt"][0]["reason"] == "impatient"
    assert answer["gantt"][0]["end_s"] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("client", "words"),
    [
        ({"queueing_patience_s": 3.0}, "expected at least client.patience_s, which is not given"),
        ({"patience_s": 5.0, "queueing_patience_s": 3.0}, "expected at least client.patience_s, which is 5"),
    ],
)
def test_notices_need_a_patience_to_stretch(client: dict[str, Any], words: str) -> None:
    with pytest.raises(CapacityError, match=words):
        run_simulate({**ONE_SEAT, "client": client})


def test_refusals_are_counted_by_reason_over_time() -> None:
    """Two in flight at most; the third and fourth come while the first is busy, the fifth is larger than the pool."""
    many = [
        {"arrival_s": at, "prompt_tokens": prompt, "output_tokens": 50}
        for at, prompt in ((0, 16), (0.5, 16), (1.0, 16), (2.0, 16), (3.0, 1600))
    ]
    gate = [{"policy": "queue_limit", "max_num_queued_reqs": 2}]
    answer = run_simulate({**ONE_SEAT, "workload": {"requests": many}, "admission": gate, "timeline": True})
    found = answer["timeline_refused"]
    assert found["t_s"] == answer["timeline"][0]["t_s"]
    assert {name: counts[-1] for name, counts in found.items() if name != "t_s"} == {
        "queue_limit": 2,
        "prompt_and_output_exceed_pool": 1,
    }
    assert answer["requests"]["rejected"] == {"queue_limit": 2, "prompt_and_output_exceed_pool": 1}
    early = [count for at, count in zip(found["t_s"], found["queue_limit"], strict=True) if at < 1.0]
    assert early and set(early) == {0}


def test_utilisation_is_the_busy_share() -> None:
    """Two requests of 1 s each, the second five seconds later: 2 s of 6 s."""
    two = [{"arrival_s": at, "prompt_tokens": 16, "output_tokens": 10} for at in (0, 5)]
    assert run_simulate({**ONE_SEAT, "workload": {"requests": two}})["utilisation"] == pytest.approx(2 / 6)
    pair = run_simulate({**ONE_SEAT, "workload": {"requests": two}, "fleet": {"replicas": 2}})
    assert pair["utilisation"] == pytest.approx(2 / 12)


def test_a_trace_takes_the_place_of_the_workload_and_says_so() -> None:
    text = "arrival_s,prompt_tokens,output_tokens\n0,16,10\n5,16,10\n"
    answer = run_simulate(ONE_SEAT, trace_text=text)
    assert answer["requests"]["finished"] == 2 and answer["duration_s"] == pytest.approx(6.0)
    assert "the trace takes the place of the workload's requests" in answer["warnings"]
    faster = run_simulate({**ONE_SEAT, "workload": {"speedup": 5, "max_requests": 2}}, trace_text=text)
    assert faster["duration_s"] == pytest.approx(2.0)
    assert not any("takes the place" in text for text in faster["warnings"])
    with pytest.raises(CapacityError, match="unknown key 'speed'"):
        run_simulate({**ONE_SEAT, "workload": {"speed": 5}}, trace_text=text)
