"""The Simulate page without a browser: presets, link, files, loud runs, and bad input as a sentence in the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from capacity.simulate_cli import prepare, run_simulate, simulate
from capacity.simulation.block_map import block_map
from capacity.simulation.sweep import sweep_rates
from pages.ui import simulate_charts, simulate_pictures
from pages.ui.link import link
from pages.ui.simulate_fields import from_scenario, to_scenario
from pages.ui.simulate_policies import Policy, scenarios
from pages.ui.simulate_presets import Start, starts
from pages.ui.simulate_runs import Outcome, export
from pages.ui.simulate_sections import TABS
from pages.ui.simulate_throughput import rates, throughput
from pages.ui.simulate_words import cause, loud, verdict, winner

ROOT = Path(__file__).parents[2]
SMALL = {
    "num_blocks": "100", "block_size": "16", "fixed": "100", "process": "constant", "rate": "4", "prompt": "200",
    "output": "50", "num_requests": "10", "a_gate": "none", "b_gate": "queue_limit", "b_first": "2",
}  # fmt: skip


def page(**link_values: str) -> AppTest:
    """The page opened with a link."""
    found = AppTest.from_file(str(ROOT / "pages" / "simulate.py"), default_timeout=60)
    for key, value in link_values.items():
        found.query_params[key if key.startswith("plan_") else f"sim_{key}"] = value
    return found.run()


def said(found: AppTest) -> str:
    """Everything in banners."""
    assert not found.exception
    boxes = [one for kind in (found.success, found.warning, found.error, found.info) for one in kind]
    return " ".join(str(one.value) for one in boxes).replace("\\", "")


def figures(found: AppTest) -> dict[str, str]:
    return {metric.label.split(",")[0]: metric.value for metric in found.metric}


def outcomes(start: Start, **more: Any) -> list[Outcome]:
    """A preset's runs, without a page."""
    return [
        Outcome(
            policy=policy,
            scenario=one,
            answer=run_simulate(
                {**one, "timeline": True, "requests_detail": True, "events": True, **more}, seed=1
            ),
        )
        for policy, one in zip(start.policies, scenarios(start.scenario, start.policies), strict=True)
    ]


def test_first_visit_compares_two_policies_and_fills_the_link() -> None:
    found = page()
    assert "A serves most within the objective: 10 of 10 requests against B 6." in said(found)
    assert "preempted once, 214 tokens computed again" in said(found)
    assert figures(found)["Refused"] == "0"
    assert figures(found)["Goodput"] == "0.93"
    assert found.query_params["sim_num_blocks"] in ("100", ["100"])


def test_every_preset_runs_through_its_fields_as_given() -> None:
    for start in starts():
        texts = from_scenario(start.scenario)
        back = prepare(to_scenario(texts, direct=True), seed=1)
        given = prepare(start.scenario, seed=1)
        assert back.engine == given.engine and back.slo == given.slo and back.client == given.client
        for column in ("arrival_s", "prompt_tokens", "output_tokens"):
            assert (getattr(back.requests, column) == getattr(given.requests, column)).all(), start.key
        assert len(start.policies) >= 2


def test_a_preset_chosen_on_the_page_says_the_cause() -> None:
    found = page()
    found.selectbox(key="sim_example").set_value("Long documents beside chat").run()
    assert "A: decode outgrew the pool: preempted 252 times, 237,935 tokens computed again" in said(found)
    assert figures(found)["Goodput"] == "8.72"


def test_a_link_opens_the_same_runs() -> None:
    found = page(**SMALL, count="2")
    assert [found.selectbox(key=f"sim_{one}_gate").value for one in "ab"] == ["none", "queue_limit"]
    shared = next(one.value for one in found.code if "sim_b_gate" in one.value)
    again = page(**{key.removeprefix("sim_"): value for key, value in parse_qsl(urlsplit(shared).query)})
    assert figures(again) == figures(found)
    assert said(again) == said(found)
    assert link("http://h/simulate", {"sim_pool": "Plan"}) == "http://h/simulate?sim_pool=Plan"


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        ("rate", "", "“Requests/s” is missing"),
        ("rate", "0", "“Requests/s” is 0; expected a number, above 0, at most 1,000,000"),
        ("rate", "-1", "“Requests/s” is -1; expected a number, above 0, at most 1,000,000"),
        ("num_blocks", "-3", "“KV blocks” is -3; expected a whole number"),
        ("num_blocks", "many", "“KV blocks” is 'many'"),
        ("fixed", "", "“Step time” is missing; give “Fixed per step, ms”, “Prompt token, µs”"),
        ("fixed", "-5", "“Fixed per step, ms” in seconds is -0.005; expected seconds, 0 or more"),
        ("output_cv", "900", "“Spread of output tokens” is 900; expected a number, 0 to 100"),
        ("num_requests", "9000000", "this page carries 200,000"),
        ("long_share", "130", "expected a number from 0 to 100"),
        ("b_first", "two", "“May wait” is 'two'"),
        ("a_also", "{", "the changes of policy A are no JSON"),
        ("seed", "1.5", "“Seed” is 1.5; expected a whole number"),
        ("seed", "nan", "“Seed” is nan; expected a whole number"),
        ("seed", "inf", "“Seed” is inf; expected a whole number"),
        ("num_requests", "nan", "“Requests” is nan; expected a whole number"),
        ("num_requests", "1e999", "“Requests” is inf; expected a whole number"),
    ],
)
def test_bad_input_is_a_sentence(key: str, text: str, sentence: str) -> None:
    found = page(**{**SMALL, key: text})
    assert len(found.error) == 1
    assert "Check the input." in said(found)
    assert sentence.lower() in said(found).lower()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", 'The further keys are no JSON; expected an object such as {"events": true}'),
        ("[1]", 'The further keys are no object; expected one such as {"events": true}'),
        ('{"events": true, "events": false}', "The further keys: the key 'events' is written twice"),
    ],
)
def test_bad_further_keys_are_a_sentence_with_a_key_to_copy(text: str, sentence: str) -> None:
    found = page(**SMALL)
    found.text_area(key="sim_json").set_value(text).run()
    assert sentence in said(found).replace("\\", "")
    assert found.text_area(key="sim_json").value == text
    found.text_area(key="sim_json").set_value('\ufeff{"events": true}').run()
    assert not found.error


