"""The one download button of all pages. Left out: what is downloaded."""

from __future__ import annotations

from typing import Any

import streamlit as st


def download(
    label: str, data: Any, name: str, mime: str, *, key: str, small: bool = True, disabled: bool = False
) -> None:
    """A button that saves ``data`` as the file ``name``; a function is asked on the click. ``small``: beside a chart or table."""
    st.download_button(
        label,
        data,
        file_name=name,
        mime=mime,
        key=key,
        on_click="ignore",
        icon=":material/download:",
        type="tertiary" if small else "secondary",
        width="content" if small else "stretch",
        disabled=disabled,
    )
