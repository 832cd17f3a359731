"""The command line of simulate: exit codes, one line of error, status and warnings, JSON lines, flags, trace files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from capacity.cli import main

STEP = {"fixed_s": 0.02, "per_prefill_token_s": 0.0001}
CHAT: dict[str, Any] = {
    "num_blocks": 100,
    "step_time": STEP,
    "workload": {
        "arrival": {"process": "poisson", "rate_rps": 2},
        "prompt_tokens": 300,
        "output_tokens": 20,
        "num_requests": 40,
    },
}


def call(*words: str, stdin: str = "") -> tuple[int, str]:
    out = io.StringIO()
    code = main(["simulate", *words], stdin=io.StringIO(stdin), stdout=out)
    return code, out.getvalue()


def scenario_file(home: Path, **keys: Any) -> str:
    path = home / "scenario.json"
    path.write_text(json.dumps(CHAT | keys))
    return str(path)


def workload(**keys: Any) -> dict[str, Any]:
    return {"workload": CHAT["workload"] | keys}


FAST = {"process": "poisson", "rate_rps": 50}


@pytest.mark.parametrize(
    ("keys", "status", "first"),
    [
        ({}, "ok", "no objective is set"),
        ({"num_blocks": 10}, "everything_rejected", "nothing finished: none of 40 requests"),
        ({"client": {"timeout_s": 0.1}}, "nothing_finished", "nothing finished: none of 40 requests"),
        (workload(arrival=FAST, num_requests=2000), "no_steady_state", "no steady state: mean queue time rose from"),
        ({"until_s": 5.0}, "cut", "cut at until_s = 5 s: 0 requests had no answer yet, 31 had not arrived"),
    ],
)  # fmt: skip
def test_an_answer_exits_0_and_says_what_it_is_worth(
    tmp_path: Path, keys: dict[str, Any], status: str, first: str
) -> None:
    code, text = call("--scenario", scenario_file(tmp_path, **keys), "--json")
    answer = json.loads(text)
    assert code == 0
    assert answer["status"] == status
    assert answer["warnings"][0].startswith(first)
    assert list(answer)[:2] == ["status", "warnings"]
    if status == "everything_rejected":
        assert answer["warnings"][1] == "everything was rejected"
        assert answer["ttft_s"]["mean"] is None and answer["slo_attainment"] is None


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"num_blocks": -1}, "num_blocks is -1"),
        ({"workload": {"requests": []}}, "workload.requests has 0 entries; expected 1 or more"),
        ({"wrkload": {}}, "unknown key 'wrkload' in the scenario; did you mean 'workload'?"),
        ({"scheduler": {"rules": "orca"}}, "vllm-v1"),
        ({"seed": -1}, "seed is -1; expected a whole number, 0 or more"),
    ],
)
def test_bad_input_exits_2_with_one_line(
    tmp_path: Path, keys: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = call("--scenario", scenario_file(tmp_path, **keys), "--json")
    said = capsys.readouterr().err
    assert (code, text) == (2, "")
    assert words in said and said.count("\n") == 1


@pytest.mark.parametrize("seed", ["x", "1.5", "-1", ""])
def test_a_bad_seed_is_one_line(tmp_path: Path, seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--scenario", scenario_file(tmp_path), "--seed", seed, "--json") == (2, "")
    shown = seed if seed in ("1.5", "-1") else repr(seed)
    assert capsys.readouterr().err == f"seed is {shown}; expected a whole number, 0 or more\n"


def test_a_missing_trace_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = call("--scenario", scenario_file(tmp_path), "--trace", str(tmp_path / "none.csv"), "--json")
    assert code == 2
    assert capsys.readouterr().err.startswith("cannot read the trace")


def test_json_lines_go_on_after_a_bad_one() -> None:
    lines = [
        json.dumps(CHAT),
        "not json",
        json.dumps(CHAT | {"num_blocks": "many"}),
        json.dumps(CHAT | {"seed": 7}),
    ]
    code, text = call("--jsonl", stdin="\n".join(lines) + "\n")
    answers = [json.loads(line) for line in text.splitlines()]
    assert code == 0 and len(answers) == 4
    assert answers[0]["requests"]["finished"] == answers[3]["requests"]["finished"] == 40
    assert answers[1]["error"] == "line 2 is not JSON: expecting value at column 1; it starts with 'not json'"
    assert "num_blocks is 'many'" in answers[2]["error"] and answers[2]["field"] == "num_blocks"
    assert answers[3]["settings"]["seed"] == 7
    assert answers[3]["e2e_s"] != answers[0]["e2e_s"]


def test_json_lines_take_trace_and_seed(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,priority\n0,100,10,1\n0.5,50,5,0\n")
    engine = json.dumps({key: value for key, value in CHAT.items() if key != "workload"})
    code, text = call("--jsonl", "--trace", str(trace), "--seed", "3", stdin=f"{engine}\n{engine}\n")
    answers = [json.loads(line) for line in text.splitlines()]
    assert code == 0
    assert [one["requests"]["finished"] for one in answers] == [2, 2]
    assert [one["settings"]["seed"] for one in answers] == [3, 3]


def test_flags_ask_for_timeline_rows_and_events(tmp_path: Path) -> None:
    path = scenario_file(tmp_path)
    plain = json.loads(call("--scenario", path, "--json")[1])
    assert not {"timeline", "gantt", "events"} & set(plain)
    words = ("--timeline", "--requests-detail", "--events", "--num-blocks", "50")
    full = json.loads(call("--scenario", path, "--json", *words)[1])
    assert full["timeline"][0]["t_s"][0] >= 0 and len(full["gantt"]) == 40
    assert sum(event["event"] == "admit" for event in full["events"]) == 40
    assert full["blocks"]["total"] == 50


def test_same_seed_same_run(tmp_path: Path) -> None:
    path = scenario_file(tmp_path)
    answers = [json.loads(call("--scenario", path, "--seed", seed, "--json")[1]) for seed in ("1", "1", "2")]
    for answer in answers:
        assert answer.pop("wall_s") > 0
    assert answers[0] == answers[1] != answers[2]
