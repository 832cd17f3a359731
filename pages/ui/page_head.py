"""What every page opens with: its name, its question, and a row of buttons at the top right.

Left out: what the buttons hold.
"""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator


def page_head(title: str, question: str, *, key: str) -> DeltaGenerator:
    """Draw it; returned is the place for the buttons, which may be filled once the answer is sent.

    On a narrow screen the buttons wrap below the name.
    """
    row = st.container(horizontal=True, gap="small", vertical_alignment="center", key=key)
    row.title(title, anchor=False, width="content")
    place = row.container(horizontal=True, horizontal_alignment="right", gap="small")
    st.caption(question)
    return place
