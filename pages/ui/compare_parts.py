"""Small parts that the Speed tab and the Compare page share: a chart with its CSV, a download, escaped text, times.

Left out: what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from pages.ui.downloads import download
from pages.ui.figure import Chart
from pages.ui.format import UNKNOWN, table_csv

MARKS = ("\\", "`", "*", "_", "[", "]", "$", "#", "~", "<", ":", "|")


def ink() -> str:
    """The colour of lines and labels in the visitor's theme."""
    return "#E6EAEE" if st.context.theme.type == "dark" else "#1B1F24"


def plain(text: str) -> str:
    """A text without a meaning in Markdown."""
    for mark in MARKS:
        text = text.replace(mark, f"\\{mark}")
    return text


def seconds(value: float | None) -> str:
    """A time: ms under 1 s with three digits, s above with two or more; NaN reads as unknown.

    >>> seconds(0.01342), seconds(0.314), seconds(2.25), seconds(39.2), seconds(None)
    ('13.4 ms', '314 ms', '2.2 s', '39 s', '–')
    """
    if value is None or math.isnan(value):
        return UNKNOWN
    if value >= 1:
        return f"{value:,.1f} s" if value < 9.95 else f"{value:,.0f} s"
    ms = value * 1e3
    return f"{ms:.0f} ms" if ms >= 99.95 else f"{ms:.1f} ms" if ms >= 9.995 else f"{ms:.2f} ms"


def spread(value: float | None, low: float | None, high: float | None, show: Any) -> str:
    """`` (low-high)``, without the unit where all three have the same; empty when both ends read the same.

    >>> spread(0.013, 0.012, 0.015, seconds), spread(0.9, 0.7, 1.2, seconds)
    (' (12.0-15.0)', ' (700 ms-1.2 s)')
    """
    if low is None or high is None:
        return ""
    first, last = show(low), show(high)
    if first == last:
        return ""
    texts = [text.partition(" ") for text in (show(value), first, last)]
    if len({unit for _, _, unit in texts}) == 1:
        return f" ({texts[1][0]}-{texts[2][0]})"
    return f" ({first}-{last})"


def together(text: str) -> str:
    """``spread`` as a table cell shows it: a line ends before the bracket and not inside it.

    >>> together(" (700 ms-1.2 s)") == " (700\u00a0ms\u20111.2\u00a0s)"
    True
    """
    return text[:1] + text[1:].replace(" ", "\u00a0").replace("-", "\u2011")


def table(rows: Sequence[Mapping[str, str]], key: str) -> None:
    """Rows whose first column stays in view when a narrow screen scrolls the others."""
    ground = st.get_option(f"theme.{st.context.theme.type or 'light'}.backgroundColor") or "#FFFFFF"
    with st.container(key=key):
        st.html(
            f"<style>.st-key-{key} :is(th, td):first-child "
            f"{{ position: sticky; left: 0; z-index: 1; background: {ground}; }}</style>"
        )
        st.table([dict(row) for row in rows], hide_index=True, border="horizontal")


def draw(chart: Chart, key: str) -> None:
    """A figure under its message, with its CSV."""
    left, right = st.columns([12, 1], vertical_alignment="center", wrap=False)
    left.markdown(f"**{plain(chart.title)}**")
    with right, st.container(horizontal=True, horizontal_alignment="right"):
        download("CSV", table_csv(chart.rows), f"{key}.csv", "text/csv", key=f"{key}_csv")
    st.plotly_chart(
        chart.figure,
        key=f"{key}_chart",
        config={"displayModeBar": False, "responsive": True},
        alt=chart.alt,
    )
