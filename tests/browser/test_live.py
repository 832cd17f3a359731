"""The Live page in a real Chromium: it refreshes in place, stays quiet, and follows what the pool does."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
KEPT = (
    '[data-testid="stAlert"]',
    '[data-testid="stMetric"]',
    ".st-key-live_chart_waterline canvas",
    ".st-key-live_chart_queue canvas",
    '[data-testid="stDataFrame"] canvas',
)
pytestmark = pytest.mark.browser


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    home = tmp_path_factory.mktemp("home")
    environ = {k: v for k, v in os.environ.items() if not k.startswith("WATERLINE_")}
    environ |= {"WATERLINE_HISTORY": str(home / "history.duckdb"), "HOME": str(home)}
    log = (home / "server.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)],
        cwd=ROOT,
        env=environ,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{url}/api/health", timeout=5) as answer:
                    assert json.loads(answer.read())["demo"] is True
                break
            except OSError:
                assert process.poll() is None, (home / "server.log").read_text()[-2000:]
                assert time.monotonic() < deadline, (home / "server.log").read_text()[-2000:]
                time.sleep(0.3)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=20)
        log.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def noise() -> list[str]:
    return []


@pytest.fixture
def page(browser: Browser, server: str, noise: list[str]) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    tab = context.new_page()

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error":
            noise.append(message.text)

    tab.on("console", heard)
    tab.on("pageerror", lambda error: noise.append(str(error)))
    tab.goto(server)
    tab.get_by_test_id("stSidebarNav").get_by_role("link", name="Live").click(timeout=60_000)
    tab.wait_for_selector(".st-key-live_chart_queue canvas", timeout=60_000)
    yield tab
    context.close()


def pool(server: str) -> dict[str, object]:
    with urllib.request.urlopen(f"{server}/api/pool", timeout=10) as answer:
        return dict(json.loads(answer.read()))


def refreshes(page: Page, count: int) -> None:
    """Wait until the figures have been redrawn ``count`` times (output tokens/s moves with every scrape)."""
    figure = page.locator('[data-testid="stMetricValue"]').nth(3)
    for _ in range(count):
        before = figure.inner_text()
        page.wait_for_function(
            "before => document.querySelectorAll('[data-testid=\"stMetricValue\"]')[3].innerText !== before",
            arg=before,
            timeout=30_000,
        )


def test_three_refreshes_keep_every_node_and_the_console_quiet(page: Page, noise: list[str]) -> None:
    marked = page.evaluate(
        """selectors => selectors.map(s => {
            const found = [...document.querySelectorAll(s)];
            found.forEach((node, i) => { node.__mark = s + i; });
            return found.length;
        })""",
        list(KEPT),
    )
    assert all(marked), dict(zip(KEPT, marked, strict=True))
    refreshes(page, 3)
    kept = page.evaluate(
        "selectors => selectors.map(s => [...document.querySelectorAll(s)].filter(n => n.__mark).length)",
        list(KEPT),
    )
    assert dict(zip(KEPT, kept, strict=True)) == dict(zip(KEPT, marked, strict=True))
    assert noise == []


def test_every_panel_says_that_it_is_a_demonstration(page: Page) -> None:
    assert page.locator('[data-testid="stAlert"]').get_by_text("DEMO").count() == 1


def test_the_answer_is_above_the_fold(page: Page) -> None:
    for selector in (*KEPT[:3], KEPT[4]):
        box = page.locator(selector).first.bounding_box()
        assert box is not None and box["y"] >= 0 and box["y"] + min(box["height"], 60) <= 900, (selector, box)


def test_the_page_by_its_own_address_is_quiet_too(browser: Browser, server: str) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    tab = context.new_page()
    noise: list[str] = []
    missing: list[str] = []
    tab.on("console", lambda message: noise.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: noise.append(str(error)))
    tab.on("response", lambda answer: missing.append(answer.url) if answer.status >= 400 else None)
    for address in ("/live", "/live/", "/live?live_window=15+min"):
        tab.goto(f"{server}{address}")
        tab.wait_for_selector(".st-key-live_chart_queue canvas", timeout=60_000)
        assert tab.url.startswith(f"{server}/live")
    assert noise == [] and missing == []
    tab.get_by_test_id("stSidebarNav").get_by_role("link", name="Plan").click()
    tab.wait_for_url(re.compile(rf"^{re.escape(server)}/(\?|$)"), timeout=30_000)
    context.close()


def test_nothing_is_cut_off_on_a_phone(browser: Browser, server: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    tab = context.new_page()
    tab.goto(f"{server}/live")
    tab.wait_for_selector(".st-key-live_chart_waterline canvas", timeout=60_000)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    alert = tab.locator('[data-testid="stAlert"]').first.bounding_box()
    assert alert is not None and alert["y"] < 844 and alert["x"] + alert["width"] <= 390
    context.close()


def test_wall_mode_wraps_on_a_phone(browser: Browser, server: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    tab = context.new_page()
    tab.goto(f"{server}/live?live_wall=true")
    tab.wait_for_selector(".st-key-live_chart_waterline canvas", timeout=60_000)
    boxes = [tab.locator(f".st-key-live_wall_{i} canvas").first.bounding_box() for i in range(5)]
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    found = [(b["x"], b["y"], b["x"] + b["width"], b["y"] + b["height"]) for b in boxes if b is not None]
    assert len(found) == 5 and all(right <= 390 for _, _, right, _ in found)
    for i, (left, top, right, bottom) in enumerate(found):
        assert not any(left < r and x < right and top < b and y < bottom for x, y, r, b in found[i + 1 :]), (
            found
        )
    context.close()


def test_a_shared_link_stands_still_in_another_browser(page: Page, browser: Browser, server: str) -> None:
    opened_s = time.time()
    page.locator(".st-key-live_share button").first.click()
    link = page.locator('[data-testid="stPopoverBody"] code')
    page.wait_for_function(
        "() => /live_until=\\d+/.test(document.querySelector('[data-testid=\"stPopoverBody\"] code')?.innerText)",
        timeout=20_000,
    )
    page.wait_for_timeout(1000)
    address = link.inner_text()
    until = re.search(r"live_until=(\d+)", address)
    assert until is not None and opened_s - 5 <= int(until[1]) <= time.time() + 1
    context = browser.new_context(viewport={"width": 1440, "height": 900}, timezone_id="Asia/Tokyo")
    tab = context.new_page()
    tab.goto(address)
    tab.get_by_text("Standing still").wait_for(timeout=60_000)
    assert "JST" in tab.get_by_text("Standing still").inner_text()
    context.close()


def test_charts_and_table_come_as_files(page: Page) -> None:
    for key, head in (
        ("waterline", "time_utc,"),
        ("replicas", "replica,model,release,state"),
        ("ttft", "time_utc,p50 ("),
    ):
        with page.expect_download(timeout=20_000) as download:
            page.locator(f".st-key-live_csv_{key} button").click()
        lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith(head) and len(lines) > 3, lines[:2]


def test_a_clicked_replica_stays_in_focus(page: Page) -> None:
    box = page.locator('[data-testid="stDataFrame"]').first.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 17, box["y"] + 35 + 17)
    told = page.get_by_text("The charts show")
    told.wait_for(timeout=20_000)
    before = told.inner_text()
    refreshes(page, 2)
    assert told.inner_text() == before


def test_the_verdict_follows_the_incident(page: Page, server: str) -> None:
    alert = page.locator('[data-testid="stAlert"]').first
    page.get_by_test_id("stSidebar").get_by_role("combobox").click()
    page.get_by_role("option", name="down", exact=True).click()
    page.wait_for_function(
        "() => document.querySelector('[data-testid=\"stAlert\"]').innerText.includes('Down:')",
        timeout=40_000,
    )
    assert "demo-2" in alert.inner_text()
    view = pool(server)
    assert view["pool"]["verdict"]["name"] == "down"  # type: ignore[index]
    page.get_by_test_id("stSidebar").get_by_role("combobox").click()
    page.get_by_role("option", name="calm", exact=True).click()
    page.wait_for_function(
        "() => !document.querySelector('[data-testid=\"stAlert\"]').innerText.includes('Down:')",
        timeout=40_000,
    )