def test_the_last_run_stays_beside_bad_input() -> None:
    found = page(**SMALL)
    before = figures(found)
    found.text_input(key="sim_rate").set_value("fast").run()
    assert "Below is the last run" in said(found)
    assert figures(found) == before


def test_a_run_that_finishes_nothing_is_loud() -> None:
    found = page(**{**SMALL, "prompt": "9000"})
    assert len(found.error) == 1
    assert "all 10 requests were refused (prompt exceeds pool 10)" in said(found)


def test_a_warm_up_longer_than_the_run_is_loud() -> None:
    found = page(**{**SMALL, "warmup": "60"})
    assert len(found.error) == 1
    assert (
        "A: nothing was measured: every request arrived within warmup_s = 60 s (the last after 2.25 s)"
        in said(found)
    )
    assert figures(found)["Goodput"] == "–"


def test_a_request_that_starts_at_zero_is_computed_from_there() -> None:
    # the first request is scheduled at 0.0 and has its first token after one step of 0.1 s: prefill, no queue
    one = outcomes(starts()[0])[0]
    parts = [row for row in simulate_pictures.segments(one.answer) if row["request"] == 0]
    assert [(row["part"], round(row["from_s"], 6), round(row["to_s"], 6)) for row in parts] == [
        ("prefill", 0.0, 0.1),
        ("decode", 0.1, 5.0),
    ]


def test_no_steady_state_is_loud() -> None:
    found = page(**{**SMALL, "num_requests": "400", "rate": "8", "b_gate": "none"})
    assert len(found.warning) == 1
    assert "A: no steady state" in said(found)


def test_plan_gives_pool_and_steps() -> None:
    found = page(
        pool="Plan", rate="1", num_requests="50", plan_model="meta-llama/Llama-3.1-8B-Instruct",
        plan_gpu="l4", plan_max_model_len="4096", plan_prompt_tokens="512", plan_output_tokens="128", count="1",
    )  # fmt: skip
    assert "50 of 50 requests finished (no objective is set)" in said(found)
    assert any("lengths of the plan" in one.label for one in found.sidebar.expander)
    assert found.selectbox(key="plan_gpu").value == "l4"
    bars = [one for one in found.sidebar.selectbox if one.label == "Start from an example"]
    assert [one.key for one in bars] == ["sim_example"]
    assert [one.key for one in found.sidebar.button if one.label == "Reset"] == ["sim_reset"]


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_draws(tab: str) -> None:
    found = page(**SMALL, tab=tab)
    assert not found.exception
    assert "A finishes most (no objective is set): 10 of 10 requests against B 9." in said(found)


def test_saved_runs_and_command_line_scenarios_open_again() -> None:
    found = page(**SMALL)
    saved = json.dumps(export(outcomes(starts()[0])))
    for text, goodput in ((saved, "0.93"), (json.dumps(starts()[1].scenario), "2.81")):
        found.file_uploader(key="sim_open").set_value(("run.json", text.encode(), "application/json")).run()
        next(one for one in found.button if one.label.startswith("Put the file")).click().run()
        assert not found.error
        assert figures(found)["Goodput"] == goodput
        if text is saved:
            assert [found.selectbox(key=f"sim_{one}_gate").value for one in "ab"] == [
                "queue_limit",
                "block_gate",
            ]
            assert [found.text_input(key=f"sim_{one}_first").value for one in "ab"] == ["3", "0.15"]


