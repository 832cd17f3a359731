"""The Plan page laid out in a browser: nothing clipped in the sidebar, one row of buttons, one first heading."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

WIDTHS = (1280, 1440)


@pytest.fixture(params=WIDTHS)
def page(chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of one width."""
    context = chromium.new_context(viewport={"width": request.param, "height": 900})
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("link", ["", "?plan_source=Form", "?plan_source=Config"])
def test_every_input_ends_inside_its_card(page: Page, app_url: str, link: str) -> None:
    page.goto(f"{app_url}/{link}")
    page.wait_for_selector("[data-testid=stMain] h1", timeout=60_000)
    for group in ("hardware", "engine", "workload"):
        page.locator(f".st-key-plan_fold_{group} summary").click()
    page.wait_for_selector(".st-key-plan_output_tokens_cv input:visible")
    inner = "[data-testid=stExpanderDetails]"
    ends = page.eval_on_selector_all(
        "[data-testid=stSidebar] details [data-testid=stTextInput], "
        "[data-testid=stSidebar] details [data-testid=stSelectbox]",
        "all => all.filter(one => one.offsetParent).map(one => [one.innerText.split('\\n')[0], "
        f"one.closest('{inner}').getBoundingClientRect().right - one.getBoundingClientRect().right])",
    )
    assert len(ends) >= 12
    assert [one for one in ends if one[1] < 8] == []


def test_buttons_share_a_row_and_the_title_is_the_only_first_heading(page: Page, app_url: str) -> None:
    page.goto(app_url)
    page.wait_for_selector("[data-testid=stMetric]", timeout=60_000)
    tops = [
        page.get_by_test_id("stMain").get_by_role("button", name=name, exact=True).bounding_box()
        for name in ("Share", "Download", "Help")
    ]
    tops.append(
        page.get_by_test_id("stMain").get_by_role("button", name="Pin to Compare").first.bounding_box()
    )
    assert len({round(box["y"]) for box in tops if box}) == 1 and all(tops)
    assert page.locator("h1").all_inner_texts() == ["Plan"]
