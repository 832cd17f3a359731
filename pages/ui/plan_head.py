"""The head of the Plan page: title, question, and at the top right pin, share, download, help."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from capacity.answer import answer
from capacity.fixes import fixes
from capacity.plan import Plan
from pages.ui.downloads import download
from pages.ui.format import flat, table_csv
from pages.ui.inputs import PlanInputs
from pages.ui.link import link
from pages.ui.page_head import page_head
from pages.ui.speed_section import pin_button, speed_link

TAB = "plan_tab"
HELP = """
**What this page answers.** How many requests the engine will hold at once, before anyone rents the GPU, by the
rules of the vLLM release you pick.

- **Guaranteed**: requests that fit when every one of them grows to `max_model_len`. Rounded down.
- **Typical**: requests that fit when lengths follow the workload on the left, while they grow during decode.
- **Seats**: `max_num_seqs`, the most requests the scheduler runs at once.
- **Block**: the unit in which the engine hands out KV cache. Requests hold whole blocks.
- **13.4 (12.9-14.1)**: an estimate with its 80 % interval. A figure without one is exact for its inputs.

The address bar holds every input: copy it, or use Share. Numbers take 8k (8,000) and 8K (8,192).
"""


def head() -> DeltaGenerator:
    """Title and question; returned is the place for ``buttons``, which are filled in once the answer is sent."""
    question = "What will this model on these GPUs hold, and what stops it from holding more?"
    return page_head("Plan", question, key="plan_head")


def buttons(place: DeltaGenerator, inputs: PlanInputs, shown: Plan | None) -> None:
    """Pin, share, download, help. ``shown``: the answer that Download and Pin are about, if there is one."""
    with place:
        pin_button(shown)
        with st.popover("Share", icon=":material/share:"):
            _share(inputs)
        with st.popover("Download", icon=":material/download:"):
            _downloads(inputs, shown)
        with st.popover("Help", icon=":material/help:"):
            st.markdown(HELP)


def _link(inputs: PlanInputs) -> tuple[str, bool]:
    """The page's link with the open tab, and whether it holds every input (a long config is left out)."""
    tab = st.session_state.get(TAB) or st.query_params.get(TAB)
    values = {**inputs.link_values(), **speed_link(), **({TAB: str(tab)} if tab else {})}
    whole = inputs.source != "Config" or not inputs.config_text or "plan_config" in values
    return link(st.context.url or "", values), whole


def _share(inputs: PlanInputs) -> None:
    address, whole = _link(inputs)
    st.markdown("This link opens the same page with the same inputs, release included.")
    st.code(address, language=None, wrap_lines=True)
    if not whole:
        st.warning(
            "The config is too long for a link: the link leaves it out. Send the JSON download with it.",
            icon=":material/warning:",
        )


def _downloads(inputs: PlanInputs, shown: Plan | None) -> None:
    if shown is None:
        st.caption("There is no answer to download yet.")
        return
    address, whole = _link(inputs)
    known = address if whole and st.context.url else None

    def as_json() -> str:
        return json.dumps(_answer(shown), indent=2)

    def as_csv() -> str:
        return table_csv(flat(_answer(shown)))

    _download("JSON: scenario and answer", as_json, "waterline-plan.json", "application/json")
    _download("CSV: one figure a line", as_csv, "waterline-plan.csv", "text/csv")
    _download(
        "Report: printable HTML", lambda: report(shown, page_url=known), "waterline-plan.html", "text/html"
    )


def report(plan: Plan, *, page_url: str | None) -> str:
    """The printable report, dated now. ``page_url``: the link that opens this plan, when there is one."""
    from capacity.export.report import report_html

    made_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return report_html(
        plan, fixes=fixes(plan) if plan.fit != "yes" else (), made_at=made_at, page_url=page_url
    )


def _answer(plan: Plan) -> dict[str, Any]:
    found = answer(plan, fixes=fixes(plan) if plan.fit != "yes" else ())
    return {"scenario": plan.resolved.scenario.to_json(), **found}


def _download(label: str, data: Any, name: str, mime: str) -> None:
    download(label, data, name, mime, key=f"plan_download_{name}", small=False)
