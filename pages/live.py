"""Live: what is the pool holding now, and what binds it? Reads widgets, asks the live service, draws."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import streamlit as st

from capacity.errors import CapacityError
from capacity.live_series import LatencySeries, PoolSeries, latency_series, pool_series
from connectors.alert_rules import rule_file
from connectors.demo.incidents import incidents
from connectors.errors import ConnectorError
from connectors.grafana import dashboard_file
from connectors.incident_file import SavedWindow, dump, load
from connectors.live_view import LiveView
from connectors.moment import moment_of
from connectors.service import LiveService, running
from pages.ui import live_charts as charts
from pages.ui import live_frozen as frozen
from pages.ui import live_sections as sections
from pages.ui.fault import guarded

WINDOWS = {"5 min": 300, "15 min": 900, "1 h": 3600, "6 h": 21_600, "24 h": 86_400, "7 d": 604_800}
REFRESH_S = 2.0
ICON = str(Path(__file__).parent / "ui" / "icon.svg")
POINTS = 240
LATENCY_STEP_S = 15.0
SIGNALS = ("ttft_s", "itl_s")
Lines = tuple[PoolSeries, dict[str, LatencySeries]]

TOML = """[[targets]]
name = "pool-a"
url = "http://10.0.0.12:8000/metrics"
max_num_seqs = 256"""


def controls(service: LiveService) -> None:
    """The sidebar: window and display, demonstration, targets."""
    with st.sidebar:
        st.segmented_control(
            "Window", list(WINDOWS), default="5 min", key="live_window", bind="query-params", required=True
        )
        st.toggle("Pause", key="live_pause", help="Keeps what is on screen; readings go on being kept.")
        st.toggle(
            "Wall mode",
            key="live_wall",
            bind="query-params",
            help="Large figures, readable from three metres.",
        )
        st.toggle("Times in UTC", key="live_utc", bind="query-params")
        demo_controls(service)
        target_controls(service)
        marker_controls(service)
        share_controls(service)
        rule_controls(service)


def share_controls(service: LiveService) -> None:
    """The window on screen as a link or a file, and a saved file opened again."""
    with st.expander("Keep or share this window", key="live_share"):
        until_s = frozen_until() or time.time()
        seconds = window_seconds()
        st.caption("This link shows the same window on this server as long as its readings are kept:")
        name = st.session_state.get("live_window") or "5 min"
        st.code(f"/live?live_window={name.replace(' ', '+')}&live_until={until_s:.0f}", language=None)
        st.download_button(
            "Save as a file",
            data=lambda: save(service, until_s - seconds, until_s),
            file_name=f"waterline-{until_s:.0f}.json.gz",
            mime="application/gzip",
            key="live_save",
        )
        st.file_uploader("Open a saved file", type=["gz"], key="live_open")


def rule_controls(service: LiveService) -> None:
    """Alerts and a dashboard with the lines of this page, for the Prometheus that scrapes the same engines."""
    selectors = {t.selector for t in service.settings.targets if t.kind == "prometheus"}
    selector = selectors.pop() if len(selectors) == 1 else None
    with st.expander("Alerts and dashboard", key="live_rules"):
        st.caption("The same lines, verdicts and actions as on this page:")
        st.download_button(
            "Alert rules for Prometheus",
            data=lambda: rule_file(selector),
            file_name="waterline-rules.yml",
            mime="application/yaml",
            key="live_rules_alerts",
        )
        st.download_button(
            "Dashboard for Grafana",
            data=lambda: dashboard_file(selector),
            file_name="waterline-grafana.json",
            mime="application/json",
            key="live_rules_grafana",
        )


def save(service: LiveService, start_s: float, end_s: float) -> bytes:
    """The window's bytes, read when the button is pressed."""
    history = service.history
    view = service.view() if frozen_until() is None else service.view_at(end_s)
    return dump(
        service.window(start_s, end_s, points=POINTS),
        start_s=start_s,
        end_s=end_s,
        markers=[] if history is None else history.markers(start_s, end_s),
        moment=moment_of(view),
    )


def zone() -> str:
    """The browser's time zone, which the charts' axes are in."""
    return st.context.timezone or "local time"


def window_seconds() -> int:
    """Length of the chosen window."""
    return WINDOWS[st.session_state.get("live_window") or "5 min"]


def frozen_until() -> float | None:
    """The end of the window that the link asks for; None for live, and for what is no time."""
    try:
        asked = float(st.query_params["live_until"])
    except (KeyError, ValueError):
        return None
    return min(asked, time.time()) if asked >= 0 else None


def opened() -> SavedWindow | None:
    """The saved file that was opened, or None."""
    upload = st.session_state.get("live_open")
    if upload is None:
        return None
    try:
        return load(upload.getvalue())
    except ConnectorError as error:
        st.error(str(error))
        return None


def standing_still(service: LiveService) -> bool:
    """Draw a saved or linked window instead of the live one; True where there is one."""
    utc = bool(st.session_state.get("live_utc"))
    dark = st.context.theme.type == "dark"
    saved = opened()
    if saved is not None:
        frame = charts.Frame(
            start_s=saved.start_s,
            end_s=saved.end_s,
            demo=any(i.demo for i in saved.intervals),
            utc=utc,
            dark=dark,
            zone=zone(),
            markers=saved.markers,
        )
        source = "From a saved file. Remove it in the sidebar to go back."
        frozen.panel(saved.intervals, frame, source=source, moment=saved.moment)
        return True
    until_s = frozen_until()
    if until_s is None:
        return False
    start_s = until_s - window_seconds()
    found = service.window(start_s, until_s, points=POINTS)
    markers = [] if service.history is None else service.history.markers(start_s, until_s)
    demo = any(i.demo for i in found)
    frame = charts.Frame(
        start_s=start_s, end_s=until_s, demo=demo, utc=utc, dark=dark, zone=zone(), markers=markers
    )
    if st.button("Back to live", key="live_back", icon=":material/play_arrow:"):
        del st.query_params["live_until"]
        st.rerun()
    moment = service.shared(("moment", until_s), lambda: moment_of(service.view_at(until_s)))
    frozen.panel(found, frame, source="From a link.", moment=moment)
    return True


