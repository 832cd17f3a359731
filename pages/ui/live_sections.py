"""The Live page's parts as drawn: banner, waterline, table, charts, targets. Left out: controls, headline figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import streamlit as st

from capacity.intervals import Interval
from capacity.live_series import LatencySeries, PoolSeries
from capacity.telemetry import Signals, State, Value
from capacity.verdicts import Verdict, thresholds
from connectors.live_view import EngineView, LiveView
from pages.ui import live_charts as charts
from pages.ui import live_format as fmt
from pages.ui import live_table
from pages.ui.downloads import download
from pages.ui.live_words import plain

HEIGHT, TALL = 210, 250
SLOW_S = 1.0
ALERTS = {"ok": st.success, "info": st.info, "warning": st.warning, "critical": st.error}


def demo_tag(demo: bool) -> str:
    """A badge for panels that show made-up readings."""
    return " :violet-badge[DEMO]" if demo else ""


def banner(view: LiveView, frame: charts.Frame, *, large: bool = False, paused: bool = False) -> None:
    """The answer in words: state as word, icon and colour, on which replicas, the first thing to do, its age."""
    if view.verdict is None:
        names = plain(fmt.listing(view.waiting_for))
        st.info(f"Asking {names} for the first time{demo_tag(view.demo)}", icon=":material/hourglass_empty:")
        return
    age = _age(view)
    if paused:
        age = f"**Paused at {fmt.clock(view.at_s, utc=frame.utc, zone=frame.zone)}**; then {age[:1].lower()}{age[1:]}"
    banner_of(
        view.verdict,
        advice=age,
        demo=view.demo,
        who=who(view.verdict, [(e.name, e.verdict) for e in view.engines]),
        large=large,
    )


def banner_of(
    verdict: Verdict, *, advice: str, demo: bool, who: str | None = None, large: bool = False
) -> None:
    """A verdict as word, icon and colour, the first thing to do, and ``advice`` (how old it is). ``who``: the
    replicas that it is about, where the verdict does not name them.
    """
    tag = demo_tag(demo)
    show, look = ALERTS[verdict.severity.value], fmt.SEVERITY_LOOKS[verdict.severity.value]
    said = f"{verdict.summary[:1].upper()}{verdict.summary[1:]}{': ' + who if who else ''}"
    lines = [advice]
    if verdict.actions and verdict.severity.value != "ok":
        lines.insert(0, f"To do: {plain(verdict.actions[0].text)}.")
    if large:
        name, _, rest = said.partition(": ")
        show(
            f"## {plain(name)}{tag}\n#### {plain(rest[:1].upper() + rest[1:])}\n" + "  \n".join(lines),
            icon=look.icon,
        )
        return
    show("  \n".join([f"**{plain(said)}**{tag}", *lines]), icon=look.icon)


def who(found: Verdict, engines: Sequence[tuple[str, Verdict]]) -> str | None:
    """The replicas that a pool's verdict is about, where its sentence names none."""
    if found.severity.value == "ok":
        return None
    same = [name for name, one in engines if one.name == found.name]
    if not same or any(re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.%])", found.summary) for name in same):
        return None
    if len(same) == len(engines) > 1:
        return f"all {len(same)} replicas"
    return fmt.listing(same)


def _age(view: LiveView) -> str:
    ages = [e.age_s for e in view.engines if e.age_s is not None and e.signals is not None]
    when = f"Scraped {fmt.duration(max(ages))} ago" if ages else "Nothing answers"
    slow = [
        f"{t.name} only after {fmt.seconds(t.scrape_s)}"
        for t in view.targets
        if t.state != "down" and (t.scrape_s or 0.0) >= SLOW_S
    ]
    said = f", {plain(fmt.listing(slow))}" if slow else ""
    return f"{when}; {view.answering} of {len(view.targets)} targets answer{said}."


def waterline(
    series: PoolSeries,
    frame: charts.Frame,
    *,
    now: tuple[str, float] | None = None,
    height: int = TALL,
) -> charts.Option:
    """The one chart that explains the answer; returned for its file. ``now``: the fullest replica and its share
    as the page shows them above, so that the title says the same; left out, it says the end of the lines.
    """
    lines = thresholds()
    newest = {key: charts.last_known(line) for key, line in series.kv_usage.items()}
    known = {key: v for key, v in newest.items() if v is not None}
    if not known:
        title, alt = "Waterline: not known in this window", "No replica reported KV usage in this window"
    else:
        top = max(known, key=lambda key: known[key])
        name, share = now or (frame.called(charts.engine_name(top, list(newest))), known[top])
        title = f"Waterline: {fmt.short(name, 32)} at {fmt.percent(share)}"
        alt = f"KV blocks in use per replica. {title}"
    option = charts.waterline(
        series, frame, act=lines["kv_act"].value, critical=lines["kv_critical"].value, title=title
    )
    st.echarts_chart(option, height=height, key="live_chart_waterline", alt=alt)
    return option


