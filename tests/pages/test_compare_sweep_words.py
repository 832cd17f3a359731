"""Sweeps in words: places as a sentence names them, values short enough for a cell, in the unit of the chart."""

from __future__ import annotations

import math

from capacity.compare import column
from capacity.compare_set import Entry
from capacity.scenario import Scenario
from capacity.speed_grid import Axis, SpeedGrid, speed_grid
from pages.ui.compare_charts import sweep_lines, sweep_map
from pages.ui.compare_sweep import labels
from pages.ui.compare_table import why

BASE = Scenario.parse(
    {
        "model": "Qwen/Qwen3-32B",
        "gpu": "h100-sxm",
        "max_model_len": 16384,
        "prompt_tokens": 2048,
        "output_tokens": 512,
    }
)


def swept(*axes: Axis) -> SpeedGrid:
    return speed_grid(BASE, *axes)


def test_a_title_names_places_as_people_say_them() -> None:
    load = swept(Axis(key="concurrency", values=(1, 8)))
    title = sweep_lines(load, "tpot_s", labels()).title
    assert title.startswith("TPOT goes from ") and " at 1 in flight to " in title
    assert title.endswith(" at 8 in flight")
    cards = swept(
        Axis(key="prompt_tokens", values=(512.0, 4096.0)), Axis(key="gpu", values=("h100-sxm", "b200"))
    )
    said = sweep_map(cards, "ttft_s", labels()).title
    assert "at 512 prompt tokens, b200 to " in said and said.endswith("at 4,096 prompt tokens, h100-sxm")
    length = swept(Axis(key="max_model_len", values=(4096, 8192)))
    assert "max model length 4,096" in sweep_lines(length, "tpot_s", labels()).title
    cache = swept(Axis(key="kv_cache_dtype", values=("auto", "fp8")))
    assert "KV cache dtype " in sweep_lines(cache, "tpot_s", labels()).title


def test_switches_read_on_and_off() -> None:
    grid = swept(Axis(key="enable_prefix_caching", values=(True, False)))
    figure = sweep_lines(grid, "tpot_s", labels()).figure.to_dict()
    assert list(figure["data"][-1]["x"]) == ["on", "off"]


def test_cells_hold_the_chart_s_unit_and_no_colour_bar_takes_their_room() -> None:
    grid = swept(Axis(key="concurrency", values=(1, 64)), Axis(key="gpu", values=("l4", "b200")))
    (trace,) = sweep_map(grid, "tpot_s", labels()).figure.to_dict()["data"]
    small, fits = trace["text"]
    assert list(small) == ["–", "–"] and trace["showscale"] is False
    for text, value in zip(fits, grid.measures["tpot_s"][1], strict=True):
        assert math.isclose(float(text), 1e3 * value, rel_tol=0.005)
    (speed,) = sweep_map(grid, "output_tokens_per_s", labels()).figure.to_dict()["data"]
    assert speed["text"][1][1] == f"{grid.measures['output_tokens_per_s'][1][1]:,.0f}"
    many = swept(
        Axis(key="concurrency", values=tuple(range(1, 42))),
        Axis(key="gpu", values=("h100-sxm", "h200", "b200")),
    )
    (wide,) = sweep_map(many, "tpot_s", labels()).figure.to_dict()["data"]
    assert wide["showscale"] is True and "text" not in wide


def test_names_with_commas_stay_apart_in_the_reasons() -> None:
    columns = [
        column(Entry(name=name, scenario=BASE), concurrency=8)
        for name in ("fp8 weights, fp8 KV", "bf16 weights")
    ]
    odd = column(Entry(name="other", scenario=Scenario.parse({**BASE.to_json(), "gpu": "l4"})), concurrency=8)
    shared = [row["scenarios"] for row in why([*columns, odd])]
    assert "fp8 weights, fp8 KV; bf16 weights" in shared
