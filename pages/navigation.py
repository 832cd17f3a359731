"""The pages of the app in their order. The server runs this script for every visit."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from pages.ui.fault import guarded
from pages.ui.resources import settle

ICON = Path(__file__).parent / "ui" / "icon.png"

settle()
st.set_page_config(page_icon=str(ICON), layout="wide", initial_sidebar_state=330)
page = st.navigation(
    [
        st.Page("plan.py", title="Plan", default=True),
        st.Page("compare.py", title="Compare"),
        st.Page("simulate.py", title="Simulate"),
        st.Page("live.py", title="Live"),
    ]
)
guarded(page.run)()
