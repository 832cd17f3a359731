"""Which window the Live page shows: its length, where it ends, the browser's zone, an opened file."""

from __future__ import annotations

import time

import streamlit as st

from connectors.errors import ConnectorError
from connectors.incident_file import SavedWindow, load

WINDOWS = {"5 min": 300, "15 min": 900, "1 h": 3600, "6 h": 21_600, "24 h": 86_400, "7 d": 604_800}
FIRST = "5 min"
POINTS = 240


def window_name() -> str:
    """The chosen window as its button and the link call it."""
    return str(st.session_state.get("live_window") or FIRST)


def window_seconds() -> int:
    """Length of the chosen window."""
    return WINDOWS[window_name()]


def zone() -> str | None:
    """The browser's time zone, which the charts' axes are in; None where it does not tell."""
    return st.context.timezone


def utc() -> bool:
    """Whether times are asked for in UTC."""
    return bool(st.session_state.get("live_utc"))


def frozen_until() -> float | None:
    """The end of the window that the link asks for; None for live, and for what is no time."""
    try:
        asked = float(st.query_params["live_until"])
    except (KeyError, ValueError):
        return None
    return min(asked, time.time()) if asked >= 0 else None


def opened() -> tuple[SavedWindow | None, str | None]:
    """The saved file that was opened, and what is wrong with it."""
    upload = st.session_state.get("live_open")
    if upload is None:
        return None, None
    try:
        return load(upload.getvalue()), None
    except ConnectorError as error:
        return None, str(error)
