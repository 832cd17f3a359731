"""The one process: pages, the background poller (lifespan) and the HTTP routes. Run with `streamlit run app.py`."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from connectors.api import routes
from connectors.deep_links import DeepLinks
from connectors.service import lifespan

PAGES = [path.stem for path in (Path(__file__).parent / "pages").glob("*.py")]

app = st.App(
    "pages/navigation.py",
    lifespan=lifespan,
    routes=routes(),
    middleware=[Middleware(DeepLinks, pages=PAGES)],
)
