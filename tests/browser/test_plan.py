"""The Plan page in a real Chromium: above the fold, one column on a phone, a link that travels, a quiet console."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser
WAIT_MS = 60_000
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def figures(page: Page) -> list[str]:
    """The five headline figures once they are there."""
    expect(page.get_by_test_id("stMetricValue")).to_have_count(5, timeout=WAIT_MS)
    return page.get_by_test_id("stMetricValue").all_inner_texts()


def open_group(page: Page, name: str) -> None:
    page.locator(f".st-key-plan_fold_{name} summary").click()


def set_length(page: Page, text: str) -> None:
    field = page.locator(".st-key-plan_max_model_len input")
    field.fill(text)
    field.press("Enter")


def test_answer_bill_and_tabs_are_above_the_fold(page: Page, app_url: str) -> None:
    page.goto(app_url)
    figures(page)
    chart = page.locator(".st-key-plan_chart_memory :is(canvas, svg[width])").first
    chart.wait_for(timeout=WAIT_MS)
    for place in (
        page.get_by_test_id("stAlert"),
        page.get_by_test_id("stMetric").last,
        page.locator(".st-key-plan_chart_memory"),
        page.get_by_role("tab", name="Length"),
        page.get_by_text("Share", exact=True),
        page.locator(".st-key-plan_fold_workload"),
    ):
        box = place.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900
        assert box["x"] + box["width"] <= 1440


def test_on_a_phone_one_column_with_the_answer_first(chromium: Browser, app_url: str) -> None:
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(app_url)
    figures(page)
    alert = page.get_by_test_id("stAlert").bounding_box()
    assert alert is not None and alert["y"] < 400
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    sidebar = page.get_by_test_id("stSidebar").bounding_box()
    assert sidebar is None or sidebar["x"] + sidebar["width"] <= 0
    page.get_by_test_id("stExpandSidebarButton").click()
    expect(page.locator(".st-key-plan_fold_engine")).to_be_in_viewport(timeout=WAIT_MS)
    context.close()


def test_the_link_opens_the_same_page_in_another_browser(page: Page, chromium: Browser, app_url: str) -> None:
    page.goto(app_url)
    before = figures(page)
    open_group(page, "engine")
    set_length(page, "12000")
    expect(page.get_by_test_id("stMetricValue").first).not_to_have_text(before[0], timeout=WAIT_MS)
    expect(page).to_have_url(re.compile("plan_max_model_len=12000"), timeout=WAIT_MS)
    assert "plan_engine_version=" in page.url
    assert "plan_model=" in page.url
    after = figures(page)
    other = chromium.new_context().new_page()
    other.goto(page.url)
    assert figures(other) == after
    other.context.close()


def test_share_holds_the_link_of_a_pasted_config(page: Page, chromium: Browser, app_url: str) -> None:
    page.goto(f"{app_url}/?plan_source=Config&plan_gpu=l4&plan_engine_version=0.11.0&plan_max_model_len=4096")
    area = page.locator(".st-key-plan_config_text textarea")
    area.fill(json.dumps(CONFIG), timeout=WAIT_MS)
    area.press("Control+Enter")
    after = figures(page)
    page.get_by_text("Share", exact=True).click()
    shared = page.get_by_test_id("stPopoverBody").locator("code").inner_text(timeout=WAIT_MS)
    assert shared.startswith(app_url)
    assert "plan_config=" in shared
    other = chromium.new_context().new_page()
    other.goto(shared.replace("\n", ""))
    assert figures(other) == after
    other.context.close()


def test_bad_input_is_a_sentence_and_stays(page: Page, app_url: str) -> None:
    page.goto(app_url)
    before = figures(page)
    open_group(page, "engine")
    set_length(page, "-5")
    expect(page.get_by_test_id("stAlert").first).to_contain_text("max_model_len is -5", timeout=WAIT_MS)
    assert page.locator(".st-key-plan_max_model_len input").input_value() == "-5"
    assert figures(page) == before
    expect(page.get_by_text("Last answer", exact=True)).to_be_visible()


def test_uploaded_config_and_back_to_an_example(page: Page, app_url: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    page.goto(f"{app_url}/?plan_source=Config&plan_gpu=l4&plan_engine_version=0.11.0&plan_max_model_len=4096")
    page.locator(".st-key-plan_upload input[type=file]").set_input_files(str(file), timeout=WAIT_MS)
    figures(page)
    assert '"hidden_size": 2048' in page.locator(".st-key-plan_config_text textarea").input_value()
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_test_id("stAlert").first).to_contain_text("Fits.", timeout=WAIT_MS)
    expect(page.locator(".st-key-plan_model input")).to_have_value(
        "meta-llama/Llama-3.1-8B-Instruct", timeout=WAIT_MS
    )
    expect(page).not_to_have_url(re.compile("plan_config="), timeout=WAIT_MS)


def test_downloads_hold_the_answer(page: Page, app_url: str) -> None:
    page.goto(app_url)
    shown = figures(page)
    page.get_by_text("Download", exact=True).click()
    with page.expect_download(timeout=WAIT_MS) as started:
        page.get_by_role("button", name="JSON: scenario and answer").click()
    found = json.loads(Path(started.value.path()).read_text())
    assert f"{found['kv_cache']['num_blocks']:,}" == shown[3]
    assert found["scenario"]["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    with page.expect_download(timeout=WAIT_MS) as started:
        page.get_by_role("button", name="Report: printable HTML").click()
    report = Path(started.value.path()).read_text()
    assert report.lstrip().lower().startswith("<!doctype html")
    assert "Llama-3.1-8B" in report


def test_charts_have_a_text_for_screen_readers(page: Page, app_url: str) -> None:
    page.goto(app_url)
    figures(page)
    labelled = page.locator('[aria-label*="weights take"], [alt*="weights take"]')
    expect(labelled.first).to_be_attached(timeout=WAIT_MS)
