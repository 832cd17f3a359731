"""The Compare page on the screen: head, the answer in words, the table, then Pareto front, sweep and reasons."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from capacity.compare import ROWS, Column, frontier
from pages.ui import compare_table as tables
from pages.ui.compare_charts import pareto
from pages.ui.compare_options import options
from pages.ui.compare_parts import draw, ink, plain, table
from pages.ui.compare_state import LEFT_OUT, PROBLEM, SET, as_file, example, pinned, set_link, settings
from pages.ui.compare_sweep import sweep
from pages.ui.downloads import download
from pages.ui.format import first_upper, in_flight, table_csv
from pages.ui.link import link
from pages.ui.page_head import page_head

TABS = ("Pareto front", "Sweep", "Options", "Reasons and sources")
HELP = """
**What this page answers.** Which of up to six scenarios is faster, holds more, or costs less, at the same load.

- **First**: the scenario that the others are compared with. :green[12 % less, better] and
  :orange[12 % more, worse] mark figures, :blue[blue] is an input that differs.
- **Guaranteed** and **typical**: as on the Plan page, over all replicas.
- **13.4 ms (12.9-14.1 ms)**: an estimate with its 80 % interval. Errors of one model's variants go together, so a
  difference is surer than either interval alone.
- **$ per 1M output tokens**: price of all GPUs over output tokens/s at this load, at the geometric middle of the price
  range; the interval holds both ends of the price and of the speed. A price of your own narrows it.
- **Pareto front**: each line runs from one request in flight (right) to the most that runs (left). Points that another
  point of the same scenario beats on both axes are left out.

