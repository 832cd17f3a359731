"""A fault of the app's own, shown as a sentence with a number that leads to the server's log. Left out: bad input."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import streamlit as st

P = ParamSpec("P")
LOG = logging.getLogger("waterline")


def guarded(draw: Callable[P, None], *, part: str = "This page") -> Callable[P, None]:
    """``draw`` with its faults logged in full and shown in brief; input errors are its own to show."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            draw(*args, **kwargs)
        except Exception:
            number = uuid.uuid4().hex[:8]
            LOG.exception("fault %s", number)
            st.error(
                f"**{part} failed, and not through your input.** What you entered is in the page's address and was not lost: "
                f"reload to try again, or start anew. The server's log tells the cause under **{number}**.",
                icon=":material/bug_report:",
            )
            st.button(
                "Start anew with the defaults",
                key=f"fault_anew_{part}",
                icon=":material/restart_alt:",
                on_click=_anew,
            )

    return drawn


def _anew() -> None:
    st.query_params.clear()
    st.session_state.clear()
