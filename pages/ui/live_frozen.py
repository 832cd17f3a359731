"""A window that stands still: from a link or a saved file; and two windows side by side. Draws only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd
import streamlit as st

from capacity.intervals import Interval
from capacity.live_series import LatencySeries, Percentile, latency_series, pool_series
from capacity.verdicts import SEVERITIES
from capacity.window_summary import WindowSummary, summarise
from connectors.moment import Moment
from pages.ui import live_charts as charts
from pages.ui import live_format as fmt
from pages.ui import live_sections as sections
from pages.ui import live_why
from pages.ui.live_names import short_names, with_names
from pages.ui.live_table import ICONS

Reader = Callable[[float, float], Sequence[Interval]]
SPANS = {"2 min": 120, "5 min": 300, "15 min": 900, "1 h": 3600}


def panel(intervals: Sequence[Interval], frame: charts.Frame, *, source: str, moment: Moment | None) -> None:
    """The verdict at the end of a window that no longer moves, its figures and its charts."""
    tag = sections.demo_tag(frame.demo)
    until = fmt.clock(frame.end_s, utc=frame.utc, zone=frame.zone)
    if not intervals:
        st.warning(
            f"No reading is kept of the window that ends {until}.", icon=":material/history_toggle_off:"
        )
        return
    names = short_names([e.name for e in moment.engines]) if moment is not None else {}
    frame = replace(frame, names=names)
    st.caption(f":material/ac_unit: **Standing still: the window that ends {until}.** {source}")
    verdict = moment.verdict if moment is not None else None
    if verdict is None:
        st.info(f"What bound the pool at that moment is not kept.{tag}", icon=":material/help:")
    else:
        verdict = with_names(verdict, names)
        each = [(names.get(e.name, e.name), e.verdict) for e in moment.engines] if moment is not None else []
        sections.banner_of(
            verdict, advice=f"Found at {until}.", demo=frame.demo, who=sections.who(verdict, each)
        )
        live_why.evidence(verdict, key="live_why_then")
    figures(summarise(intervals, start_s=frame.start_s, end_s=frame.end_s))
    seconds = frame.end_s - frame.start_s
    series = pool_series(intervals, step_s=max(seconds / 240, 2.0))
    slow_s = max(seconds / 240, 15.0)
    latencies: dict[str, LatencySeries] = {
        signal: latency_series(intervals, signal, step_s=slow_s) for signal in ("ttft_s", "itl_s")
    }
    option = sections.waterline(series, frame)
    sections.csv_button("waterline", option)
    if moment is not None and moment.engines:
        st.dataframe(
            findings(moment),
            hide_index=True,
            height="content",
            key="live_found_then",
            alt="What was found about each replica",
            column_config={
                "Replica": st.column_config.TextColumn(width=260 if names else 140),
                "State": st.column_config.TextColumn(width=130),
                "Why": st.column_config.TextColumn(width="large"),
            },
        )
    sections.grid(series, latencies, frame)


def findings(moment: Moment) -> pd.DataFrame:
    """One row per replica: what was found about it."""
    ordered = sorted(moment.engines, key=lambda e: (-SEVERITIES.index(e.verdict.severity), e.name))
    return pd.DataFrame(
        [
            {
                "Replica": one.name,
                "State": f"{ICONS[one.verdict.severity.value]} {one.verdict.name}",
                "Why": one.verdict.summary.removeprefix(f"{one.verdict.name}: "),
            }
            for one in ordered
        ]
    )


def figures(found: WindowSummary) -> None:
    """Five figures of the whole window."""
    shown = (
        ("KV peak", fmt.percent(found.kv_usage_peak)),
        ("Waiting, peak", fmt.count(found.waiting_peak)),
        ("Output tokens/s", fmt.rate(found.generation_tokens_per_s)),
        ("TTFT p99", _percentile(found.ttft_s[1])),
        ("ITL p99", _percentile(found.itl_s[1])),
    )
    with st.container(horizontal=True, horizontal_alignment="distribute", gap="small"):
        for name, value in shown:
            st.metric(name, value, width=164)


def _percentile(found: Percentile | None) -> str:
    if found is None:
        return fmt.UNKNOWN
    return f"≥ {fmt.seconds(found.value)}" if found.is_floor else fmt.seconds(found.value)


def comparison(before: WindowSummary, after: WindowSummary) -> pd.DataFrame:
    """One row per figure, before and after, as text."""
    rows = {
        "Readings known": lambda s: fmt.percent(s.known_share),
        "KV peak": lambda s: fmt.percent(s.kv_usage_peak),
        "Running, mean": lambda s: fmt.count(s.running_mean),
        "Waiting, mean": lambda s: fmt.count(s.waiting_mean),
        "Input tokens/s": lambda s: fmt.rate(s.prompt_tokens_per_s),
        "Output tokens/s": lambda s: fmt.rate(s.generation_tokens_per_s),
        "Preemptions/s": lambda s: fmt.rate(s.preemptions_per_s),
        "Rejections/s": lambda s: fmt.rate(s.rejections_per_s),
        "Prefix hits": lambda s: fmt.percent(s.prefix_hit_rate),
        "TTFT p50": lambda s: _percentile(s.ttft_s[0]),
        "TTFT p99": lambda s: _percentile(s.ttft_s[1]),
        "ITL p50": lambda s: _percentile(s.itl_s[0]),
        "ITL p99": lambda s: _percentile(s.itl_s[1]),
        "TTFT observations": lambda s: fmt.count(s.ttft_s[0].count if s.ttft_s[0] else 0),
    }
    return pd.DataFrame(
        [{"Figure": name, "Before": of(before), "After": of(after)} for name, of in rows.items()]
    )


def compare(read: Reader, markers: Sequence[tuple[float, str]], *, frame: charts.Frame, now_s: float) -> None:
    """Before and after a marker, over spans of equal length."""
    with st.expander("Before and after a change", key="live_compare"):
        if not markers:
            st.caption("Mark a moment in the sidebar; then its before and after can be compared here.")
            return
        names = {
            f"{text} ({fmt.clock(at, utc=frame.utc, zone=frame.zone)})": at for at, text in reversed(markers)
        }
        left, right = st.columns(2)
        chosen = left.selectbox("Change", list(names), key="live_compare_marker")
        span = SPANS[right.selectbox("Length of each side", list(SPANS), key="live_compare_span")]
        at_s = names[chosen]
        until_s = min(at_s + span, now_s)
        if until_s < at_s + span:
            st.caption(f"After: {fmt.duration(until_s - at_s)} so far of {fmt.duration(span)}.")
        found = read(at_s - span, until_s)
        st.dataframe(
            comparison(
                summarise(found, start_s=at_s - span, end_s=at_s),
                summarise(found, start_s=at_s, end_s=until_s),
            ),
            hide_index=True,
            height="content",
            key="live_compare_table",
            alt="The same figures before and after the change",
        )