The address bar holds everything, and so does the file under Download, as long as it is short enough for a link.
"""


def words_of(load: float | None) -> str:
    """The load in words."""
    return "the most that each holds" if load is None else f"{in_flight(load)} requests in flight"


def head(columns: Sequence[Column], load: float | None) -> None:
    """Title, question, and at the top right share, download, help."""
    question = "Which of these scenarios is faster, holds more, or costs less?"
    with page_head("Compare", question, key="cmp_head"):
        with st.popover("Share", icon=":material/share:"):
            _share()
        with st.popover("Download", icon=":material/download:"):
            _downloads(columns, load)
        with st.popover("Help", icon=":material/help:"):
            st.markdown(HELP)


def _share() -> None:
    packed = set_link(pinned())
    st.markdown("This link opens the same page with the same scenarios and settings.")
    st.code(
        link(st.context.url or "", {**settings(), **({SET: packed} if packed else {})}),
        language=None,
        wrap_lines=True,
    )
    if pinned() and packed is None:
        st.warning(
            "The scenarios are too long for a link: it leaves them out. Send the file under Download.",
            icon=":material/warning:",
        )


def _downloads(columns: Sequence[Column], load: float | None) -> None:
    if not columns:
        st.caption("There is nothing to download yet.")
        return
    entries, chosen = pinned(), settings()  # a download is made after the run, where no session is
    for label, data, name, mime in (
        (
            "File: scenarios and settings",
            lambda: as_file(entries, chosen),
            "waterline-compare.json",
            "application/json",
        ),
        (
            "CSV: one figure a line",
            lambda: table_csv(tables.csv_rows(columns)),
            "waterline-compare.csv",
            "text/csv",
        ),
        (
            "Report: printable HTML",
            lambda: tables.page_html(columns, words_of(load)),
            "waterline-compare.html",
            "text/html",
        ),
    ):
        download(label, data, name, mime, key=f"cmp_download_{name}", small=False)


def problem(load_problem: str | None) -> None:
    """What was wrong with an input or a file."""
    for text in (st.session_state.get(PROBLEM), load_problem):
        if text:
            st.error(
                f"**Check the input.** {plain(first_upper(text))} Nothing you entered is lost.",
                icon=":material/error:",
            )
    st.session_state[PROBLEM] = None
    if left_out := st.session_state.pop(LEFT_OUT, None):
        st.info(
            f"**Left out.** {'; '.join(plain(one) for one in left_out)}. The load is set in the sidebar.",
            icon=":material/info:",
        )


def empty() -> None:
    """What to do when there is nothing to compare."""
    with st.container(border=True):
        st.markdown(
            "**Put two to six scenarios side by side.** On the Plan page, set one up and press *Pin to Compare*; change "
            "an input, pin again. Or add a JSON file with a list of scenarios from the sidebar. The first one is the "
            "measure: what is better or worse than it is marked."
        )
        st.button(
            "Compare formats of an example",
            key="cmp_empty_example",
            on_click=example,
            type="primary",
            icon=":material/view_column:",
            help="Qwen3-32B on one H100 with 16, 8 and 4 bit weights, each with its own and an fp8 cache.",
        )


def answer(columns: Sequence[Column], load: float | None) -> None:
    """The comparison in a sentence, and the table."""
    able = [one for one in columns if one.load is not None]
    (st.info if able else st.error)(
        tables.headline(columns, words_of(load)),
        icon=":material/info:" if able else ":material/cancel:",
    )
    if len(columns) == 1:
        st.caption("One scenario is pinned; pin a second one on the Plan page to see differences.")
    keys = {row.label: row.key for row in ROWS}
    bar = st.container(
        horizontal=True, gap="small", vertical_alignment="bottom", horizontal_alignment="distribute"
    )
    chosen = bar.selectbox(
        "Sort columns by",
        list(keys),
        index=None,
        placeholder="as pinned",
        key="cmp_sort",
        help="The best comes first. Differences stay those against the first pinned.",
        bind="query-params",
        persist_state="session",
        width=240,
    )
    with bar:
        download(
            "CSV",
            lambda: table_csv(tables.csv_rows(columns)),
            "waterline-compare.csv",
            "text/csv",
            key="cmp_table_csv",
        )
    ordered = tables.sorted_columns(columns, keys.get(chosen or ""))
    table(tables.table(ordered, columns[0]), "cmp_table")


def details(
    columns: Sequence[Column], load: float | None, *, ttft_s: float | None, tpot_s: float | None
) -> None:
    """Pareto front, sweep, reasons; the open tab is part of the link."""
    tabs = st.tabs(TABS, key="cmp_tab", on_change="rerun", bind="query-params")
    for tab, name in zip(tabs, TABS, strict=True):
        if not tab.open:
            continue
        with tab:
            if name == "Pareto front":
                _pareto(columns, ttft_s, tpot_s)
            elif name == "Sweep":
                sweep(pinned(), load)
            elif name == "Options":
                options(pinned(), load)
            else:
                _why(columns)


def _why(columns: Sequence[Column]) -> None:
    rows = tables.why(columns)
    with st.container(horizontal=True, horizontal_alignment="right"):
        download("CSV", table_csv(rows), "cmp_reasons.csv", "text/csv", key="cmp_reasons_csv")
    st.table(rows, hide_index=True, border="horizontal")


def _pareto(columns: Sequence[Column], ttft_s: float | None, tpot_s: float | None) -> None:
    fronts = [frontier(one.entry, ttft_s=ttft_s, tpot_s=tpot_s) for one in columns]
    chart = pareto(fronts, ttft_s=ttft_s, tpot_s=tpot_s, ink=ink())
    if chart is None:
        st.info("No scenario has a speed to draw; the reasons are in the last tab.", icon=":material/info:")
        return
    draw(chart, "cmp_pareto")
    if ttft_s is None and tpot_s is None:
        st.caption(":material/arrow_back: Give a TTFT or TPOT limit under Load to mark the SLO corner.")
    else:
        st.caption("A mark on a line is the most loaded point whose median TTFT and TPOT keep the limits.")
    for one in fronts:
        if one.reason:
            st.caption(f":material/info: {plain(one.entry.name)}: {plain(first_upper(one.reason))}")
