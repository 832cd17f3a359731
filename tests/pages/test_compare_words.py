"""Words of the Compare page at the edges: tiny shares, tiny rates, look-alike names, what is refused and what is unknown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

from capacity.compare import ROWS, Column, Figure, column
from capacity.compare_set import Entry
from capacity.performance.measured import measured_points
from capacity.scenario import Scenario
from pages.ui.compare_sections import words_of
from pages.ui.compare_table import difference, headline, page_html, shown, table
from pages.ui.link import pack

ROOT = Path(__file__).parents[2]
ONE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "max_model_len": 8192,
    "prompt_tokens": 1024,
    "output_tokens": 256,
}
BIG = {**ONE, "model": "deepseek-v3", "gpu": "t4"}
NO_MODEL = {**ONE, "model": "nosuch"}
LOAD = "32 requests in flight"


def at(name: str, raw: dict[str, Any]) -> Column:
    return column(Entry(name=name, scenario=Scenario.parse(raw)), concurrency=32)


def opened(*raws: object) -> AppTest:
    found = AppTest.from_file(str(ROOT / "pages" / "compare.py"), default_timeout=30)
    packed = pack(json.dumps(raws))
    assert packed is not None
    found.query_params["cmp_set"] = packed
    return found.run()


def test_one_of_a_thousand_is_not_100_percent_less() -> None:
    gpus = ROWS[0]
    assert difference(gpus, Figure(value=1.0), Figure(value=1000.0)) == ":green[1 of 1,000, better]"
    assert difference(gpus, Figure(value=1.0), Figure(value=100.0)) == ":green[99 % less, better]"
    assert difference(ROWS[3], Figure(value=0.0), Figure(value=9.0)) == ":orange[100 % less, worse]"
    first, other = at("first", {**ONE, "data_parallel_size": 1000}), at("other", ONE)
    assert "<small>-99.900 %</small>" in page_html([first, other], LOAD)


def test_slow_rates_and_cheap_tokens_do_not_read_zero() -> None:
    rate, dollars = shown("per_s"), shown("usd")
    assert [rate(v) for v in (0.27, 3.5, 114.4)] == ["0.27", "3.5", "114"]
    assert [dollars(v) for v in (0.0004, 0.034, 0.5, 12.03)] == ["$0.0004", "$0.034", "$0.50", "$12.03"]
    row = next(row for row in ROWS if row.key == "output_tokens_per_s")
    long = at("long", {**ONE, "prompt_tokens": 8191, "output_tokens": 1})
    value = long.figures[row.key].value
    assert value is not None and 0.1 < value < 9.9
    assert shown(row.unit)(value) == f"{value:.2g}"


def test_a_name_that_ends_in_first_keeps_its_column() -> None:
    columns = [at("x", ONE), at("x (first)", {**ONE, "gpu": "h200"})]
    line = table(columns, columns[0])[0]
    assert len(line) == 3
    assert [name.rstrip("\u200b") for name in list(line)[1:]] == ["x (first)", "x (first)"]


def test_refused_and_unknown_are_told_apart() -> None:
    fits, big, unknown = at("fits", ONE), at("big", BIG), at("unknown", NO_MODEL)
    said = headline([fits, big, unknown], LOAD)
    assert said.endswith(". 1 of 3 cannot be served. 1 of 3 has no speed.")
    assert headline([big], LOAD) == f"None of 1 can be served at {LOAD}."
    assert headline([big, unknown], LOAD) == f"None of 2 has a speed at {LOAD}."
    assert headline([replace(fits, load=None), fits], LOAD).endswith(". 1 of 2 has no speed.")


def test_a_load_with_a_fraction_is_shown_with_it() -> None:
    assert words_of(1.5) == "1.5 requests in flight"
    assert words_of(32.0) == "32 requests in flight"


def test_a_bad_set_in_the_link_says_what_is_valid() -> None:
    (price,) = opened({"name": "x", "scenario": ONE, "price_usd_per_gpu_hour": 0}).error
    assert "is '0'; expected " in str(price.value).replace("\\", "")
    (none,) = opened().error
    assert "No scenarios are in the link" in str(none.value)


def test_one_point_is_one_point() -> None:
    points = measured_points([{"concurrency": 8, "tpot_s": 0.011}])
    entry = Entry(name="x", scenario=Scenario.parse(ONE), measured=points)
    one = column(entry, concurrency=8)
    assert table([one], one)[-1]["x (first)"].startswith("1 own point, ")
    plan = AppTest.from_file(str(ROOT / "pages" / "plan.py"), default_timeout=30)
    asked = {f"plan_{key}": str(value) for key, value in ONE.items()}
    for key, value in {**asked, "plan_points": "8,11,", "plan_points_for": "x", "plan_tab": "Speed"}.items():
        plan.query_params[key] = value
    said = [str(item.value) for item in plan.run().warning]
    assert "1 point was entered for other inputs, so it is not used here." in said
