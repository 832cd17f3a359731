"""Compare: which of up to six scenarios is faster, holds more, costs less? Reads widgets, asks the core, draws."""

from __future__ import annotations

import streamlit as st

from capacity.compare import column
from capacity.errors import CapacityError
from pages.ui import compare_sections as sections
from pages.ui.compare_inputs import sidebar
from pages.ui.compare_state import pinned, settle_set, typed


def render() -> None:
    """The page."""
    st.set_page_config(page_title="Compare · Waterline")
    settle_set()
    sidebar()
    entries = pinned()
    problem = None
    load: float | None = 32.0
    ttft = tpot = None
    try:
        text = str(st.session_state.get("cmp_load") or "").strip()
        load = None if text.lower() == "max" else typed("cmp_load", "requests in flight", 1, 1e6) or 32.0
        ttft = typed("cmp_ttft", "the TTFT limit", 0.001, 1e7, scale=1e-3)
        tpot = typed("cmp_tpot", "the TPOT limit", 0.001, 1e7, scale=1e-3)
    except CapacityError as error:
        problem = str(error)
    columns = [column(one, concurrency=load) for one in entries]
    sections.head(columns, load)
    sections.problem(problem)
    if not entries:
        sections.empty()
        return
    sections.answer(columns, load)
    sections.details(columns, load, ttft_s=ttft, tpot_s=tpot)


render()
