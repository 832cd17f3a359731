"""The Compare page in a real Chromium: pin two plans, sort, sweep, cancel, a Pareto front, a link that travels, a phone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser
WAIT_MS = 60_000


def pin_two(page: Page, app_url: str) -> None:
    """The Plan page's first example at 8,192 and at 4,096 tokens, then the Compare page."""
    page.goto(app_url)
    values = page.get_by_test_id("stMetricValue")
    expect(values).to_have_count(5, timeout=WAIT_MS)
    page.get_by_role("button", name="Pin to Compare").click()
    expect(page.get_by_text("Compare holds 1 of 6")).to_be_visible(timeout=WAIT_MS)
    before = values.first.inner_text()
    page.locator(".st-key-plan_fold_engine summary").click()
    field = page.locator(".st-key-plan_max_model_len input")
    field.fill("4096")
    field.press("Enter")
    expect(values.first).not_to_have_text(before, timeout=WAIT_MS)
    page.get_by_role("button", name="Pin to Compare").click()
    expect(page.get_by_text("Compare holds 2 of 6")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("link", name="Compare", exact=True).click()
    expect(page.get_by_test_id("stTable").first).to_be_visible(timeout=WAIT_MS)


def table(page: Page) -> list[list[str]]:
    """The texts of the comparison's cells, row by row."""
    rows = page.get_by_test_id("stTable").first.locator("tr")
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


def choose(page: Page, key: str, option: str) -> None:
    field = page.locator(f".st-key-{key}").get_by_role("combobox")
    field.click()
    field.fill(option)
    page.get_by_role("option", name=option, exact=True).click()


def chart(page: Page, key: str) -> None:
    expect(page.locator(f".st-key-{key}_chart svg.main-svg").first).to_be_visible(timeout=WAIT_MS)


def test_pin_compare_sort_and_the_same_page_elsewhere(page: Page, chromium: Browser, app_url: str) -> None:
    pin_two(page, app_url)
    chart(page, "cmp_pareto")
    first = table(page)
    assert [name.endswith("(first)") for name in first[0][1:]] == [True, False]
    lengths = next(row for row in first if row[0] == "Max model length")
    assert lengths[1:] == ["8,192", "4,096"]
    guaranteed = next(row for row in first if row[0] == "Guaranteed requests")
    assert guaranteed[1].startswith("55") and guaranteed[2].startswith("110")
    assert "2.0 times, better" in guaranteed[2]

    choose(page, "cmp_sort", "Guaranteed requests")
    head = page.get_by_test_id("stTable").first.locator("th")
    expect(head.nth(2)).to_contain_text("(first)", timeout=WAIT_MS)
    expect(page).to_have_url(re.compile("cmp_sort="), timeout=WAIT_MS)
    swapped = table(page)

    load = page.locator(".st-key-cmp_load input")
    load.fill("64")
    load.press("Enter")
    limit = page.locator(".st-key-cmp_tpot input")
    limit.fill("12")
    limit.press("Enter")
    expect(page.get_by_text("Within TPOT 12.0 ms", exact=False).first).to_be_visible(timeout=WAIT_MS)
    chart(page, "cmp_pareto")
    expect(page.get_by_text("At 64 requests in flight", exact=False).first).to_be_visible(timeout=WAIT_MS)
    here = table(page)
    assert here[0] == swapped[0]
    expect(page).to_have_url(re.compile("cmp_load=64.*cmp_tpot=12|cmp_tpot=12.*cmp_load=64"), timeout=WAIT_MS)

    other = chromium.new_context(viewport={"width": 1440, "height": 900}).new_page()
    other.goto(page.url)
    expect(other.get_by_test_id("stTable").first).to_be_visible(timeout=WAIT_MS)
    chart(other, "cmp_pareto")
    expect(other.get_by_text("Within TPOT 12.0 ms", exact=False).first).to_be_visible(timeout=WAIT_MS)
    assert table(other) == here
    expect(other.locator(".st-key-cmp_fold_load summary")).to_contain_text("64 in flight")
    other.context.close()


def test_sweep_lines_heat_map_and_cancel(page: Page, app_url: str) -> None:
    pin_two(page, app_url)
    page.get_by_role("tab", name="Sweep").click()
    chart(page, "cmp_sweep")
    expect(page.get_by_text("TPOT goes from", exact=False).first).to_be_visible(timeout=WAIT_MS)
    choose(page, "cmp_y", "GPU")
    expect(page.locator(".st-key-cmp_sweep_chart .hm").first).to_be_attached(timeout=WAIT_MS)
    page.get_by_text("Lines", exact=True).click()
    expect(page.locator(".st-key-cmp_sweep_chart .scatterlayer .trace").nth(4)).to_be_attached(
        timeout=WAIT_MS
    )

    choose(page, "cmp_x", "Max sequences")
    values = page.locator(".st-key-cmp_xv input")
    values.fill(" ".join(str(n) for n in range(8, 508)))
    values.press("Enter")
    choose(page, "cmp_y", "Max model length")
    values = page.locator(".st-key-cmp_yv input")
    values.fill(" ".join(str(n) for n in range(2000, 6000, 10)))
    values.press("Enter")
    expect(page.get_by_text(re.compile(r"Planned [\d,]+ of 200,000"))).to_be_visible(timeout=WAIT_MS)
    stopped = page.get_by_text("Stopped after")
    for again in (True, True, False):  # the script that sees the click and the one that it ends overlap
        page.get_by_role("button", name="Cancel").click(timeout=WAIT_MS)
        expect(stopped).to_be_visible(timeout=WAIT_MS / 2)
        if again:
            page.get_by_role("button", name="Run the whole sweep").click()
    chart(page, "cmp_sweep")


def test_options_downloads_and_a_file_back_in(page: Page, app_url: str, tmp_path: Path) -> None:
    pin_two(page, app_url)
    page.get_by_role("tab", name="Options").click()
    expect(page.get_by_test_id("stTable")).to_have_count(4, timeout=WAIT_MS)
    with page.expect_download(timeout=WAIT_MS) as started:
        page.locator(".st-key-cmp_formats_table_csv button").click()
    lines = Path(started.value.path()).read_text().splitlines()
    assert len(lines) == 1 + 6 * 2 * 2 * 3 and "quality" in lines[0]

    page.get_by_text("Download", exact=True).click()
    with page.expect_download(timeout=WAIT_MS) as started:
        page.get_by_role("button", name="Report: printable HTML").click()
    assert Path(started.value.path()).read_text().startswith("<!doctype html")
    with page.expect_download(timeout=WAIT_MS) as started:
        page.get_by_role("button", name="File: scenarios and settings").click()
    kept = Path(started.value.path()).read_text()
    assert len(json.loads(kept)["scenarios"]) == 2
    page.keyboard.press("Escape")

    before = table(page)
    page.get_by_role("button", name="Remove all").click()
    expect(page.get_by_text("Put two to six scenarios side by side")).to_be_visible(timeout=WAIT_MS)
    page.locator(".st-key-cmp_fold_add summary").click()
    file = tmp_path / "compare.json"
    file.write_text(kept)
    page.locator(".st-key-cmp_upload input[type=file]").set_input_files(str(file), timeout=WAIT_MS)
    expect(page.get_by_test_id("stTable").first).to_be_visible(timeout=WAIT_MS)
    assert table(page) == before


def test_one_column_on_a_phone(chromium: Browser, app_url: str) -> None:
    context = chromium.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page = context.new_page()
    page.goto(f"{app_url}/compare")
    page.get_by_role("button", name="Compare formats of an example").click(timeout=WAIT_MS)
    expect(page.get_by_test_id("stTable").first).to_be_visible(timeout=WAIT_MS)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.get_by_test_id("stAlert").first.bounding_box()
    assert box is not None and box["y"] < 400
    wide = page.get_by_test_id("stTable").first.evaluate(
        "one => [...one.querySelectorAll('*'), one].some(part => part.scrollWidth > part.clientWidth + 5 && "
        "['auto', 'scroll'].includes(getComputedStyle(part).overflowX))"
    )
    assert wide  # six columns do not fit; they scroll inside the table and not the page
    names = page.locator(".st-key-cmp_table tr > :first-child")
    figures = page.locator(".st-key-cmp_table tr > :nth-child(2)")
    before = names.nth(3).bounding_box(), figures.nth(3).bounding_box()
    names.nth(3).evaluate(
        "cell => { for (let p = cell; p; p = p.parentElement) if (p.scrollWidth > p.clientWidth + 5 && "
        "['auto', 'scroll'].includes(getComputedStyle(p).overflowX)) { p.scrollLeft = 200; return } }"
    )
    after = names.nth(3).bounding_box(), figures.nth(3).bounding_box()
    assert before[0] and before[1] and after[0] and after[1]
    assert after[0]["x"] == pytest.approx(
        before[0]["x"], abs=1
    )  # the names stay, the figures move under them
    assert after[1]["x"] == pytest.approx(before[1]["x"] - 200, abs=2)
    assert names.nth(3).evaluate("cell => getComputedStyle(cell).backgroundColor") == "rgb(15, 20, 25)"
    context.close()
