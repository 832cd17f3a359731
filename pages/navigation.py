"""The pages of the app in their order. The server runs this script for every visit."""

from __future__ import annotations

import streamlit as st

from pages.ui.resources import settle

settle()
st.navigation(
    [
        st.Page("plan.py", title="Plan", icon=":material/calculate:", default=True),
        st.Page("live.py", title="Live", icon=":material/monitoring:"),
    ]
).run()