def focused(view: LiveView) -> str | None:
    """The replica whose row is selected, by the order in which the rows were drawn when it was clicked."""
    drawn: list[str] = st.session_state.get("live_rows", [])
    state = st.session_state.get("live_table")
    rows = state["selection"]["rows"] if state else []
    name = drawn[rows[0]] if rows and rows[0] < len(drawn) else None
    return name if any(e.name == name for e in view.engines) else None


def table(view: LiveView, *, focus: str | None) -> None:
    """Replicas, worst first; in the order that they had while one is in focus, since a row is chosen by number."""
    order = live_table.ordered(view)
    if focus is not None:
        order = live_table.kept(order, st.session_state.get("live_rows", []))
    st.session_state.live_rows = [e.name for e in order]
    data = live_table.frame(order)
    st.dataframe(
        data,
        key="live_table",
        hide_index=True,
        height="auto" if len(data) <= 10 else 400,
        on_select="rerun",
        selection_mode="single-row",
        placeholder=fmt.UNKNOWN,
        alt=f"Replicas, worst first: {_said(order)}",
        column_config={
            name: st.column_config.ProgressColumn(
                name, min_value=0, max_value=100, format="%.0f %%", width=width, help=tip
            )
            if name == "KV in use"
            else st.column_config.NumberColumn(name, format="localized", width=width, help=tip)
            if name in live_table.NUMBERS
            else st.column_config.TextColumn(
                name, width=width, help=tip, alignment="right" if name in live_table.RIGHT else "left"
            )
            for name, (width, tip) in live_table.WIDTHS.items()
        },
    )


def _said(order: Sequence[EngineView]) -> str:
    return ", ".join(f"{e.name} {e.verdict.name}" for e in order[:6])


def files(view: LiveView, option: charts.Option) -> None:
    """The waterline and the table as files."""
    with st.container(horizontal=True, gap="small"):
        csv_button("waterline", option, label="CSV: waterline")
        download(
            "CSV: replicas",
            lambda: live_table.full(view).to_csv(index=False),
            "waterline-replicas.csv",
            "text/csv",
            key="live_csv_replicas",
        )


def csv_button(key: str, option: charts.Option, *, label: str = "CSV") -> None:
    """What a chart draws as a file; there, but disabled, where it draws nothing."""
    download(
        label,
        lambda: charts.csv(option),
        f"waterline-{key}.csv",
        "text/csv",
        key=f"live_csv_{key}",
        disabled="dataset" not in option,
    )


def grid(
    series: PoolSeries,
    latencies: dict[str, LatencySeries],
    frame: charts.Frame,
    *,
    now: Signals | None = None,
    height: int = HEIGHT,
) -> None:
    """The detail charts, two by two, on the waterline's time axis. ``now``: the figures that the page shows
    above, so that titles say the same; left out, titles say the end of the lines.
    """
    left, right = st.columns(2)
    times = series.times_s
    with left:
        _chart("queue", _queue(series, frame), height)
    with right:
        _chart("throughput", _throughput(series, frame, now), height)
    with left:
        _chart("ttft", _latency("ttft_s", "TTFT", latencies, frame, now), height)
    with right:
        _chart("itl", _latency("itl_s", "ITL", latencies, frame, now), height)
    with left:
        _chart("steps", _steps(series, frame, now), height)
    with right:
        _chart("prefix", _prefix(series, frame, now), height)
    if any(any(v is not None for v in line) for line in series.gpu.values()):
        named = {
            "tensor cores active": series.gpu["gpu_tensor_active"],
            "DRAM active": series.gpu["gpu_dram_active"],
        }
        gpu = charts.lines(
            "GPU: tensor busy means prefill, DRAM busy means decode",
            frame,
            times,
            named,
            unit="%",
            factor=100,
            top=100,
        )
        _chart("gpu", gpu, height)


def _chart(key: str, option: charts.Option, height: int) -> None:
    title = option["title"]["text"].split("  {")[0]
    st.echarts_chart(option, height=height, key=f"live_chart_{key}", alt=title)
    csv_button(key, option)


def _queue(series: PoolSeries, frame: charts.Frame) -> charts.Option:
    waiting = charts.last_known(series.totals.get("waiting", ()))
    running = charts.last_known(series.totals.get("running", ()))
    named = {"running": series.totals.get("running", ()), "waiting": series.totals.get("waiting", ())}
    deferred = series.totals.get("waiting_deferred", ())
    if any(deferred):
        named["deferred"] = deferred
    if _nothing(named):
        return charts.message("Queue: not known", frame, _sentence(None))
    title = f"Queue: {fmt.count(waiting)} waiting behind {fmt.count(running)} running"
    return charts.lines(title, frame, series.times_s, named, unit="requests")