def demo_controls(service: LiveService) -> None:
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
        st.selectbox("Incident", names, key="live_incident", on_change=lambda: switch_incident(service))
        st.caption(f"{incidents()[service.demo.incident_name].what}. Everybody who watches sees it.")
        if st.button("Stop the demonstration", key="live_demo_stop"):
            service.set_demo(on=False)
            st.rerun()


def switch_incident(service: LiveService) -> None:
    """Callback: the incident that was picked begins now."""
    try:
        service.set_demo(on=True, incident_name=st.session_state.live_incident)
    except CapacityError as error:
        st.toast(str(error), icon=":material/error:")


def target_controls(service: LiveService) -> None:
    """What is watched, and adding one where the operator allows it."""
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


def marker_controls(service: LiveService) -> None:
    """A line at this moment in every chart, kept in the history file."""
    with st.form("live_mark", border=False, clear_on_submit=True):
        text = st.text_input("Mark this moment", placeholder="my change", max_chars=60)
        if st.form_submit_button("Mark") and text:
            if service.history is None:
                st.error(service.history_problem or "the history file is not open")
            else:
                try:
                    service.history.mark(time.time(), text)
                except ConnectorError as error:
                    st.error(str(error))


def empty(service: LiveService) -> None:
    """No target and no demonstration: what to do next."""
    st.info("Nothing is being watched yet.", icon=":material/visibility_off:")
    st.markdown("Name the engines to watch in `waterline.toml` beside `app.py`, then restart:")
    st.code(TOML, language="toml")
    st.markdown("or set `WATERLINE_TARGETS=pool-a=http://10.0.0.12:8000/metrics`. To look around first:")
    if st.button("Start the demonstration", key="live_empty_demo", type="primary"):
        service.set_demo(on=True)
        st.rerun()


def read_lines(service: LiveService, seconds: int, focus: str | None, view: LiveView, end_s: float) -> Lines:
    """Lines of the window, computed once for all browsers that show the same one."""

    def compute() -> Lines:
        found = sections.only(service.window(end_s - seconds, end_s, points=POINTS), view, focus)
        step_s = max(seconds / POINTS, service.poller.interval_s)
        slow_s = max(seconds / POINTS, LATENCY_STEP_S)
        return (
            pool_series(found, step_s=step_s),
            {signal: latency_series(found, signal, step_s=slow_s) for signal in SIGNALS},
        )

    return service.shared(("lines", seconds, focus), compute)


def panel(service: LiveService) -> None:
    """Everything that refreshes."""
    seconds = window_seconds()
    held = st.session_state.get("live_held") if st.session_state.get("live_pause") else None
    view, end_s = held or (service.view(), time.time())
    st.session_state.live_held = (view, end_s)
    focus = st.session_state.get("live_focus")
    series, latencies = read_lines(service, seconds, focus, view, end_s)
    markers = [] if service.history is None else service.history.markers(end_s - seconds, end_s)
    wall = bool(st.session_state.get("live_wall"))
    frame = charts.Frame(
        start_s=end_s - seconds,
        end_s=end_s,
        demo=view.demo,
        utc=bool(st.session_state.get("live_utc")),
        markers=markers,
        scale=1.6 if wall else 1.0,
        dark=st.context.theme.type == "dark",
        zone=zone(),
    )
    sections.banner(view, large=wall)
    if wall:
        sections.wall_figures(view, frame)
    else:
        sections.figures(view)
    sections.waterline(series, frame, height=430 if wall else sections.TALL)
    if wall:
        return
    clicked = sections.table(view)
    if clicked != focus:
        st.session_state.live_focus = clicked
        st.rerun(scope="fragment")
    chosen = next((e for e in view.engines if e.name == focus), None)
    others = [(e.name, e.verdict) for e in view.engines] if chosen is None else []
    sections.evidence(chosen.verdict if chosen else view.verdict, others=others)
    if focus:
        st.caption(f"The charts show {focus} only; click its row again for the whole pool.")
    sections.grid(series, latencies, frame, now=chosen.signals if chosen else view.pool)
    frozen.compare(
        lambda start, end: service.window(start, end, points=POINTS), markers, utc=frame.utc, now_s=end_s
    )
    sections.targets(view, service.history_problem, service.past_problems)


def render() -> None:
    """The page."""
    shown: Literal["collapsed", "auto"] = (
        "collapsed" if st.query_params.get("live_wall") == "true" else "auto"
    )
    st.set_page_config(
        page_title="Live · Waterline", page_icon=ICON, layout="wide", initial_sidebar_state=shown
    )
    service = running()
    controls(service)
    paused = bool(st.session_state.get("live_pause"))
    wall = bool(st.session_state.get("live_wall"))
    if not wall:
        st.title("Live", anchor=False)
    if standing_still(service):
        return
    if "live_until" in st.query_params:
        asked = st.query_params["live_until"][:40]
        st.warning(f"The link asks for the window until {asked!r}, which is no time; valid: Unix seconds.")
    if not service.has_targets and service.demo is None:
        empty(service)
        return
    every = None if paused else REFRESH_S
    if not wall:
        st.caption(
            "What the pool is holding now, and what binds it. "
            + ("Paused." if paused else f"Refreshes every {REFRESH_S:.0f} s.")
        )
    st.fragment(guarded(panel, part="This panel"), run_every=every)(service)


render()
