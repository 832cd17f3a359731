"""The Live page's sidebar: window and display, demonstration, targets, markers, saved files; and the empty page."""

from __future__ import annotations

import time

import streamlit as st

from capacity.errors import CapacityError
from connectors.demo.incidents import incidents
from connectors.errors import ConnectorError
from connectors.service import LiveService
from pages.ui.live_window import FIRST, WINDOWS
from pages.ui.live_words import plain

TOML = """[[targets]]
name = "pool-a"
url = "http://10.0.0.12:8000/metrics"
max_num_seqs = 256"""


def controls(service: LiveService) -> None:
    """The sidebar."""
    with st.sidebar:
        st.segmented_control(
            "Window", list(WINDOWS), default=FIRST, key="live_window", bind="query-params", required=True
        )
        st.toggle(
            "Pause",
            key="live_pause",
            help="Keeps what is on screen, also while you point at a chart. Readings go on being kept.",
        )
        st.toggle(
            "Wall mode",
            key="live_wall",
            bind="query-params",
            help="Large figures, readable from three metres.",
        )
        st.toggle("Times in UTC", key="live_utc", bind="query-params")
        _demo(service)
        _targets(service)
        _markers(service)
        with st.expander("Open a saved file", key="live_saved"):
            st.file_uploader(
                "An incident file, from Share or Download", type=["gz"], key="live_open", max_upload_size=6
            )


def _demo(service: LiveService) -> None:
    """Start, stop and script the demonstration pool."""
    with st.expander("Demonstration pool", expanded=service.demo is not None):
        if service.demo is None:
            st.caption("Made-up replicas with real metrics pages, to try the page or a runbook.")
            if st.button("Start the demonstration", key="live_demo_start"):
                service.set_demo(on=True)
                st.rerun()
            return
        names = list(incidents())
        if "live_incident" not in st.session_state:
            st.session_state.live_incident = service.demo.incident_name
        st.selectbox("Incident", names, key="live_incident", on_change=lambda: _switch(service))
        what = incidents()[service.demo.incident_name].what
        said = what if "_" in what.partition(" ")[0] else f"{what[:1].upper()}{what[1:]}"
        st.caption(f"{plain(said)}. Everybody who watches sees it.")
        if st.button("Stop the demonstration", key="live_demo_stop"):
            service.set_demo(on=False)
            st.rerun()


def _switch(service: LiveService) -> None:
    """Callback: the incident that was picked begins now."""
    try:
        service.set_demo(on=True, incident_name=st.session_state.live_incident)
    except CapacityError as error:
        st.toast(str(error), icon=":material/error:")


def _targets(service: LiveService) -> None:
    """What is wrong with the settings, and adding a target where the operator allows it."""
    if service.settings_problem:
        st.error(service.settings_problem)
    if not service.settings.visitors_may_add:
        return
    with st.form("live_add", border=False):
        address = st.text_input("Add a target", placeholder="http://host:8000/metrics")
        if st.form_submit_button("Watch it") and address:
            try:
                service.add_target(address)
            except ConnectorError as error:
                st.error(str(error))


def _markers(service: LiveService) -> None:
    """A line at this moment in every chart, kept in the history file."""
    with st.form("live_mark", border=False, clear_on_submit=True):
        text = st.text_input(
            "Mark this moment",
            placeholder="my change",
            max_chars=60,
            help="A line in every chart; before and after can be compared at the foot of the page.",
        )
        if st.form_submit_button("Mark") and text:
            if service.history is None:
                st.error(service.history_problem or "the history file is not open")
            else:
                try:
                    service.history.mark(time.time(), text)
                    st.toast("Marked in every chart.", icon=":material/flag:")
                except ConnectorError as error:
                    st.error(str(error))


def empty(service: LiveService) -> None:
    """No target and no demonstration: what to do next."""
    st.info("Nothing is being watched yet.", icon=":material/visibility_off:")
    if st.button("Start the demonstration", key="live_empty_demo", type="primary"):
        service.set_demo(on=True)
        st.rerun()
    st.markdown("or name the engines to watch in `waterline.toml` beside `app.py` and restart:")
    st.code(TOML, language="toml")
    st.markdown("or set the environment variable:")
    st.code("WATERLINE_TARGETS=pool-a=http://10.0.0.12:8000/metrics", language="bash", wrap_lines=True)
    if service.settings.visitors_may_add:
        st.markdown("or add one in the sidebar.")
