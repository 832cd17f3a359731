"""The Live page's headline figures: five numbers with what explains each in grey, latencies below, large on a wall.

Left out: the banner, charts, the arithmetic behind the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from capacity.telemetry import Value
from capacity.verdicts import thresholds
from connectors.live_view import RATE_SCRAPES, RATE_WINDOW_S, EngineView, LiveView
from connectors.report import STANDING
from pages.ui import live_charts as charts
from pages.ui import live_format as fmt

FULL = 0.985
CALM = ("falling", "not rising")
LATENCIES = {
    "ttft_s": ("TTFT", "Time to first token"),
    "itl_s": ("ITL", "Time between tokens"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One headline: the number as text, what explains it in a few words, and the rest for its tooltip."""

    name: str
    value: str
    note: str | None
    tip: str | None


def value_of(view: LiveView, name: str) -> Value:
    """A pool signal; unknown with its reason before the first reading."""
    return Value(reason="not read yet") if view.pool is None else view.pool[name]


def fullest(view: LiveView) -> tuple[str, float] | None:
    """The replica with the highest KV usage and its share."""
    each = {n: v for n, v in (value_of(view, "kv_usage").by_engine or {}).items() if v is not None}
    return max(each.items(), key=lambda pair: pair[1], default=None)


def headline(view: LiveView) -> tuple[Figure, ...]:
    """The five figures in their order."""
    running, out, into = (
        value_of(view, n) for n in ("running", "generation_tokens_per_s", "prompt_tokens_per_s")
    )
    return (
        _fullest(view),
        Figure(name="Running", value=fmt.count(running.number), note=_spread(running), tip=fmt.why(running)),
        _waiting(view),
        Figure(
            name="Output tokens/s",
            value=fmt.rate(out.number),
            note=f"input {fmt.rate(into.number)}",
            tip=f"{_last_minute(out)}  \nInput: {fmt.why(into) or 'not known'}",
        ),
        _time_to_full(view),
    )


def figures(view: LiveView) -> None:
    """The headline, and latencies and preemptions in one line below it."""
    with st.container(horizontal=True, horizontal_alignment="distribute", gap="small"):
        for one in headline(view):
            st.metric(
                one.name, one.value, one.note, delta_color="off", delta_arrow="off", help=one.tip, width=168
            )
    with st.container(horizontal=True, gap="small"):
        for family, (short, long) in LATENCIES.items():
            text, tip = _percentiles(view, family)
            st.markdown(
                f":gray[{short} p50 · p90 · p99] **{text}**", help=f"{long}.  \n{tip}", width="content"
            )
        preempted = value_of(view, "preemptions_per_s")
        st.markdown(
            f":gray[Preemptions] **{_per_s(preempted)}**",
            help="Running requests that lose their KV blocks and are computed again.  \n"
            + _last_minute(preempted),
            width="content",
        )
        refused = value_of(view, "rejections_per_s")
        if refused.number:
            st.markdown(f":gray[Rejected] **{_per_s(refused)}**", help=_last_minute(refused), width="content")


def _per_s(value: Value) -> str:
    return fmt.UNKNOWN if value.number is None else f"{fmt.rate(value.number)}/s"


def _fullest(view: LiveView) -> Figure:
    kv = value_of(view, "kv_usage")
    each = {name: v for name, v in (kv.by_engine or {}).items() if v is not None}
    note = None
    if kv.number is not None and each:
        hot = max(each, key=lambda name: each[name])
        note = fmt.short(hot)
        if len(each) > 1:
            note = f"{fmt.short(hot, 12)}, lowest {fmt.percent(min(each.values()))}"
    return Figure(name="Fullest replica", value=fmt.percent(kv.number), note=note, tip=fmt.why(kv))


def _spread(value: Value) -> str | None:
    """Who is missing from a total, or the least and the most of one replica."""
    reason = (value.reason or "").partition(";")[0]
    if value.number is not None and reason.startswith("without "):
        missing = reason.removeprefix("without ").split(", ")
        return f"without {fmt.short(missing[0], 14) if len(missing) == 1 else f'{len(missing)} replicas'}"
    each = [v for v in (value.by_engine or {}).values() if v is not None]
    if len(each) < 2:
        return None
    low, high = fmt.count(min(each)), fmt.count(max(each))
    return f"{low} each" if low == high else f"{low} to {high} each"


def _waiting(view: LiveView) -> Figure:
    waiting, reasons = value_of(view, "waiting"), value_of(view, "waiting_by_reason")
    note = None
    if waiting.number:
        known = isinstance(reasons.value, dict) and any(reasons.value.values())
        note = "reason not told"
        if known and isinstance(reasons.value, dict):
            note = ", ".join(f"{fmt.count(n)} for {reason}" for reason, n in reasons.value.items() if n)
    elif waiting.number == 0:
        note = "nothing waits"
    tips = [
        fmt.why(waiting),
        "For capacity: seats, blocks or the token budget of a step. Deferred: an adapter or a KV transfer.",
        None if reasons.known or not waiting.number else fmt.why(reasons),
    ]
    return Figure(
        name="Waiting",
        value=fmt.count(waiting.number),
        note=note,
        tip="  \n".join(one for one in tips if one),
    )


