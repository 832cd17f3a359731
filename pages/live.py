"""Live: what is the pool holding now, and what binds it? Reads widgets, asks the live service, draws."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from capacity.live_series import LatencySeries, PoolSeries, latency_series, pool_series
from connectors.alert_rules import rule_file
from connectors.grafana import dashboard_file
from connectors.incident_file import SavedWindow, dump
from connectors.live_view import LiveView, as_json
from connectors.moment import as_json as moment_json
from connectors.moment import moment_of
from connectors.service import LiveService, running
from pages.ui import live_charts as charts
from pages.ui import live_figures as figures
from pages.ui import live_frozen as frozen
from pages.ui import live_sections as sections
from pages.ui import live_table, live_why
from pages.ui.fault import guarded
from pages.ui.live_controls import controls, empty
from pages.ui.live_head import Shown, head
from pages.ui.live_names import brief, named
from pages.ui.live_window import POINTS, frozen_until, opened, utc, window_name, window_seconds, zone

REFRESH_S = 2.0
ICON = str(Path(__file__).parent / "ui" / "icon.svg")
LATENCY_STEP_S = 15.0
SIGNALS = ("ttft_s", "itl_s")
Lines = tuple[PoolSeries, dict[str, LatencySeries]]


def shown(service: LiveService, saved: SavedWindow | None) -> Shown:
    """What Share and Download are about: an opened file, a window that stands still, or now."""
    seconds, until_s = window_seconds(), frozen_until()
    selectors = {t.selector for t in service.settings.targets if t.kind == "prometheus"}
    selector = selectors.pop() if len(selectors) == 1 else None

    def view() -> LiveView:
        return named(service.view() if until_s is None else service.view_at(until_s))

    def incident() -> bytes:
        end_s = until_s or time.time()
        return save(service, end_s - seconds, end_s, view())

    def of_file(found: SavedWindow) -> tuple[Any, str, bytes]:
        moment = found.moment
        rows = frozen.findings(moment) if moment is not None else None
        body = dump(
            found.intervals,
            start_s=found.start_s,
            end_s=found.end_s,
            markers=found.markers,
            moment=moment,
        )
        return (
            None if moment is None else moment_json(moment),
            "" if rows is None else rows.to_csv(index=False),
            body,
        )

    return Shown(
        window=window_name(),
        end_s=until_s if saved is None else saved.end_s,
        saved=saved is not None,
        utc=utc(),
        zone=zone(),
        snapshot=(lambda: as_json(view())) if saved is None else lambda: of_file(saved)[0],
        replicas=(lambda: live_table.full(view()).to_csv(index=False))
        if saved is None
        else lambda: of_file(saved)[1],
        incident=incident if saved is None else lambda: of_file(saved)[2],
        rules=lambda: rule_file(selector),
        dashboard=lambda: dashboard_file(selector),
    )


def save(service: LiveService, start_s: float, end_s: float, view: LiveView) -> bytes:
    """The window's bytes with the verdicts of ``view``."""
    history = service.history
    return dump(
        service.window(start_s, end_s, points=POINTS),
        start_s=start_s,
        end_s=end_s,
        markers=[] if history is None else history.markers(start_s, end_s),
        moment=moment_of(view),
    )


def frame_of(
    start_s: float,
    end_s: float,
    *,
    demo: bool,
    markers: Any,
    names: dict[str, str] | None = None,
    wall: bool = False,
) -> charts.Frame:
    """What all charts share."""
    return charts.Frame(
        start_s=start_s,
        end_s=end_s,
        demo=demo,
        utc=utc(),
        markers=markers,
        scale=1.6 if wall else 1.0,
        dark=st.context.theme.type == "dark",
        zone=zone(),
        names=names or {},
    )


def standing_still(service: LiveService, saved: SavedWindow | None) -> bool:
    """Draw a saved or linked window instead of the live one; True where there is one."""
    if saved is not None:
        demo = any(i.demo for i in saved.intervals)
        frame = frame_of(saved.start_s, saved.end_s, demo=demo, markers=saved.markers)
        source = "From a saved file. Remove it in the sidebar to go back."
        frozen.panel(saved.intervals, frame, source=source, moment=saved.moment)
        return True
    until_s = frozen_until()
    if until_s is None:
        return False
    start_s = until_s - window_seconds()
    found = service.window(start_s, until_s, points=POINTS)
    markers = [] if service.history is None else service.history.markers(start_s, until_s)
    frame = frame_of(start_s, until_s, demo=any(i.demo for i in found), markers=markers)
    if st.button("Back to live", key="live_back", icon=":material/play_arrow:"):
        del st.query_params["live_until"]
        st.rerun()
    moment = service.shared(("moment", until_s), lambda: moment_of(named(service.view_at(until_s))))
    frozen.panel(found, frame, source="From a link.", moment=moment)
    return True


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
    paused = bool(st.session_state.get("live_pause"))
    held = st.session_state.get("live_held") if paused else None
    whole, end_s = held or (named(service.view()), time.time())
    st.session_state.live_held = (whole, end_s)
    view, names = brief(whole)
    focus = sections.focused(view)
    series, latencies = read_lines(service, seconds, focus, view, end_s)
    markers = [] if service.history is None else service.history.markers(end_s - seconds, end_s)
    wall = bool(st.session_state.get("live_wall"))
    frame = frame_of(end_s - seconds, end_s, demo=view.demo, markers=markers, wall=wall, names=names)
    sections.banner(view, frame, large=wall, paused=paused)
    if wall:
        figures.wall(view, frame)
        sections.waterline(series, frame, now=figures.fullest(view), height=430)
        return
    figures.figures(view)
    chosen = next((e for e in view.engines if e.name == focus), None)
    option = sections.waterline(series, frame, now=figures.fullest(view) if chosen is None else None)
    sections.table(view, focus=focus)
    live_why.list_of(view)
    sections.files(whole, option)
    live_why.evidence(chosen.verdict if chosen else view.verdict)
    if focus:
        st.caption(f"The charts show {focus} only; click its row again for the whole pool.")
    sections.grid(series, latencies, frame, now=chosen.signals if chosen else view.pool)
    frozen.compare(
        lambda start, end: service.window(start, end, points=POINTS), markers, frame=frame, now_s=end_s
    )
    sections.targets(view, service.history_problem, service.past_problems)


def render() -> None:
    """The page."""
    bar: Literal["collapsed", "auto"] = "collapsed" if st.query_params.get("live_wall") == "true" else "auto"
    st.set_page_config(
        page_title="Live · Waterline", page_icon=ICON, layout="wide", initial_sidebar_state=bar
    )
    service = running()
    controls(service)
    paused = bool(st.session_state.get("live_pause"))
    saved, fault = opened()
    nothing = not service.has_targets and service.demo is None
    still = saved is not None or frozen_until() is not None
    if not st.session_state.get("live_wall"):
        note = "" if still or nothing else "Paused." if paused else f"Refreshes every {REFRESH_S:.0f} s."
        what = shown(service, saved) if still or not nothing else None
        st.fragment(head)(what, note=note, now_s=time.time)
    if fault:
        st.error(fault, icon=":material/error:")
    if standing_still(service, saved):
        return
    if "live_until" in st.query_params:
        asked = st.query_params["live_until"][:40]
        st.warning(f"The link asks for the window until {asked!r}, which is no time; valid: Unix seconds.")
    if nothing:
        empty(service)
        return
    every = None if paused else REFRESH_S
    st.fragment(guarded(panel, part="This panel"), run_every=every)(service)


render()