def _throughput(series: PoolSeries, frame: charts.Frame, now: Signals | None) -> charts.Option:
    out = charts.last_known(series.rates.get("generation_tokens", ()))
    if now is not None:
        out = now.number("generation_tokens_per_s")
    named = {
        "in": series.rates.get("prompt_tokens", ()),
        "out": series.rates.get("generation_tokens", ()),
    }
    if _nothing(named):
        value = None if now is None else now["generation_tokens_per_s"]
        return charts.message("Throughput: not known", frame, _sentence(value))
    return charts.lines(
        f"Throughput: {fmt.rate(out)} output tokens/s", frame, series.times_s, named, unit="tokens/s"
    )


def _steps(series: PoolSeries, frame: charts.Frame, now: Signals | None) -> charts.Option:
    line = series.tokens_per_step
    if _nothing({"": line}):
        value = None if now is None else now["tokens_per_step"]
        return charts.message("Tokens per step: not known", frame, _sentence(value))
    title = f"Tokens per step: {fmt.count(charts.last_known(line))}"
    return charts.lines(title, frame, series.times_s, {"tokens per step": line}, unit="tokens")


def _nothing(named: Mapping[str, charts.Line]) -> bool:
    return all(v is None for line in named.values() for v in line)


def _sentence(value: Value | None, otherwise: str = "Nothing was read of it in this window") -> str:
    """Why nothing is known, from the signal itself where it is not known now either."""
    said = otherwise
    if value is not None and value.number is None:
        said = value.reason or (value.state.value if value.state is not State.OK else otherwise)
    return f"{said[:1].upper()}{said[1:]}."


def _prefix(series: PoolSeries, frame: charts.Frame, now: Signals | None) -> charts.Option:
    rate = charts.last_known(series.prefix_hit_rate)
    if _nothing({"": series.prefix_hit_rate}):
        value = None if now is None else now["prefix_cache_hit_rate"]
        said = _sentence(value, "No prefix was looked up in this window")
        return charts.message("Prefix-cache hits: not known", frame, said)
    named = {"hit rate": series.prefix_hit_rate}
    title = f"Prefix-cache hits: {fmt.percent(rate)} of looked-up tokens"
    return charts.lines(title, frame, series.times_s, named, unit="%", factor=100, top=100)


def _latency(
    signal: str,
    name: str,
    latencies: dict[str, LatencySeries],
    frame: charts.Frame,
    now: Signals | None,
) -> charts.Option:
    found = latencies[signal]
    if not any(found.counts):
        reason = found.reason or "Nothing was observed in this window: no request got that far."
        return charts.message(f"{name}: not known", frame, reason)
    p99 = fmt.seconds(charts.last_known(found.lines[0.99]))
    if now is not None:
        p99 = fmt.latency_value(now[f"{signal}.p99"])
    highest = max((v for line in found.lines.values() for v in line if v is not None), default=0.0)
    return charts.latency(f"{name}: p99 {p99}", frame, found, milliseconds=highest < 1.0)


def targets(view: LiveView, history_problem: str | None, past_problems: Sequence[str] = ()) -> None:
    """What is asked, how it answers, and what asking costs it."""
    with st.expander("Targets and what watching costs them", key="live_targets"):
        lines = ["| Target | State | Last answer | One answer takes | Asked | Its time spent on us |"]
        lines += ["|---|---|---|---|---|---|"]
        for t in view.targets:
            reason = f": {t.reason}" if t.reason else ""
            every = "" if t.load.scrapes_per_s is None else f"every {1 / t.load.scrapes_per_s:.1f} s"
            lines.append(
                f"| {t.name} | {t.state}{reason} | "
                f"{'never' if t.age_s is None else fmt.duration(t.age_s) + ' ago'} | "
                f"{fmt.seconds(t.scrape_s)} | {t.slowed or every} | {fmt.percent(t.load.busy_share)} |"
            )
        lines += ["", f"Not kept: {history_problem}" if history_problem else "Every reading is kept."]
        lines += [f"- {problem}" for problem in past_problems]
        notes = {f"{t.name}: {note}" for t in view.targets for note in t.notes}
        lines += [f"- {note}" for note in sorted(notes)]
        st.markdown("\n".join(lines))


def only(intervals: Sequence[Interval], view: LiveView, focus: str | None) -> list[Interval]:
    """The intervals of the replica in focus, or all of them."""
    chosen = next((e for e in view.engines if e.name == focus), None)
    if chosen is None:
        return list(intervals)
    return [i for i in intervals if i.target == chosen.target and i.engine == chosen.engine]
