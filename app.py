"""The one process: pages, the background poller (lifespan) and the HTTP routes. Run with `streamlit run app.py`."""

from __future__ import annotations

import streamlit as st

from connectors.api import routes
from connectors.service import lifespan

app = st.App("pages/navigation.py", lifespan=lifespan, routes=routes())
