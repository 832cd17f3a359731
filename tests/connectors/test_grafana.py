"""The Grafana dashboard: what an import needs, one data source variable, known units, no two ids alike."""

from __future__ import annotations

import json
import re
from itertools import combinations

import pytest

from connectors.grafana import dashboard, dashboard_file

UNITS = {
    "percentunit": "0 to 1",
    "short": "number",
    "s": "seconds",
    "cps": "counts/s",
    "suffix: tok/s": "own",
}
VARIABLE = {"type": "prometheus", "uid": "${datasource}"}


@pytest.fixture(scope="module", params=[None, "{job='vllm'}"])
def board(request: pytest.FixtureRequest) -> dict:
    found = json.loads(dashboard_file(request.param))
    assert found == dashboard(request.param)
    return found


def test_fields_that_an_import_needs(board: dict) -> None:
    for field, kind in {
        "title": str, "uid": str, "schemaVersion": int, "version": int, "panels": list, "templating": dict,
        "time": dict, "refresh": str, "tags": list, "annotations": dict, "timezone": str, "editable": bool,
    }.items():  # fmt: skip
        assert isinstance(board[field], kind), field
    assert "id" not in board, "the id is given by the server that imports it"
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", board["uid"])
    assert board["time"]["from"].startswith("now-") and board["time"]["to"] == "now"
    assert re.fullmatch(r"\d+[smh]", board["refresh"])


def test_one_data_source_variable_that_every_query_uses(board: dict) -> None:
    (variable,) = board["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    for panel in board["panels"]:
        assert panel["datasource"] == VARIABLE
        assert all(query["datasource"] == VARIABLE for query in panel["targets"])
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board))) == {"datasource", "__rate_interval"}


def test_no_two_panels_queries_or_places_alike(board: dict) -> None:
    panels = board["panels"]
    assert len({p["id"] for p in panels}) == len({p["title"] for p in panels}) == len(panels) == 8
    assert all(p["id"] > 0 for p in panels)
    for panel in panels:
        letters = [query["refId"] for query in panel["targets"]]
        assert letters == [chr(65 + i) for i in range(len(letters))]
        assert len({query["legendFormat"] for query in panel["targets"]}) == len(letters)
    for one, two in combinations([p["gridPos"] for p in panels], 2):
        apart = one["x"] + one["w"] <= two["x"] or two["x"] + two["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= two["y"] or two["y"] + two["h"] <= one["y"]
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in panels)


def test_panels_are_drawn_with_units_and_lines(board: dict) -> None:
    for panel in board["panels"]:
        assert panel["type"] == "timeseries" and panel["description"]
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in UNITS and defaults["min"] == 0
        assert defaults["custom"]["spanNulls"] is False, "a gap is a gap"
        steps = [step["value"] for step in defaults["thresholds"]["steps"]]
        assert steps in ([None], [None, 0.8, 0.95])
        shown = defaults["custom"]["thresholdsStyle"]["mode"]
        assert (shown == "line") is (len(steps) == 3)
        for query in panel["targets"]:
            assert query["expr"].count("(") == query["expr"].count(")") > 0
            assert query["legendFormat"]
    units = {p["title"].split(":")[0]: p["fieldConfig"]["defaults"]["unit"] for p in board["panels"]}
    assert (
        units["TTFT"] == units["ITL"] == "s"
        and units["Waterline"] == units["Prefix-cache hits"] == "percentunit"
    )
    assert units["Throughput"] == "suffix: tok/s" and units["Preemptions"] == "cps"
