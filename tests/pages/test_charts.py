"""The planner's figures: valid for what draws them, true to the plan, with a message, a text and rows for a CSV."""

from __future__ import annotations

import csv
import doctest
import io
import json
import math
from types import ModuleType
from typing import Any

import plotly.graph_objects as go
import pytest

from capacity.plan import Plan, plan
from capacity.scenario import Scenario
from capacity.textbook_steps import steps
from pages.ui import charts, fields, first_charts, link
from pages.ui import format as format_module
from pages.ui.curve import length_points
from pages.ui.examples import examples
from pages.ui.figure import CRITICAL, Chart
from pages.ui.first_charts import INK, INK_ON_DARK, Picture
from pages.ui.format import flat, table_csv


def by_id(option: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The series of an ECharts option by their id."""
    return {one["id"]: one for one in option["series"]}


def drawn(found: Plan) -> list[Chart | Picture]:
    every: list[Chart | Picture | None] = [
        first_charts.memory_bar(found, ink=INK),
        first_charts.concurrency_curve(found, length_points(found), ink=INK),
        charts.allocation(found),
        charts.block_sizes(found),
        charts.textbook_walk(steps(found)),
        charts.weight_parts(found),
    ]
    return [chart for chart in every if chart is not None]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_every_figure_is_valid_and_has_words(example: Any) -> None:
    every = drawn(plan(Scenario.parse(example.scenario)))
    assert len(every) == 6
    for chart in every:
        if isinstance(chart, Picture):
            json.dumps(chart.option, allow_nan=False)  # what the browser is sent: no NaN, no infinity
        else:
            go.Figure(chart.figure.to_dict())  # raises on anything Plotly does not know
        assert chart.title
        assert chart.alt.startswith(chart.title)
        assert len(list(csv.DictReader(io.StringIO(table_csv(chart.rows))))) == len(chart.rows) > 0


def test_bill_adds_up_to_the_card() -> None:
    found = plan(Scenario.parse(examples()[0].scenario))
    chart = first_charts.memory_bar(found, ink=INK)
    assert chart is not None and found.resolved.total_bytes is not None
    assert sum(row["gib"] for row in chart.rows) == pytest.approx(
        found.resolved.total_bytes / 2**30, abs=1e-6
    )
    assert [row["term"] for row in chart.rows] == list(charts.TERM_NAMES.values())
    series = by_id(chart.option["baseOption"])
    bars = {name: one["data"][0] for name, one in series.items() if name != "budget"}
    assert sum(bars.values()) == pytest.approx(found.resolved.total_bytes / 2**30, abs=1e-6)
    assert list(bars) == [name for name in charts.TERM_NAMES if name in bars]
    assert all(series[name]["itemStyle"]["color"] == charts.TERM_COLOURS[name] for name in bars)
    assert series["budget"]["markLine"]["lineStyle"]["color"] == INK


def test_bill_of_a_model_that_does_not_fit_reaches_over_the_line() -> None:
    found = plan(
        Scenario.parse({"model": "meta-llama/Llama-3.1-70B-Instruct", "gpu": "l4", "max_model_len": 4096})
    )
    chart = first_charts.memory_bar(found, ink=INK)
    assert chart is not None and found.bill is not None
    base = chart.option["baseOption"]
    mark = by_id(base)["budget"]["markLine"]
    line = mark["data"][0]["xAxis"]
    assert line == pytest.approx(found.bill.budget_bytes / 2**30)
    assert base["xAxis"]["max"] > line
    assert mark["lineStyle"]["color"] == CRITICAL
    assert "needed before any KV cache" in chart.title


def test_curve_falls_and_goes_through_the_chosen_point() -> None:
    found = plan(Scenario.parse(examples()[0].scenario))
    points = length_points(found)
    assert 20 <= len(points) <= 30
    requests = [point.requests for point in points]
    assert requests == sorted(requests, reverse=True)
    assert all(point.low <= point.requests <= point.high for point in points)
    assert found.pool is not None
    chosen = next(point for point in points if point.tokens == found.resolved.max_model_len)
    assert chosen.requests == found.pool.max_concurrency
    option = first_charts.concurrency_curve(found, points, ink=INK).option
    series = by_id(option)
    assert [one["value"] for one in series["engine"]["data"]] == [(p.tokens, p.requests) for p in points]
    assert series["chosen"]["data"] == [(chosen.tokens, chosen.requests)]
    assert series["seats"]["markLine"]["data"] == [{"yAxis": found.concurrency.seats}]
    assert all(one["value"][1] >= 0.5 for one in series["textbook"]["data"])


def test_curve_band_runs_from_low_to_high_and_stays_on_the_axis() -> None:
    found = plan(Scenario.parse(examples()[0].scenario))
    points = length_points(found)
    option = first_charts.concurrency_curve(found, points, ink=INK_ON_DARK).option
    series, floor = by_id(option), option["yAxis"]["min"]
    low, height = series["low"]["data"], series["interval"]["data"]
    assert [tokens for tokens, _ in low] == [p.tokens for p in points]
    for (_, start), (_, tall), point in zip(low, height, points, strict=True):
        assert start == pytest.approx(max(point.low, floor))
        assert start + tall == pytest.approx(max(point.high, floor))
    assert option["yAxis"]["max"] >= max(point.high for point in points)


def test_length_labels_lie_where_the_log_axis_has_them() -> None:
    found = plan(Scenario.parse({"model": "Qwen/Qwen3-8B", "gpu": "l4", "max_model_len": 3000}))
    points = length_points(found)
    log, labels = first_charts.concurrency_curve(found, points, ink=INK).option["xAxis"]
    octaves = math.log2(log["max"] / log["min"])
    assert octaves == len(labels["data"]) - 1
    assert log["min"] <= points[0].tokens and points[-1].tokens <= log["max"]


def test_without_a_gpu_there_is_no_bill_and_no_walk() -> None:
    found = plan(Scenario.parse({"model": "Qwen/Qwen3-8B", "kv_cache_gib": 20}))
    assert first_charts.memory_bar(found, ink=INK) is None
    assert charts.textbook_walk(steps(found)) is None
    assert charts.allocation(found) is None
    assert len(drawn(found)) == 2


def test_csv_cells_cannot_run_in_a_spreadsheet() -> None:
    assert table_csv([{"a": "=1+1", "b": None, "c": -2}]) == "a,b,c\n'=1+1,,-2\n"
    assert flat({"a": [{"b": 1}, {"b": 2}]}) == [{"key": "a.0.b", "value": 1}, {"key": "a.1.b", "value": 2}]


@pytest.mark.parametrize(
    "module", [fields, first_charts, format_module, link], ids=lambda module: module.__name__
)
def test_examples_in_docstrings(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


THIRTEEN = {
    "model": "meta-llama/Llama-2-13b-hf",
    "gpu": "a100-80-sxm",
    "engine_version": "0.11.0",
    "gpu_memory_utilization": 0.9,
    "max_model_len": 4096,
    "prompt_tokens": 512,
    "output_tokens": 256,
}


def curve_title(**changes: object) -> str:
    found = plan(Scenario.parse({**THIRTEEN, **changes}))
    return first_charts.concurrency_curve(found, length_points(found), ink=INK).title


def test_the_curves_title_names_what_binds_and_the_longest_that_fits() -> None:
    assert curve_title() == "KV cache binds at 4,096 tokens, the longest that the model takes"
    assert curve_title(max_model_len=2048) == (
        "KV cache binds at 2,048 tokens; 14 fit at 4,096, the longest that the model takes"
    )
    big = {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "l4", "engine_version": "0.32.0"}
    tokens = int(curve_title(**big).split(" fits at ")[1].split(" ")[0].replace(",", ""))
    at, above = (plan(Scenario.parse({**THIRTEEN, **big, "max_model_len": n})) for n in (tokens, tokens + 1))
    assert at.concurrency.guaranteed == 1 and above.concurrency.guaranteed == 0


def test_allocation_labels_say_used_and_empty() -> None:
    chart = charts.allocation(plan(Scenario.parse(THIRTEEN)))
    assert chart is not None
    texts = [note.text for note in chart.figure.layout.annotations]
    assert texts == [
        "<b>14 requests</b>: 768 used, 3,328 empty (81 %)",
        "<b>79 requests</b>: 768 used, 0 empty (0.0 %)",
    ]


def test_the_budget_line_says_what_lies_outside_it() -> None:
    found = plan(Scenario.parse(THIRTEEN))
    chart = first_charts.memory_bar(found, ink=INK)
    assert chart is not None and found.bill is not None
    mark = by_id(chart.option["baseOption"])["budget"]["markLine"]
    graphs = next(term.bytes for term in found.bill.terms if term.name == "cuda_graphs")
    assert mark["data"][0]["xAxis"] == pytest.approx((found.bill.budget_bytes + graphs) / 2**30)
    assert mark["label"]["formatter"] == "budget 71.2 GiB + CUDA graphs 2.18 outside it"


def test_weights_on_one_gpu_are_not_called_replicated() -> None:
    assert charts.weight_parts(plan(Scenario.parse(THIRTEEN))).title == "24.2 GiB of weights on one GPU"
    two = charts.weight_parts(plan(Scenario.parse({**THIRTEEN, "tensor_parallel_size": 2}))).title
    assert two.startswith("12.1 GiB of weights on the fullest GPU, ")
