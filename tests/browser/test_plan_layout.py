"""The Plan page laid out in a browser: nothing clipped in the sidebar, one row of buttons, one first heading."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

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
    main = page.get_by_test_id("stMain")
    buttons = [main.get_by_role("button", name=name, exact=True) for name in ("Share", "Download", "Help")]
    buttons.append(main.get_by_role("button", name="Pin to Compare").first)
    for (
        one
    ) in buttons:  # they are filled in after the answer; measured together, so that nothing moves in between
        expect(one).to_be_visible(timeout=60_000)
    tops = page.evaluate(
        "all => all.map(one => Math.round(one.getBoundingClientRect().y))",
        [one.element_handle() for one in buttons],
    )
    assert len(set(tops)) == 1, tops
    assert page.locator("h1").all_inner_texts() == ["Plan"]
