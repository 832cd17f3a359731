"""The Live page's figures, table, reasons and files as text, from views with known values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from capacity.forecast import Forecast
from capacity.live_series import PoolSeries
from capacity.telemetry import Signals, State, Value
from capacity.verdicts import NAMES, Confidence, Severity, verdict
from connectors.live_view import EngineView, LiveView
from pages.ui import live_charts as charts
from pages.ui import live_figures, live_head, live_table, live_why
from pages.ui import live_format as fmt
from pages.ui.live_names import brief, named, short_names
from pages.ui.live_runbook import advice
from pages.ui.live_sections import who
from pages.ui.live_words import plain

KNOWN: dict[str, Any] = {
    "kv_usage": 0.5,
    "running": 12.0,
    "waiting": 0.0,
    "prompt_tokens_per_s": 2345.6,
    "generation_tokens_per_s": 1331.0,
    "preemptions_per_s": 0.034,
    "rejections_per_s": 0.0,
}
HEALTHY = ("healthy", Severity.OK, "healthy: requests are served with room in the KV cache")
FULL = ("KV-bound", Severity.CRITICAL, "KV-bound: 99.0% of the KV cache is in use and 7 requests wait")


def signals(**changes: Any) -> Signals:
    values = {name: Value(value=v, metric=f"vllm:{name}") for name, v in (KNOWN | changes).items()}
    for family in ("ttft_s", "itl_s"):
        for p, v in (("p50", 0.1), ("p90", 0.2), ("p99", 0.5)):
            values.setdefault(f"{family}.{p}", Value(value=v, count=9.0))
    values.setdefault("waiting_by_reason", Value(reason="not exported by this release"))
    return Signals(values=values, seconds=60.0)


def engine(
    name: str, said: tuple[str, Severity, str] = HEALTHY, *, forecast: Forecast | None = None, **changes: Any
) -> EngineView:
    return EngineView(
        name=name,
        target=name,
        engine="0",
        demo=False,
        model_name="m",
        release="0.32",
        verdict=verdict(said[0], said[1], Confidence.HIGH, said[2]),
        signals=signals(**changes),
        forecast=forecast,
        age_s=1.0,
    )


def view(*engines: EngineView, **pool: Any) -> LiveView:
    each = {e.name: e.signals.number("kv_usage") for e in engines if e.signals}
    found = signals(**pool)
    values = dict(found.values) | {
        "kv_usage": Value(value=max(v for v in each.values() if v is not None), by_engine=each)
    }
    return LiveView(
        at_s=1000.0,
        engines=engines,
        targets=(),
        pool=Signals(values=values, seconds=60.0),
        verdict=engines[0].verdict,
        waiting_for=(),
    )


def figure(found: LiveView, name: str) -> live_figures.Figure:
    return next(one for one in live_figures.headline(found) if one.name == name)


def test_the_fullest_replica_is_named_with_the_emptiest_beside_it() -> None:
    found = figure(view(engine("a", kv_usage=0.2), engine("b", kv_usage=0.97)), "Fullest replica")
    assert (found.value, found.note) == ("97 %", "b, lowest 20 %")


def test_waiting_is_told_by_reason() -> None:
    reasons = {"capacity": 30.0, "deferred": 2.0}
    found = figure(view(engine("a"), waiting=32.0, waiting_by_reason=reasons), "Waiting")
    assert (found.value, found.note) == ("32", "30 for capacity, 2 for deferred")
    assert figure(view(engine("a"), waiting=3.0), "Waiting").note == "reason not told"
    assert figure(view(engine("a")), "Waiting").note == "nothing waits"
    assert figure(view(engine("a"), waiting=None), "Waiting").note is None


def test_input_stands_beside_output() -> None:
    found = figure(view(engine("a")), "Output tokens/s")
    assert (found.value, found.note) == ("1,331", "input 2,346")


@pytest.mark.parametrize(
    ("forecasts", "value", "note"),
    [
        ([Forecast(expected_s=180, low_s=130, high_s=300), Forecast(reason="KV usage is falling")], "3 min", "a, 2-5 min"),
        ([Forecast(reason="KV usage is falling"), Forecast(reason="KV usage is not rising")], "not filling", "steady or falling"),
        ([Forecast(reason="KV usage is falling"), Forecast(reason="too noisy: the scatter hides it")], "–", "b: no clear trend"),
        ([Forecast(reason="too few scrapes: 2 over 4 s; 5 over 10 s are needed"), None], "–", "a: too few scrapes"),
        ([None, None], "–", "KV usage not known"),
    ],
)  # fmt: skip
def test_time_to_full_or_why_not(forecasts: list[Forecast | None], value: str, note: str) -> None:
    found = view(*(engine(name, forecast=f) for name, f in zip("ab", forecasts, strict=True)))
    told = figure(found, "Time to full")
    assert (told.value, told.note) == (value, note)


def test_a_full_replica_is_full_now() -> None:
    told = figure(view(engine("a"), engine("b", kv_usage=0.99)), "Time to full")
    assert (told.value, told.note) == ("full", "b")


def test_a_replica_that_stands_still_has_no_time_to_full() -> None:
    rising = Forecast(expected_s=60, low_s=40, high_s=180)
    stalled = ("stalled", Severity.CRITICAL, "stalled: no token for 22 s")
    found = view(
        engine("a", stalled, forecast=rising, kv_usage=0.99),
        engine("b", forecast=Forecast(reason="KV usage is falling")),
    )
    told = figure(found, "Time to full")
    assert told.value == "not filling" and "a: stalled" in (told.tip or "")
    alone = figure(view(engine("a", stalled, forecast=rising)), "Time to full")
    assert (alone.value, alone.note) == ("–", "no replica serves")


def test_a_total_says_which_replica_is_missing() -> None:
    found = view(engine("a"), running=12.0)
    assert found.pool is not None
    parts = Value(value=12.0, state=State.PARTIAL, reason="without b, c; gone", by_engine={"a": 12.0})
    pool = Signals(values=dict(found.pool.values) | {"running": parts}, seconds=60.0)
    assert figure(replace(found, pool=pool), "Running").note == "without 2 replicas"


def test_one_target_is_called_by_its_name_and_not_by_its_engines_number() -> None:
    alone = replace(engine("0", FULL, kv_usage=0.99), target="gpu-a")
    found = named(view(alone))
    assert [e.name for e in found.engines] == ["gpu-a"]
    assert figure(found, "Fullest replica").note == "gpu-a" and figure(found, "Time to full").note == "gpu-a"
    two = named(view(alone, replace(engine("1"), target="gpu-a", engine="1")))
    assert [e.name for e in two.engines] == ["gpu-a/0", "gpu-a/1"]
    same = view(engine("a"), engine("b"))
    assert named(same) is same


def test_long_names_lose_what_they_share_in_figures_table_and_verdict() -> None:
    whole = [f"eu-west-llama70b-replica-{i}.prod.svc" for i in (1, 11)]
    told = ("imbalanced", Severity.CRITICAL, f"imbalanced: {whole[1]} is loaded while {whole[0]} has room")
    found, names = brief(view(engine(whole[1], told, kv_usage=0.9), engine(whole[0])))
    assert names == {whole[0]: "replica-1", whole[1]: "replica-11"}
    assert found.verdict is not None
    assert found.verdict.summary == "imbalanced: replica-11 is loaded while replica-1 has room"
    assert figure(found, "Fullest replica").note == "replica-11, lowest 50 %"
    assert list(live_table.frame(live_table.ordered(found))["Replica"]) == ["replica-11", "replica-1"]
    assert short_names(["a", "b"]) == {} and short_names([whole[0]]) == {}
    assert short_names(["x" * 30, "x" * 30 + "y"]) == {}


def test_a_replica_keeps_its_colour_while_others_come_and_go() -> None:
    keys = [(f"r{i}", "0") for i in range(12)]
    palette = [f"#{i}" for i in range(6)]
    assert charts._colours(keys[:3], keys, palette)[keys[1]] == "#1"
    assert charts._colours([keys[7], keys[1], keys[9]], keys, palette)[keys[1]] == "#1"
    twelve = PoolSeries(
        times_s=(1.0,), step_s=1.0, kv_usage={k: (0.1 + i / 20,) for i, k in enumerate(keys)}, totals={},
        rates={}, tokens_per_step=(), prefix_hit_rate=(), gpu={}, known=(12,), engines=12,
    )  # fmt: skip
    option = charts.waterline(twelve, charts.Frame(start_s=0, end_s=1), act=0.8, critical=0.95, title="t")
    drawn = [line["lineStyle"]["color"] for line in option["series"][:6]]
    assert option["series"][5]["name"] == "highest of 7 others" and len(set(drawn)) == 6
    assert charts.LINES[-1] not in drawn
    assert len(set(charts._colours([keys[i] for i in (0, 1, 6, 7, 8)], keys, palette).values())) == 5


def test_the_banner_names_replicas_that_the_verdict_does_not() -> None:
    full = verdict(FULL[0], FULL[1], Confidence.HIGH, FULL[2])
    fine = verdict(*HEALTHY[:2], Confidence.HIGH, HEALTHY[2])
    assert who(full, [("0", full), ("1", full)]) == "all 2 replicas"
    assert who(full, [("0", full), ("1", fine)]) == "0"
    told = replace(full, summary=f"{full.summary}: 1 of 2 engines (b)")
    assert who(told, [("a", fine), ("b", full)]) is None and who(fine, [("a", fine)]) is None


def test_numbers_of_the_table_sort_and_unknown_is_missing() -> None:
    order = live_table.ordered(view(engine("a", running=9.0), engine("b", FULL, running=None, kv_usage=0.99)))
    data = live_table.frame(order)
    assert list(data["Replica"]) == ["b", "a"] and list(data["State"]) == ["■ KV-bound", "● healthy"]
    assert data["Running"].isna().tolist() == [True, False] and data["Running"].iloc[1] == 9.0
    assert data["Tok/s in"].tolist() == [2346.0, 2346.0] and data["Preempt/s"].tolist() == [0.034, 0.034]
    assert str(data["Waiting"].dtype) == "Float64"


def test_rows_stay_where_they_were_clicked() -> None:
    found = view(engine("a"), engine("b", FULL, kv_usage=0.99), engine("c"))
    order = live_table.kept(live_table.ordered(found), ["c", "a"])
    assert [e.name for e in order] == ["c", "a", "b"]


def test_the_replicas_file_has_the_reason() -> None:
    data = live_table.full(view(engine("b", FULL, kv_usage=0.99)))
    assert data["why"].tolist() == [FULL[2]] and data["ttft_s_p99"].tolist() == [0.5]
    assert data["not_known"].tolist() == [None]
    assert data["kv_usage"].tolist() == [0.99] and data["demo"].tolist() == [False]


def test_replicas_with_the_same_trouble_share_a_line_and_fine_ones_have_none() -> None:
    found = live_why.lines(view(engine("a_1", FULL), engine("b", FULL), engine("c")))
    assert found == [
        "**a\\_1, b** :material/error: :red[**KV-bound**] 99.0% of the KV cache is in use and 7 requests wait"
    ]


def test_an_en_dash_in_the_table_has_its_reason_below() -> None:
    found = signals()
    dash = Value(state=State.NOT_EXPORTED, reason="no such metric")
    known = Signals(values=dict(found.values) | {"kv_usage": dash, "running": dash}, seconds=60.0)
    told = live_why.lines(view(replace(engine("a"), signals=known), engine("b")))
    assert told == ["**a** :gray[– KV in use, running: no such metric]"]


def test_every_verdict_has_its_page_of_the_runbook() -> None:
    found = advice()
    assert set(NAMES) <= set(found)
    for name in NAMES:
        assert found[name].meaning and found[name].look_first and found[name].wake_when, name
    told = "\n".join(live_why.explained(verdict("stalled", Severity.CRITICAL, Confidence.HIGH, "stalled: x")))
    assert "**Look first.**" in told and "**Wake somebody else when** always" in told


def test_help_names_every_verdict_and_both_lines() -> None:
    told = live_head.help_text()
    assert all(f"**{name}**" in told for name in NAMES) and "(80 %)" in told and "(95 %)" in told


def test_a_chart_as_a_file_has_units_and_utc() -> None:
    frame = charts.Frame(start_s=0.0, end_s=60.0)
    option = charts.lines("t", frame, [0.0, 2.0], {"p99": (0.25, None)}, unit="ms · merged", factor=1000.0)
    assert charts.csv(option) == "time_utc,p99 (ms)\n1970-01-01T00:00:00Z,250.0\n1970-01-01T00:00:02Z,\n"
    assert option["tooltip"]["valueFormatter"] == "%,.1f ms"
    assert charts.csv(charts.message("t", frame, "nothing")) == ""


def test_a_window_link_names_its_end_and_its_zone_is_the_browsers() -> None:
    shown = live_head.Shown(
        window="15 min", end_s=None, saved=False, utc=True, zone=None, snapshot=dict, replicas=str,
        incident=bytes, rules=str, dashboard=str,
    )  # fmt: skip
    assert (
        live_head.address("http://h:8501/live?live_wall=true", shown, 1000.4)
        == "http://h:8501/live?live_window=15+min&live_until=1000&live_utc=true"
    )
    assert fmt.clock(1_796_089_036, zone="Europe/Zurich").endswith("CET")
    assert fmt.clock(0, zone="No/Where")[:10] in ("1970-01-01", "1969-12-31")


def test_a_marker_has_its_words_on_the_waterline_whole() -> None:
    frame = charts.Frame(
        start_s=0.0, end_s=100.0, markers=[(10.0, "raised max_num_seqs to 256"), (90.0, "x" * 60)]
    )
    series = PoolSeries(
        times_s=(50.0, 100.0), step_s=50.0, kv_usage={("a", "0"): (0.5, 0.6), ("gone", "0"): (None, None)},
        totals={}, rates={}, tokens_per_step=(), prefix_hit_rate=(), gpu={}, known=(1, 1), engines=2,
    )  # fmt: skip
    option = charts.waterline(series, frame, act=0.8, critical=0.95, title="t")
    marks = option["series"][-1]["markLine"]
    assert [m["name"] for m in marks["data"]] == ["raised max_num_seqs to 256", "x" * 39 + "…"]
    assert [m["label"]["align"] for m in marks["data"]] == ["left", "right"] and marks["label"]["show"]
    assert [s["name"] for s in option["series"] if "name" in s] == ["a"]
    assert "readings begin" in option["title"]["subtext"]
    small = charts.lines("t", frame, [50.0], {"running": (1.0,)}, unit="requests")
    assert small["series"][-1]["markLine"]["label"]["show"] is False


def test_marks_of_others_do_not_become_markdown() -> None:
    assert plain("$a$ :red[x] KV-bound: 1") == "\\$a\\$ \\:red\\[x\\] KV-bound: 1"


def test_the_waterline_of_no_reading_is_empty_and_said() -> None:
    nothing = PoolSeries(
        times_s=(), step_s=2.0, kv_usage={}, totals={}, rates={}, tokens_per_step=(), prefix_hit_rate=(),
        gpu={}, known=(), engines=0,
    )  # fmt: skip
    option = charts.waterline(nothing, charts.Frame(start_s=0, end_s=1), act=0.8, critical=0.95, title="t")
    assert isinstance(option["dataset"]["source"], pd.DataFrame) and charts.csv(option).startswith("time_utc")
