"""Where the model comes from: the catalogue, a config.json (pasted, uploaded, from the hub) or a small form.

Every config ends up as text in one field, so there is one path into the planner. Left out: reading it (hf_config).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from connectors.errors import ConnectorError
from connectors.model_config import fetch_config
from pages.ui.fields import FORM, FORM_HELP, FORM_OPTIONAL, SOURCES

CONFIG_TEXT, PROBLEM = "plan_config_text", "plan_input_problem"


def model_source(control: Callable[[str], None]) -> None:
    """Draw the choice and what belongs to it; ``control`` draws the widget of one scenario key."""
    kept: dict[str, Any] = {"persist_state": "session"}
    source = (
        st.segmented_control(  # its first value comes from the link or the visit's seed, so it has no default
            "Model from",
            SOURCES,
            required=True,
            key="plan_source",
            bind="query-params",
            label_visibility="collapsed",
            width="stretch",
            **kept,
        )
    )
    if source in (None, "Catalogue"):
        control("model")
        return
    if source == "Form":
        for first in range(0, len(FORM), 2):
            row = beside()
            for key, label in FORM[first : first + 2]:
                row.text_input(
                    label,
                    key=f"plan_form_{key}",
                    bind="query-params",
                    placeholder="optional" if key in FORM_OPTIONAL else "",
                    help=FORM_HELP[key],
                    **kept,
                )
        st.caption("Full attention in every layer with a gated MLP; for anything else paste the config.json.")
        return
    _hub()
    st.file_uploader(
        "Upload a config.json",
        type=["json", "txt"],
        key="plan_upload",
        on_change=_uploaded,
        max_upload_size=6,
    )
    st.text_area(
        "config.json",
        key=CONFIG_TEXT,
        height=150,
        placeholder='{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, ...}',
        on_change=_forget_problem,
        help="Paste the model's config.json. It stays in this session and, while short enough, in the link.",
        **kept,
    )
    control("accept_upper_bound")


def beside() -> DeltaGenerator:
    """A row for widgets that share the sidebar's width: a row of columns would be wider than the sidebar."""
    return st.container(horizontal=True, gap="small", vertical_alignment="bottom", wrap=False)


def _forget_problem() -> None:
    st.session_state[PROBLEM] = None


def _uploaded() -> None:
    file = st.session_state.get("plan_upload")
    if file is None:
        return
    try:
        st.session_state[CONFIG_TEXT] = file.getvalue().decode("utf-8-sig")
        st.session_state[PROBLEM] = None
    except UnicodeDecodeError:
        st.session_state[PROBLEM] = f"the file {file.name[:60]} is not text in UTF-8; expected a config.json"


def _hub() -> None:
    bar = st.container(horizontal=True, gap="small", vertical_alignment="bottom", wrap=False)
    bar.text_input(
        "Hugging Face id",
        key="plan_hub_id",
        placeholder="organisation/name",
        help="The server fetches the config.json; a gated model needs HF_TOKEN in the server's environment.",
        bind="query-params",
        persist_state="session",
    )
    if bar.button("Load", key="plan_hub_load"):
        try:
            with st.spinner("Asking the hub, at most 10 s"):
                st.session_state[CONFIG_TEXT] = fetch_config(str(st.session_state["plan_hub_id"]).strip())
            st.session_state[PROBLEM] = None
        except ConnectorError as error:
            st.session_state[PROBLEM] = str(error)
        st.rerun()  # the answer was drawn before the config came
