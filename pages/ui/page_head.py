"""What every page opens with: its name, its question, and a row of buttons at the top right.

Left out: what the buttons hold.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st


def page_head(title: str, question: str, *, key: str, buttons: Callable[[], None]) -> None:
    """Draw it; ``buttons`` puts its own, usually share, download and help, into the row.

    On a narrow screen the row wraps below the name.
    """
    row = st.container(horizontal=True, gap="small", vertical_alignment="center", key=key)
    row.title(title, anchor=False, width="content")
    with row.container(horizontal=True, horizontal_alignment="right", gap="small"):
        buttons()
    st.caption(question)
