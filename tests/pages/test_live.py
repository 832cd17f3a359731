"""The Live page as AppTest sees it: states, controls, and no exception in any of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from capacity.intervals import Interval
from capacity.verdicts import Confidence, Evidence, Severity, verdict
from connectors import service as live
from connectors.incident_file import dump
from connectors.moment import EngineMoment, Moment
from connectors.poller import PollTarget
from connectors.service import LiveService, poll_target
from connectors.targets import Target

PAGE = str(Path(__file__).parents[2] / "pages" / "live.py")


def start(service: LiveService) -> LiveService:
    live.install(service)
    service.start()
    return service


@pytest.fixture
def demo() -> Iterator[LiveService]:
    found = start(LiveService(history_path=":memory:", interval_s=0.2, demo=True, demo_past_s=20.0))
    deadline = time.monotonic() + 15
    while found.view().answering < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    yield found
    live.install(None)
    found.stop()


@pytest.fixture
def empty() -> Iterator[LiveService]:
    found = start(LiveService(history_path=":memory:", demo=False))
    yield found
    live.install(None)
    found.stop()


def run() -> AppTest:
    page = AppTest.from_file(PAGE, default_timeout=30).run()
    assert not page.exception
    return page


def alerts(page: AppTest) -> str:
    return " ".join(a.value for kind in (page.success, page.info, page.warning, page.error) for a in kind)


def test_the_answer_comes_first_and_is_marked_demo(demo: LiveService) -> None:
    page = run()
    assert "DEMO" in alerts(page) and len([*page.success, *page.info, *page.warning, *page.error]) == 1
    assert [m.label for m in page.metric] == [
        "Fullest replica",
        "Running",
        "Waiting",
        "Output tokens/s",
        "Time to full",
    ]
    assert page.metric[0].value.endswith("%") and page.metric[0].help
    table = page.dataframe[0].value
    assert sorted(table["Replica"]) == ["demo-0", "demo-1", "demo-2"]
    assert all(state.split(" ", 1)[0] in "●○▲■" for state in table["State"])


def test_the_incident_is_picked_on_the_page(demo: LiveService) -> None:
    page = run()
    page.selectbox(key="live_incident").select("ramp").run()
    assert not page.exception
    assert demo.demo is not None and demo.demo.incident_name == "ramp"


def test_pause_keeps_what_is_on_screen(demo: LiveService) -> None:
    page = run()
    page.toggle(key="live_pause").set_value(True).run()
    before = [m.value for m in page.metric]
    time.sleep(2.0)
    page.run()
    assert [m.value for m in page.metric] == before
    assert any("Paused" in c.value for c in page.caption)


@pytest.mark.parametrize("window", ["5 min", "1 h", "7 d"])
def test_every_window_draws(demo: LiveService, window: str) -> None:
    page = run()
    page.session_state["live_window"] = window
    page.run()
    assert not page.exception and len(page.metric) == 5


def test_wall_mode_shows_less(demo: LiveService) -> None:
    page = run()
    page.toggle(key="live_wall").set_value(True).run()
    assert not page.exception and not page.dataframe and not page.metric


def test_no_target_teaches_how_to_add_one(empty: LiveService) -> None:
    page = run()
    assert "Nothing is being watched" in alerts(page)
    assert "[[targets]]" in page.code[0].value
    page.button(key="live_empty_demo").click().run()
    assert not page.exception and empty.demo is not None


def test_stopping_the_demonstration_leads_back(demo: LiveService) -> None:
    page = run()
    page.button(key="live_demo_stop").click().run()
    assert not page.exception and "Nothing is being watched" in alerts(page)


def test_a_pool_that_is_down_says_so_without_a_number() -> None:
    targets: list[PollTarget] = [poll_target(Target(name="gone", url="http://127.0.0.1:9/metrics"))]
    found = start(LiveService(targets, history_path=":memory:", interval_s=0.2))
    try:
        deadline = time.monotonic() + 15
        while found.view().targets[0].reason is None and time.monotonic() < deadline:
            time.sleep(0.05)
        page = run()
        assert "refused" in alerts(page) and "DEMO" not in alerts(page)
        assert {m.value for m in page.metric} == {"–"}
        assert page.dataframe[0].value["Running"].isna().tolist() == [True]
    finally:
        live.install(None)
        found.stop()


def test_a_link_stands_still_and_leads_back(demo: LiveService) -> None:
    page = AppTest.from_file(PAGE, default_timeout=30)
    page.query_params["live_until"] = f"{time.time() - 2:.0f}"
    page.run()
    assert not page.exception and "DEMO" in alerts(page)
    assert any("Standing still" in c.value for c in page.caption)
    assert page.metric[0].label == "KV peak" and page.metric[0].value.endswith("%")
    assert "Healthy" in alerts(page) and "Found at" in alerts(page)
    found = page.dataframe[0].value
    assert list(found["Replica"]) == ["demo-0", "demo-1", "demo-2"] and set(found["State"]) == {"● healthy"}
    page.button(key="live_back").click().run()
    assert not page.exception and page.metric[0].label == "Fullest replica"


def test_a_link_to_a_time_without_readings_says_so(demo: LiveService) -> None:
    page = AppTest.from_file(PAGE, default_timeout=30)
    page.query_params["live_until"] = "1000"
    page.run()
    assert not page.exception and "No reading is kept" in alerts(page)


@pytest.mark.parametrize("asked", ["nan", "-inf", "-5", "yesterday", ""])
def test_a_link_to_no_time_says_so_and_shows_live(demo: LiveService, asked: str) -> None:
    page = AppTest.from_file(PAGE, default_timeout=30)
    page.query_params["live_until"] = asked
    page.run()
    assert not page.exception and "is no time" in page.warning[0].value
    assert page.metric[0].label == "Fullest replica"


def test_before_and_after_a_marker(demo: LiveService) -> None:
    assert demo.history is not None
    demo.history.mark(time.time() - 1, "my change")
    page = run()
    table = page.dataframe[1].value
    assert list(table.columns) == ["Figure", "Before", "After"] and "KV peak" in set(table["Figure"])


def test_alert_rules_and_dashboard_can_be_downloaded(demo: LiveService) -> None:
    page = run()
    labels = [b.label for b in page.get("download_button")]
    assert "Alert rules for Prometheus" in labels and "Dashboard for Grafana" in labels


def test_a_saved_file_shows_what_was_found_then(empty: LiveService) -> None:
    one = Interval(
        target="pool-a",
        engine="0",
        model_name="m",
        end_s=1005.0,
        seconds=5.0,
        counted_s=5.0,
        values={"kv_usage": 0.97, "waiting": 12.0, "running": 30.0},
        increments={"generation_tokens": 500.0},
    )
    found = verdict(
        "KV-bound",
        Severity.CRITICAL,
        Confidence.HIGH,
        "KV-bound: 97.0% of the KV cache is in use and 12 requests wait for blocks",
        Evidence(text="KV 97.0%", metric="vllm:kv_cache_usage_perc"),
    )
    moment = Moment(at_s=1005.0, verdict=found, engines=(EngineMoment(name="pool-a", verdict=found),))
    data = dump([one], start_s=705.0, end_s=1005.0, markers=[], moment=moment)
    page = run()
    page.file_uploader(key="live_open").upload("incident.json.gz", data).run()
    assert not page.exception
    assert "KV-bound: 97.0%" in page.error[0].value and "DEMO" not in alerts(page)
    assert "--gpu-memory-utilization" in page.error[0].value
    words = " ".join(m.value for m in page.markdown)
    assert "vllm:kv_cache_usage_perc" in words and "--kv-cache-dtype fp8" in words
    assert page.dataframe[0].value["State"].tolist() == ["■ KV-bound"]
    older = dump([one], start_s=705.0, end_s=1005.0, markers=[])
    page.file_uploader(key="live_open").set_value([]).upload("older.json.gz", older).run()
    assert not page.exception and "not kept" in alerts(page)