def _last_minute(value: Value) -> str:
    """A rate's tooltip: over what, and its metric or why it is not known."""
    return (
        f"Mean over the last {RATE_WINDOW_S:g} s, at least {RATE_SCRAPES} scrapes.  \n{fmt.why(value) or ''}"
    )


def _time_to_full(view: LiveView) -> Figure:
    """The earliest replica with its interval; "not filling" where usage falls or stands; else why not known."""
    name = "Time to full"
    moving = [e for e in view.engines if e.signals and e.verdict.name not in STANDING]
    full = [e.name for e in moving if _usage(e) >= FULL]
    if full:
        tip = f"{fmt.listing(full)}: no free block is left; new requests wait."
        return Figure(name=name, value="full", note=_who(full), tip=tip)
    told = [(e, e.forecast) for e in moving if e.forecast is not None]
    due = [(f.expected_s, e, f) for e, f in told if f.expected_s is not None]
    if due:
        expected_s, first, found = min(due, key=lambda one: one[0])
        span = fmt.span(found.low_s, found.high_s)
        return Figure(
            name=name,
            value=fmt.duration(expected_s),
            note=f"{fmt.short(first.name, 12)}, {span}",
            tip=f"{first.name}: {span} (95 %), from {found.points} scrapes over {fmt.duration(found.span_s)}, "
            "if the trend goes on.",
        )
    refused = [(e, f.reason) for e, f in told if f.reason]
    standing = [
        f"{e.name}: {e.verdict.name}, so its KV usage says nothing"
        for e in view.engines
        if e.verdict.name in STANDING
    ]
    tip = "  \n".join([*standing[:3], *(f"{e.name}: {reason}" for e, reason in refused[:6])])
    if not refused:
        note = "no replica serves" if standing else "KV usage not known"
        return Figure(name=name, value=fmt.UNKNOWN, note=note, tip=tip or "No replica reports KV usage.")
    if all(reason.endswith(CALM) for _, reason in refused):
        return Figure(name=name, value="not filling", note="steady or falling", tip=tip)
    hot, reason = max(refused, key=lambda pair: (not pair[1].endswith(CALM), _usage(pair[0])))
    return Figure(
        name=name, value=fmt.UNKNOWN, note=f"{fmt.short(hot.name, 12)}: {_why_not(reason)}", tip=tip
    )


def _why_not(reason: str) -> str:
    return (
        "no clear trend"
        if reason.startswith("too noisy")
        else reason.partition(":")[0].removeprefix("KV usage is ")
    )


def _usage(engine: EngineView) -> float:
    return (engine.signals.number("kv_usage") if engine.signals else None) or 0.0


def _who(names: list[str]) -> str:
    return fmt.short(names[0]) if len(names) == 1 else f"{fmt.short(names[0], 12)} and {len(names) - 1} more"


def _percentiles(view: LiveView, family: str) -> tuple[str, str]:
    """p50, p90 and p99 in one line, and what stands behind them."""
    values = [value_of(view, f"{family}.{p}") for p in ("p50", "p90", "p99")]
    if all(v.number is None for v in values):
        return fmt.UNKNOWN, fmt.why(values[0]) or "not known"
    return (
        fmt.latencies(values),
        f"Half, 90 % and 99 % are no longer; over the last {RATE_WINDOW_S:g} s, at least {RATE_SCRAPES} "
        f"scrapes; p99: {fmt.why(values[2]) or 'exact'}",
    )


def wall(view: LiveView, frame: charts.Frame) -> None:
    """The five figures for a screen on the wall: one drawing each, so that they wrap where it is narrow."""
    with st.container(horizontal=True, horizontal_alignment="distribute", gap="small"):
        for index, one in enumerate(headline(view)):
            colour = line_colour(value_of(view, "kv_usage").number) if index == 0 else None
            st.echarts_chart(
                wall_option(one, frame, colour=colour),
                height=150,
                width=236,
                key=f"live_wall_{index}",
                alt=f"{one.name} {one.value}{', ' + one.note if one.note else ''}",
            )


def line_colour(usage: float | None) -> str | None:
    """The colour of the highest line that KV usage has passed; None where unknown.

    >>> line_colour(0.65) == fmt.OK, line_colour(0.8) == fmt.ACT, line_colour(0.99) == fmt.CRITICAL
    (True, True, True)
    """
    if usage is None:
        return None
    lines = thresholds()
    if usage >= lines["kv_critical"].value:
        return fmt.CRITICAL
    return fmt.ACT if usage >= lines["kv_act"].value else fmt.OK


def wall_option(one: Figure, frame: charts.Frame, *, colour: str | None = None) -> charts.Option:
    """One headline figure as large text, readable from across a room."""
    ink = "#E6EAEE" if frame.dark else "#1B1F24"
    size = 84 if len(one.value) <= 5 else 60 if len(one.value) <= 7 else 46
    return {
        "animation": False,
        "title": [
            {
                "text": one.value,
                "subtext": f"{one.name.lower()}\n{{note|{one.note or ''}}}",
                "left": 0,
                "top": 0,
                "padding": 0,
                "itemGap": 4,
                "textStyle": {
                    "fontSize": size,
                    "lineHeight": 92,
                    "fontWeight": 700,
                    "color": colour or ink,
                },
                "subtextStyle": {
                    "fontSize": 24,
                    "lineHeight": 28,
                    "rich": {"note": {"fontSize": 17, "color": fmt.GREY}},
                },
            }
        ],
        "series": [],
    }
