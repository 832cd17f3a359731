"""The Simulate page in a real Chromium: the answer above the fold, every tab, a phone, a long run cancelled."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser
WAIT_MS = 60_000


def test_compares_draws_and_cancels(page: Page, app_url: str) -> None:
    page.goto(app_url)
    page.get_by_role("link", name="Simulate").click()
    banner = page.get_by_text("A serves most within the objective")
    expect(banner).to_be_visible(timeout=WAIT_MS)
    chart = page.locator(".st-key-sim_chart_timeline svg.main-svg").first
    expect(chart).to_be_visible(timeout=WAIT_MS)
    box = chart.bounding_box()
    assert box is not None and box["y"] < 560  # the chart begins above the fold

    for tab, key in (("Arrival rate", "sweep"), ("Single requests", "requests"), ("Block map", "blocks")):
        page.get_by_role("tab", name=tab).click()
        expect(page.locator(f".st-key-sim_chart_{key} svg.main-svg").first).to_be_visible(timeout=WAIT_MS)
    before = page.get_by_text("blocks used by").inner_text()
    page.get_by_role("slider").press("End")
    expect(page.get_by_text("blocks used by")).not_to_have_text(before, timeout=WAIT_MS)
    page.get_by_role("tab", name="Results").click()


def test_a_long_run_is_cancelled_each_time(page: Page, app_url: str) -> None:
    """Clients that come back a thousand times keep a run going for minutes, so no click comes too late."""
    page.goto(f"{app_url}/simulate")
    first = page.get_by_text("A serves most within the objective")
    expect(first).to_be_visible(timeout=WAIT_MS)
    inputs = "sim_rate=40&sim_retry=fixed&sim_max_retries=1000"
    page.goto(f"{page.url}&{inputs}" if "?" in page.url else f"{page.url}?{inputs}")
    answer = page.get_by_text("within the objective").first
    expect(answer).to_be_visible(timeout=WAIT_MS)
    page.locator(".st-key-sim_fold_workload summary").click()
    field = page.locator(".st-key-sim_num_requests input")
    field.fill("200000")
    field.press("Enter")
    cancel = page.get_by_role("button", name="Cancel")
    expect(cancel).to_be_visible(timeout=WAIT_MS)
    page.get_by_role(
        "link", name="Compare"
    ).click()  # away in mid-run and back: the last result beside the bar
    expect(page.get_by_role("heading", name="Compare")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("link", name="Simulate").click()
    expect(cancel).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_text("Last run")).to_be_visible(timeout=WAIT_MS)
    expect(page.locator(".st-key-sim_waiting_timeline svg.main-svg").first).to_be_visible(timeout=WAIT_MS)
    stopped = page.get_by_text("The run was stopped before its end")
    for again in (True, True, False):
        cancel.click(timeout=WAIT_MS)
        expect(stopped).to_be_visible(timeout=WAIT_MS)
        if again:
            page.get_by_role("button", name="Run again").click()
    expect(page.get_by_text("Last run")).to_be_visible()
    if not field.is_visible():
        page.locator(".st-key-sim_fold_workload summary").click()
    field.fill("10")
    field.press("Enter")
    expect(stopped).to_have_count(0, timeout=WAIT_MS)
    expect(answer).to_be_visible(timeout=WAIT_MS)


def test_one_column_on_a_phone(chromium: Browser, app_url: str) -> None:
    context = chromium.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    one = context.new_page()
    one.goto(f"{app_url}/simulate")
    expect(one.get_by_text("A serves most within the objective")).to_be_visible(timeout=WAIT_MS)
    assert one.evaluate("document.documentElement.scrollWidth") <= 390
    context.close()
