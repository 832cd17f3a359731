"""The Compare page and the Plan page's Speed tab without a browser: figures, sorting, files, links, bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path

import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from capacity.compare import ROWS, change, column, different_inputs, frontier
from capacity.compare_set import Entry, entries_from_text, entry, formats_of, layouts_of
from capacity.errors import CapacityError
from capacity.estimate import estimate
from capacity.plan import plan
from capacity.scenario import Scenario
from capacity.speed_grid import Axis, speed_grid
from pages.ui.compare_charts import pareto, sweep_lines, sweep_map
from pages.ui.compare_parts import seconds
from pages.ui.compare_state import EXAMPLE
from pages.ui.compare_sweep import labels, values_of
from pages.ui.compare_table import csv_rows, headline, page_html, sorted_columns, table
from pages.ui.link import pack, unpack
from pages.ui.speed_charts import levels, speed_curve
from pages.ui.speed_points import fingerprint, from_text, to_text

ROOT = Path(__file__).parents[2]
BASE = Scenario.parse(EXAMPLE)


def page(name: str = "compare", **link: str) -> AppTest:
    """A page opened with a link."""
    found = AppTest.from_file(str(ROOT / "pages" / f"{name}.py"), default_timeout=30)
    for key, value in link.items():
        found.query_params[key] = value
    return found.run()


def packed(*raws: object) -> str:
    value = pack(json.dumps(list(raws)))
    assert value is not None
    return value


def problem(found: AppTest) -> str:
    assert not found.exception
    sentences = [str(one.value) for one in found.error]
    assert len(sentences) == 1
    return sentences[0].replace("\\", "")


def test_empty_page_teaches_with_one_button() -> None:
    found = page()
    assert not found.exception
    assert "Pin to Compare" in found.markdown[-1].value
    found.button(key="cmp_empty_example").click().run()
    assert not found.exception
    shown = found.table[0].value
    assert list(shown.columns[1:]) == [
        "bf16 weights (first)",
        *[one.name for one in formats_of(BASE)[1:]],
    ]
    assert "32 requests in flight" in str(found.info[0].value)
    kept = found.query_params["cmp_set"]
    again = page(cmp_set=kept if isinstance(kept, str) else kept[-1])
    assert again.table[0].value.equals(shown)


def test_column_holds_the_planners_and_the_models_figures() -> None:
    one = column(Entry(name="a", scenario=BASE), concurrency=8)
    planned, speed = plan(BASE), estimate(BASE, 8.0).forecast
    assert set(one.figures) == {row.key for row in ROWS}
    assert one.figures["guaranteed"].value == planned.concurrency.guaranteed
    assert one.figures["kv_tokens"].value == planned.pool.tokens_logged  # type: ignore[union-attr]
    assert one.figures["tpot_s"].value == pytest.approx(float(speed.tpot_s.value[0]))
    assert one.figures["tpot_s"].low == pytest.approx(float(speed.tpot_s.low[0]))
    tokens = float(speed.output_tokens_per_s.value[0])
    priced = column(Entry(name="b", scenario=BASE, price_usd_per_gpu_hour=3.6), concurrency=8)
    assert priced.figures["usd_per_million"].value == pytest.approx(3.6 / 3600 / tokens * 1e6)


def test_unknown_has_a_reason_and_no_number() -> None:
    cases = {
        "no lengths": {"model": "Qwen/Qwen3-8B", "gpu": "h100-sxm"},
        "too large": {**EXAMPLE, "gpu": "l4"},
        "bad release": {**EXAMPLE, "engine_version": "nonsense"},
    }
    for name, raw in cases.items():
        one = column(entry({"name": name, "scenario": raw}), concurrency=32)
        assert one.figures["tpot_s"].value is None, name
        assert len(one.figures["tpot_s"].reason) > 10, name
        assert one.load is None
    assert change(column(entry(cases["too large"]), concurrency=1).figures["tpot_s"], one.figures["tpot_s"]) is None  # fmt: skip


def test_columns_sort_by_any_row_and_unknown_goes_last() -> None:
    rows = [*formats_of(BASE)[:3], entry({"name": "small", "scenario": {**EXAMPLE, "gpu": "l4"}})]
    columns = [column(one, concurrency=32) for one in rows]
    for row in ROWS:
        found = [one.figures[row.key].value for one in sorted_columns(columns, row.key)]
        known = [value for value in found if value is not None]
        assert known == sorted(known, reverse=row.better == "higher"), row.key
        assert None not in found[: len(known)]
    assert sorted_columns(columns, None) == columns
    shown = {line[""]: line for line in table(columns, columns[0])}
    assert ":green[" in shown["TPOT"][rows[2].name]
    assert "better" not in shown["TPOT"][f"{rows[0].name} (first)"]
    assert shown["TPOT"]["small"] == "–"


def test_the_headline_does_not_name_a_winner_where_figures_are_within_5_percent() -> None:
    one = {"model": "qwen3-32b", "gpu": "h200", "prompt_tokens": 1024, "output_tokens": 256}
    scenarios = {
        "plain": one,
        "shorter": {**one, "max_model_len": 8192},
        "half": {**one, "weight_format": "fp8"},
    }
    columns = [
        column(Entry(name=name, scenario=Scenario.parse(raw)), concurrency=8)
        for name, raw in scenarios.items()
    ]
    said = headline(columns, "8 requests in flight")
    assert "**half** has the lowest TPOT" in said and "too close" not in said
    assert "too close to call with **" in headline(columns[:2], "8 requests in flight")


def test_differences_of_inputs_and_downloads() -> None:
    rows = formats_of(BASE)
    assert [key for key, _ in different_inputs(rows)] == ["weight_format", "kv_cache_dtype"]
    columns = [column(one, concurrency=32) for one in rows]
    lines = csv_rows(columns)
    assert len(lines) == len(ROWS) * len(rows)
    assert lines[0]["change_from_first"] == 0
    report = page_html(columns, "32 requests in flight")
    assert report.startswith("<!doctype html>") and "<script" not in report and "awq weights" in report
    evil = page_html([column(entry({**EXAMPLE, "name": "<script>x"}), concurrency=1)], "1")
    assert "<script" not in evil


def test_file_round_trip_and_every_accepted_form() -> None:
    rows = (
        entry(
            {
                **EXAMPLE,
                "name": "a",
                "measured_points": [{"concurrency": 8, "tpot_s": 0.03}],
                "price_usd_per_gpu_hour": 2.5,
            }
        ),
        *layouts_of(Scenario.parse({**EXAMPLE, "tensor_parallel_size": 2})),
    )
    text = json.dumps({"scenarios": [one.to_json() for one in rows], "settings": {}})
    assert entries_from_text(text) == rows
    assert len(entries_from_text(json.dumps(EXAMPLE))) == 1
    assert entries_from_text("\ufeff" + json.dumps(EXAMPLE))[0].scenario == BASE
    assert [one.name for one in entries_from_text(json.dumps([EXAMPLE, EXAMPLE]))] == [
        "Qwen3-32B, 1 x h100-sxm",
        "Qwen3-32B, 1 x h100-sxm (2)",
    ]
    assert entries_from_text(json.dumps({"scenario": EXAMPLE, "fits": True}))[0].scenario == BASE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("[", "not JSON at line 1"),
        ("[]", "no scenarios"),
        ("7", "no scenarios"),
        ("[3]", "scenario 1 is no JSON object"),
        ('[{"model": "x", "gpu": 7}]', "scenario 1: gpu is 7"),
        ('[{"name": 3, "model": "x"}]', "name is no text"),
        ('[{"scenario": 4}]', "scenario is no JSON object"),
        ('[{"modle": "x"}]', "did you mean 'model'?"),
        ('[{"model": "x", "price_usd_per_gpu_hour": -1}]', "price_usd_per_gpu_hour is '-1'"),
        ("[" + ",".join(["{}"] * 7) + "]", "7 scenarios"),
        ("[" * 100_000, "nested too deeply"),
        ('[{"model": "x", "model": "y"}]', "the key 'model' is written twice"),
    ],
)
def test_bad_file_is_a_sentence(text: str, said: str) -> None:
    with pytest.raises(CapacityError, match=r".+") as caught:
        entries_from_text(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scenario_of_another_verb_is_taken_and_says_what_was_left_out() -> None:
    found = page()
    other = {**EXAMPLE, "name": "x", "concurrency": 8, "engine": "vLLM"}
    found.text_area(key="cmp_paste").input(json.dumps([other])).run()
    found.button(key="cmp_add").click().run()
    assert not found.error
    said = "**Left out.** x: concurrency: a key of estimate and search, not used here."
    seen = [str(one.value).replace("\\:", ":") for one in found.info]
    assert [one.startswith(said) for one in seen if "Left out" in one] == [True]
    assert [one.name for one in found.session_state["cmp_entries"]] == ["x"]
    found.run()
    assert not any("Left out" in str(one.value) for one in found.info)


def test_pasted_file_adds_to_the_set_and_bad_text_stays() -> None:
    found = page(cmp_set=packed(EXAMPLE))
    found.text_area(key="cmp_paste").input('{"scenarios": [{"modle": 1}]}').run()
    found.button(key="cmp_add").click().run()
    assert "did you mean 'model'?" in problem(found)
    assert len(found.table[0].value.columns) == 2
    new = {"scenarios": [{**EXAMPLE, "gpu": "h200", "name": "H200"}], "settings": {"cmp_load": "8"}}
    found.text_area(key="cmp_paste").input(json.dumps(new)).run()
    found.button(key="cmp_add").click().run()
    assert not found.exception and not found.error
    assert found.table[0].value.columns[-1] == "H200"
    assert "8 requests in flight" in str(found.info[0].value)


def test_bad_inputs_of_the_page_are_sentences() -> None:
    assert "damaged" in problem(page(cmp_set="%%%"))
    assert "equests in flight is 'many'" in problem(page(cmp_set=packed(EXAMPLE), cmp_load="many"))
    assert "TPOT limit is '-3'" in problem(page(cmp_set=packed(EXAMPLE), cmp_tpot="-3"))
    found = page(cmp_set=packed(EXAMPLE), cmp_tab="Sweep", cmp_xv="1 two 3")
    assert "oncurrency has the value 'two'" in problem(found)


def test_sweep_over_two_inputs_and_the_others_of_the_link() -> None:
    link = {"cmp_tab": "Sweep", "cmp_x": "GPU", "cmp_xv": "l4 h100-sxm h200", "cmp_y": "Prompt tokens"}
    found = page(cmp_set=packed(EXAMPLE), **link, cmp_yv="512 2048", cmp_measure="output tokens/s")
    assert not found.exception and not found.error
    said = " ".join(str(one.value) for one in found.caption)
    assert "2 points have no value" in said
    assert "Output tokens/s goes from" in " ".join(str(one.value) for one in found.markdown)


def test_cancelled_sweep_keeps_what_it_has() -> None:
    seen: list[float] = []

    def stop_after_two(share: float) -> bool:
        seen.append(share)
        return len(seen) < 2

    grid = speed_grid(BASE, Axis(key="max_num_seqs", values=(8, 16, 32, 64)), on_row=stop_after_two)
    assert not grid.complete
    assert [math.isfinite(v) for v in grid.measures["tpot_s"][0]] == [True, True, False, False]
    rows = sweep_lines(grid, "tpot_s", labels()).rows
    assert [row["tpot_s"] is None for row in rows] == [False, False, True, True]


def test_figures_pass_plotlys_own_check_and_say_their_message() -> None:
    rows = formats_of(BASE)
    fronts = [frontier(one, tpot_s=0.03) for one in rows]
    for one in fronts:
        assert one.corner is not None and 1 / one.corner.tokens_per_s_per_user <= 0.03
        speeds = [p.tokens_per_s_per_user for p in one.points]
        assert speeds == sorted(speeds, reverse=True)
    front = pareto(fronts, ttft_s=None, tpot_s=0.03, ink="#000000")
    assert front is not None and "fp8 weights, fp8 KV serves the most" in front.title
    names = labels()
    grid = speed_grid(BASE, Axis(key="concurrency", values=(1, 4, 16)), Axis(key="gpu", values=("l4", "h200")))  # fmt: skip
    found = estimate(BASE, 1.0)
    curve = speed_curve(estimate(BASE, levels(found)), load=8.0)
    for chart in (front, sweep_map(grid, "tpot_s", names), sweep_lines(grid, "ttft_s", names), curve):
        go.Figure(chart.figure.to_dict())
        assert chart.title and chart.alt.startswith(chart.title) and chart.rows
    assert "where KV cache is full (14)" in curve.title
    impossible = [frontier(one, tpot_s=1e-6) for one in rows[:1]]
    assert "misses the SLO" in impossible[0].reason


def test_values_and_texts() -> None:
    assert values_of("gpu", "l4, h200") == ("l4", "h200")
    assert values_of("concurrency", "")[-1] == 256
    with pytest.raises(CapacityError, match="at most 500"):
        values_of("concurrency", " ".join(map(str, range(1, 600))))
    assert (seconds(0.0), seconds(None)) == ("0.00 ms", "–")
    assert json.loads(unpack(packed(EXAMPLE)))[0] == EXAMPLE


def test_speed_tab_answers_at_the_typical_concurrency() -> None:
    link = {f"plan_{key}": str(value) for key, value in EXAMPLE.items()}
    found = page("plan", plan_tab="Speed", **link)
    assert not found.exception and not found.error
    said = [str(one.value) for one in found.markdown]
    tpot = seconds(float(estimate(BASE, 14.0).forecast.tpot_s.value[0]))
    line = next(text for text in said if "requests in flight (the typical concurrency)" in text)
    assert f"At 14 requests in flight (the typical concurrency): TPOT **{tpot}**" in line
    assert any("**Extrapolated**" in str(one.value) for one in found.caption)
    found.text_input(key="plan_load").input("zero").run()
    assert not found.exception
    assert "equests in flight is 'zero'" in " ".join(str(one.value) for one in found.info)


def test_own_points_travel_in_the_link_and_wait_when_inputs_change() -> None:
    assert to_text(from_text("8,11,;64,20,300")) == "8,11,;64,20,300"
    link = {f"plan_{key}": str(value) for key, value in EXAMPLE.items()}
    points = {"plan_points": "8,40,", "plan_points_for": fingerprint(BASE)}
    plain, own = (page("plan", plan_tab="Speed", **link, **more) for more in ({}, points))

    def line(found: AppTest) -> str:
        assert not found.exception
        return next(str(m.value) for m in found.markdown if "the typical concurrency" in str(m.value))

    assert line(own) != line(plain)
    own.button(key="plan_pin").click().run()
    assert own.session_state["cmp_entries"][0].measured[0].tpot_s == pytest.approx(0.04)
    moved = page("plan", plan_tab="Speed", **{**link, "plan_max_model_len": "8192"}, **points)
    assert "not used here" in " ".join(str(one.value) for one in moved.warning)
    assert "is no concurrency,TPOT ms" in problem(page("plan", plan_tab="Speed", **link, plan_points="a,b"))
    below = {"plan_points": "8,0.01,", "plan_points_for": fingerprint(BASE)}
    assert "below the physical bound" in problem(page("plan", plan_tab="Speed", **link, **below))


def test_seventh_pin_is_refused_before_the_click() -> None:
    found = page("plan")
    found.session_state["cmp_entries"] = formats_of(BASE)
    found.run()
    assert found.button(key="plan_pin").disabled
