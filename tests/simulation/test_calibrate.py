"""The verb ``calibrate``: factors of a made run are found again; files of several shapes; bad ones are a sentence."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from capacity.calibrate_cli import run_calibrate
from capacity.cli import main
from capacity.errors import CapacityError
from capacity.simulate_cli import run_simulate
from capacity.simulation.measured import parse_measured

TRUE_STEP = {
    "fixed_s": 0.02,
    "per_decode_token_s": 2e-4,
    "per_prefill_token_s": 5e-5,
    "per_context_token_s": 1e-7,
}
ENGINE: dict[str, Any] = {"num_blocks": 600, "block_size": 16, "max_num_seqs": 48}
LOAD = {
    "arrival": {"process": "poisson", "rate_rps": 4},
    "prompt_tokens": {"mean": 300, "cv": 0.6},
    "output_tokens": {"mean": 120, "cv": 0.5},
    "num_requests": 120,
}
HEAD = "arrival_s,prompt_tokens,output_tokens,first_token_s,end_s"


def made() -> str:
    """Timings of a simulated engine, as a file of measured requests."""
    answer = run_simulate({**ENGINE, "step_time": TRUE_STEP, "workload": LOAD, "requests_detail": True})
    rows = [
        ",".join(
            repr(row[key])
            for key in ("arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "end_s")
        )
        for row in answer["gantt"]
    ]
    return "\n".join([HEAD, *rows]) + "\n"


def test_the_factors_of_a_made_run_are_found_again() -> None:
    # prompts and context cost half of what they take, the fixed part twice: factors 2 and 0.5
    start = {
        "fixed_s": 0.04,
        "per_decode_token_s": 4e-4,
        "per_prefill_token_s": 2.5e-5,
        "per_context_token_s": 5e-8,
    }
    answer = run_calibrate({**ENGINE, "step_time": start, "slo": {"ttft_s": 2}}, measured_text=made())
    assert answer["parameters"]["per_token"] == pytest.approx(2, rel=0.15)
    assert answer["parameters"]["fixed"] == pytest.approx(0.5, rel=0.05)
    assert answer["step_time"]["fixed_s"] == pytest.approx(0.02, rel=0.05)
    assert answer["error_before"]["e2e_mean"] > 0.5
    for name in ("e2e_mean", "ttft_p99", "tpot_p99"):
        assert abs(answer["error_after"][name]) < 0.03
    assert answer["error_after"]["in_flight"] < 0.02
    assert answer["fitted_on"]["requests"] == answer["fitted_on"]["answered"] == 120
    ready = answer["scenario"]
    assert ready["slo"] == {"ttft_s": 2} and ready["step_time"] == answer["step_time"]
    again = run_simulate(ready)
    assert again["e2e_s"]["mean"] == pytest.approx(answer["simulated_s"]["e2e_mean"])


def test_without_a_step_time_the_fit_starts_from_the_timings() -> None:
    answer = run_calibrate(ENGINE, measured_text=made())
    assert "step_time is not given: the fit started from one read off the timings" in answer["warnings"]
    assert abs(answer["error_after"]["e2e_mean"]) < 0.03


def test_what_would_refuse_measured_requests_is_left_out_and_kept() -> None:
    gate = [{"policy": "queue_limit", "max_waiting": 1}]
    answer = run_calibrate(
        {**ENGINE, "step_time": TRUE_STEP, "admission": gate, "workload": LOAD}, measured_text=made()
    )
    assert (
        "admission was left out of the fit: the measured requests had passed the door" in answer["warnings"]
    )
    assert answer["scenario"]["admission"] == gate and answer["scenario"]["workload"] == LOAD
    assert abs(answer["error_before"]["e2e_mean"]) < 1e-9  # the true step time, all requests let in


@pytest.mark.parametrize(
    "text",
    [
        "arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s\n7,8,3,0.5,0.9\n6,8,3,0.25,1\n",
        "arrival_s,prompt_tokens,output_tokens,ttft_ms,tpot_ms\n7,8,3,500,200\n6,8,3,250,375\n",
        HEAD + "\n7,8,3,7.5,7.9\n6,8,3,6.25,7\n",
        "arrival_time,input_toks,output_toks,queued_ts,first_token_ts,last_token_ts\n"
        "1787267987,8,3,57,57.5,57.9\n1787267986,8,3,56.1,56.25,57\n",
        "timestamp,input_tokens,output_tokens,ttft_s,e2e_s\n2026-03-01 00:00:07Z,8,3,0.5,0.9\n2026-03-01 00:00:06Z,8,3,0.25,1\n",
    ],
    ids=["after the arrival", "milliseconds", "one clock", "two clocks", "dates"],
)
def test_shapes_of_a_measured_file(text: str) -> None:
    found = parse_measured(text)
    assert found.requests.arrival_s.tolist() == pytest.approx([0, 1])
    assert found.first_token_s.tolist() == pytest.approx([0.25, 1.5])
    assert found.end_s.tolist() == pytest.approx([1, 1.9])
    assert any("two clocks" in note for note in found.notes) == ("queued_ts" in text)


def test_requests_without_an_answer_are_load_only() -> None:
    found = parse_measured(HEAD + "\n0,8,3,1,2\n1,8,,,\n")
    assert found.answered.tolist() == [True, False]
    assert (
        "1 of 2 requests have no answer: they are part of the load and of no error" in found.notes
        and len(found.requests) == 2
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the measured file is empty"),
        (
            "arrival_s,prompt_tokens,output_tokens\n0,8,3\n",
            "no first token (first_token_s or ttft_s) and no end",
        ),
        (HEAD + "\n", "a header but no requests"),
        (HEAD + "\n0,8,3,1,0.5\n", "line 2 of the measured file has its end before its first token"),
        (HEAD + "\n5,8,3,1,2\n", "first_token_s lies -4 s after arrival_s: two clocks"),
        (HEAD + "\n0,8,3,,\n", "no request of the measured file has a first token and an end"),
        (HEAD + "\n0,eight,3,1,2\n", "line 2 of the measured file has prompt_tokens 'eight'"),
        (HEAD + "\n0,9000,3000,1,2\n", "the scenario refuses 1 of 1 measured requests"),
    ],
)
def test_bad_files_are_a_sentence(text: str, words: str) -> None:
    with pytest.raises(CapacityError) as caught:
        run_calibrate({**ENGINE, "step_time": TRUE_STEP}, measured_text=text)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario, measured = tmp_path / "scenario.json", tmp_path / "measured.csv"
    scenario.write_text(json.dumps({**ENGINE, "step_time": TRUE_STEP}))
    measured.write_text(made())
    argv = ["calibrate", "--scenario", str(scenario), "--json"]
    out = io.StringIO()
    assert main([*argv, "--measured", str(measured)], stdout=out) == 0
    answer = json.loads(out.getvalue())
    assert list(answer)[:2] == ["parameters", "step_time"]
    assert answer["parameters"] == {
        "per_token": pytest.approx(1, rel=0.1),
        "fixed": pytest.approx(1, rel=0.02),
    }
    assert main(argv, stdout=io.StringIO()) == 2
    assert capsys.readouterr().err.startswith("measured is missing; expected a file of single requests")
    assert main([*argv, "--measured", "none.csv"], stdout=io.StringIO()) == 2
    assert capsys.readouterr().err == "cannot read the measured file 'none.csv': No such file or directory\n"