def test_figures_are_valid_and_carry_their_message() -> None:
    runs = outcomes(starts()[0])
    charts = [
        simulate_charts.timeline(runs, ink="#000000", dark=False),
        simulate_pictures.gantt(runs[0].answer, "A"),
        simulate_charts.sweep_chart(
            [(runs[0], sweep_rates(runs[0].scenario, (0.5, 1.0), seed=1))],
            slo={"ttft_s": 4},
            ink="#000000",
            dark=True,
        ),
    ]
    run = simulate(prepare(runs[0].scenario, seed=1), seed=1, log=True)
    charts.append(simulate_pictures.block_picture(block_map(run, 2.0), dark=False))
    for chart in charts:
        go.Figure(chart.figure.to_plotly_json())
        assert chart.rows and chart.title in chart.alt
    assert "fills 100 % of the pool and lets up to 4 wait" in charts[0].title
    shapes = [trace["line"]["shape"] for trace in charts[0].figure.to_plotly_json()["data"]]
    assert shapes == ["linear"] * 2 + ["hv"] * 6  # blocks grow, people come and go
    away = [row for row in charts[1].rows if row["part"] == "preempted"]
    assert [(row["request"], row["from_s"], row["to_s"]) for row in away] == [(6, 3.0, 5.0)]
    used = sum(row["state"] != "free" for row in charts[3].rows)
    assert f"{used} of 100 blocks used by 7 requests" in charts[3].title


@pytest.mark.parametrize("key", [start.key for start in starts()])
def test_waterline_is_drawn_up_to_the_peak_of_every_run(key: str) -> None:
    for one in outcomes(next(start for start in starts() if start.key == key), events=False):
        drawn = max(simulate_charts.series(one.answer)["waterline"]) / 100
        assert drawn == pytest.approx(one.answer["kv_usage"]["peak"], abs=1e-9)


def test_waterline_rises_over_one_long_stretch() -> None:
    lone = {"arrival_s": 0, "prompt_tokens": 160, "output_tokens": 641}
    keys: dict[str, Any] = {"num_blocks": 100, "step_time": {"fixed_s": 0.1}, "timeline": True}
    line = simulate_charts.series(run_simulate({**keys, "workload": {"requests": [lone]}}))
    assert line["waterline"] == pytest.approx([10, 11, 50, 0])  # 10 blocks of prompt, 800 tokens at the end
    assert line["t_s"] == pytest.approx([0, 0.1, 64.1, 64.1], abs=1e-5)
    assert line["running"] == [1, 1, 1, 0]


def test_the_winner_answers_more_of_the_same_requests_not_a_shorter_run() -> None:
    one, other = outcomes(starts()[0])
    assert one.answer["goodput_rps"] < other.answer["goodput_rps"]  # 10 in 10.8 s against 6 in 6.3 s
    assert (one.answer["goodput_requests"], other.answer["goodput_requests"]) == (10, 6)
    assert winner([one, other]) == 0 and winner([other, one]) == 1
    less = {**other.answer, "requests": {**other.answer["requests"], "arrived": 9}}
    cut = Outcome(policy=other.policy, scenario=other.scenario, answer=less)
    assert winner([one, cut]) == 1  # other arrivals: by their rate
    slow = outcomes(next(start for start in starts() if start.key == "slow_replica"), events=False)
    assert verdict(slow).answer.startswith(
        "B serves more within the objective: 3,000 of 3,000 requests against 2,10"
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.1, 4.6], ["100 ms", "200 ms", "500 ms", "1.0 s", "2.0 s", "5.0 s"]),
        ([0.1, 0.142], ["100 ms", "150 ms"]),
        ([0.01, 90.0], ["10.0 ms", "100 ms", "1.0 s", "10 s", "100 s"]),
    ],
)
def test_log_axes_are_marked_in_words(values: list[float], words: list[str]) -> None:
    found = simulate_charts.log_ticks(values)
    assert found["ticktext"] == words
    assert 10 ** found["range"][0] < min(values) and 10 ** found["range"][1] > max(values)


def test_throughput_adds_up_to_the_tokens_computed() -> None:
    runs = outcomes(starts()[0])
    for one in runs:
        values = rates(one.answer)
        wide = values["t_s"][1] - values["t_s"][0]
        steps = one.answer["steps"]
        assert sum(values["prompt_tokens_per_s"]) * wide == pytest.approx(steps["prompt_tokens"], abs=201)
        assert sum(values["output_tokens_per_s"]) * wide == pytest.approx(steps["output_tokens"], abs=8)
        assert values["preemptions"][-1] == one.answer["requests"]["preemptions"]
    chart = throughput(runs, ink="#000000", dark=False)
    assert "A 2,215 prompt and 500 output tokens" in chart.title
    go.Figure(chart.figure.to_plotly_json())


def test_words_tell_equal_policies_and_dead_runs() -> None:
    one = outcomes(starts()[0])[0]
    twin = Outcome(policy=Policy(letter="b", gate="none"), scenario=one.scenario, answer=one.answer)
    assert verdict([one, twin]).severity == "information"
    assert "serve as much within the objective: A 10, B 10 of 10 requests" in verdict([one, twin]).answer
    assert loud(one.answer) is None
    assert cause(one.answer).startswith("decode outgrew the pool")


def test_requests_that_arrive_at_once_have_no_rate_to_sweep() -> None:
    found = page(**{**SMALL, "num_requests": "1", "tab": "Arrival rate"})
    assert not found.exception
    assert "no arrival rate to sweep" in said(found)
