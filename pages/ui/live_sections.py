"""The Live page's parts as drawn: banner, figures, waterline, table, charts, targets. Left out: controls."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from capacity.intervals import Interval
from capacity.live_series import LatencySeries, PoolSeries
from capacity.telemetry import Signals, Value
from capacity.verdicts import Verdict, thresholds
from connectors.live_view import RATE_SCRAPES, RATE_WINDOW_S, LiveView
from pages.ui import live_charts as charts
from pages.ui import live_format as fmt
from pages.ui import live_table

HEIGHT, TALL = 210, 250
FULL = 0.985
LATENCIES = {"ttft_s": "TTFT: time to first token", "itl_s": "ITL: time between tokens"}
ALERTS = {"ok": st.success, "info": st.info, "warning": st.warning, "critical": st.error}


def demo_tag(demo: bool) -> str:
    """A badge for panels that show made-up readings."""
    return " :violet-badge[DEMO]" if demo else ""


def banner(view: LiveView, *, large: bool = False) -> None:
    """The answer in words: state as word, icon and colour, then the first thing to do."""
    tag = demo_tag(view.demo)
    if view.verdict is None:
        names = fmt.listing(view.waiting_for)
        st.info(f"Asking {names} for the first time{tag}", icon=":material/hourglass_empty:")
        return
    banner_of(view.verdict, advice=_age(view), demo=view.demo, large=large)


def banner_of(verdict: Verdict, *, advice: str, demo: bool, large: bool = False) -> None:
    """A verdict as word, icon and colour, the first thing to do, and ``advice`` (how old it is)."""
    tag = demo_tag(demo)
    look = fmt.SEVERITY_LOOKS[verdict.severity.value]
    first = verdict.actions[0] if verdict.actions else None
    if first and verdict.severity.value != "ok":
        advice = f"To do: {first.text}.  \n{advice}"
    if large:
        said = verdict.summary.removeprefix(f"{verdict.name}: ")
        name = f"{verdict.name[:1].upper()}{verdict.name[1:]}"
        ALERTS[verdict.severity.value](f"## {name}{tag}  \n#### {said[:1].upper()}{said[1:]}", icon=look.icon)
        return
    text = f"**{verdict.summary[:1].upper()}{verdict.summary[1:]}**{tag}  \n{advice}"
    ALERTS[verdict.severity.value](text, icon=look.icon)


def evidence(
    verdict: Verdict | None, *, key: str = "live_why", others: Sequence[tuple[str, Verdict]] = ()
) -> None:
    """Why the verdict is what it is, how sure, and everything that could be done with its price; ``others``
    are the replicas with theirs.
    """
    with st.expander("Why, and what to do", key=key):
        if verdict is None:
            st.caption("Nothing has been read yet.")
            return
        said = [f"- **{name}** {one.summary}" for name, one in others if one.severity.value != "ok"]
        if said:
            st.markdown("\n".join(said))
        lines = [f"Confidence {verdict.confidence.value}."]
        lines += [f"- {one.text}" + (f" `{one.metric}`" if one.metric else "") for one in verdict.evidence]
        if verdict.actions:
            lines += ["", "What to do, in this order:"]
            lines += [
                f"1. {a.action}" + (f" `{a.flag}`" if a.flag else "") + f" (cost: {a.cost})"
                for a in verdict.actions
            ]
        st.markdown("\n".join(lines))


def _value(view: LiveView, name: str) -> Value:
    if view.pool is None:
        return Value(reason="not read yet")
    return view.pool[name]


def figures(view: LiveView) -> None:
    """Five headline figures; each one's tooltip has the metric name or the reason it is not known."""
    kv, waiting, running = (_value(view, n) for n in ("kv_usage", "waiting", "running"))
    out, preempted = _value(view, "generation_tokens_per_s"), _value(view, "preemptions_per_s")
    full, full_help = _time_to_full(view)
    shown = (
        ("Fullest replica", fmt.percent(kv.number), fmt.why(kv)),
        ("Running", fmt.count(running.number), fmt.why(running)),
        ("Waiting", fmt.count(waiting.number), fmt.why(waiting)),
        ("Output tokens/s", fmt.rate(out.number), _last_minute(out)),
        ("Time to full", full, full_help),
    )
    with st.container(horizontal=True, horizontal_alignment="distribute", gap="small"):
        for name, value, tip in shown:
            st.metric(name, value, help=tip, width=164)
    prompt = _value(view, "prompt_tokens_per_s")
    with st.container(horizontal=True, horizontal_alignment="distribute", gap="small"):
        for family, name in LATENCIES.items():
            text, tip = _percentiles(view, family)
            st.markdown(f":gray[{name.partition(':')[0]} p50·90·99] {text}", help=tip, width="content")
        st.markdown(f":gray[Waiting for] **{_reasons(view)}**", width="content")
        st.markdown(
            f":gray[Input] **{fmt.rate(prompt.number)} tok/s**", help=_last_minute(prompt), width="content"
        )
        st.markdown(
            f":gray[Preemptions] **{fmt.rate(preempted.number)}/s**",
            help=_last_minute(preempted),
            width="content",
        )


def _last_minute(value: Value) -> str:
    """A rate's tooltip: over what, and its metric or why it is not known."""
    return f"Mean over the last {RATE_WINDOW_S:g} s, at least {RATE_SCRAPES} scrapes.  \n{fmt.why(value)}"


def wall_figures(view: LiveView, frame: charts.Frame) -> None:
    """The five figures for a screen on the wall."""
    numbers = {
        n: _value(view, n).number for n in ("kv_usage", "waiting", "running", "generation_tokens_per_s")
    }
    severity = view.verdict.severity.value if view.verdict else "unknown"
    shown = [
        (fmt.percent(numbers["kv_usage"]), "fullest replica"),
        (fmt.count(numbers["waiting"]), "waiting"),
        (fmt.count(numbers["running"]), "running"),
        (fmt.rate(numbers["generation_tokens_per_s"]), "output tokens/s"),
        (_time_to_full(view)[0], "time to full"),
    ]
    text = ", ".join(f"{name} {value}" for value, name in shown)
    option = charts.wall(shown, frame, colour=fmt.SEVERITY_LOOKS[severity].hex)
    st.echarts_chart(option, height=150, key="live_chart_wall", alt=text)


def _time_to_full(view: LiveView) -> tuple[str, str]:
    """The earliest replica, with its interval in the tooltip, or why there is no forecast."""
    full = [e.name for e in view.engines if e.signals and (e.signals.number("kv_usage") or 0.0) >= FULL]
    if full:
        return "full", f"{fmt.listing(full)}: no free block is left; new requests wait."
    first = view.first_full
    if first is None or first.forecast is None:
        reasons = [f"{e.name}: {e.forecast.reason}" for e in view.engines if e.forecast and e.forecast.reason]
        return fmt.UNKNOWN, "  \n".join(reasons[:6]) or "No replica reports KV usage."
    found = first.forecast
    low, high = fmt.duration(found.low_s), fmt.duration(found.high_s)
    return (
        fmt.duration(found.expected_s),
        f"{first.name}: between {low} and {high} (95 %), from {found.points} scrapes over "
        f"{fmt.duration(found.span_s)}, if the trend goes on.",
    )


def _percentiles(view: LiveView, family: str) -> tuple[str, str]:
    """p50, p90 and p99 in one line, and what stands behind them."""
    values = [_value(view, f"{family}.{p}") for p in ("p50", "p90", "p99")]
    if all(v.number is None for v in values):
        return fmt.UNKNOWN, fmt.why(values[0]) or "not known"
    return (
        f"**{fmt.latencies(values)}**",
        f"p50 · p90 · p99 over the last {RATE_WINDOW_S:g} s, at least {RATE_SCRAPES} scrapes; "
        f"p99: {fmt.why(values[2]) or 'exact'}",
    )


def _reasons(view: LiveView) -> str:
    found = _value(view, "waiting_by_reason")
    if not isinstance(found.value, dict) or not sum(found.value.values()):
        waiting = _value(view, "waiting").number
        return "nothing" if waiting == 0 else ("not told by this release" if waiting else fmt.UNKNOWN)
    return ", ".join(f"{reason} {fmt.count(n)}" for reason, n in found.value.items() if n)


def _age(view: LiveView) -> str:
    ages = [e.age_s for e in view.engines if e.age_s is not None and e.signals is not None]
    when = f"Scraped {fmt.duration(max(ages))} ago" if ages else "Nothing answers"
    return f"{when}; {view.answering} of {len(view.targets)} targets answer."


def waterline(series: PoolSeries, frame: charts.Frame, *, height: int = TALL) -> None:
    """The one chart that explains the answer."""
    lines = thresholds()
    newest = {key: charts.last_known(line) for key, line in series.kv_usage.items()}
    known = {key: v for key, v in newest.items() if v is not None}
    if not known:
        title, alt = "Waterline: not known in this window", "No replica reported KV usage in this window"
    else:
        top = max(known, key=lambda key: known[key])
        title = f"Waterline: {charts.engine_name(top, list(newest))} at {fmt.percent(known[top])}"
        alt = f"KV blocks in use per replica. {title}"
    st.echarts_chart(
        charts.waterline(
            series, frame, act=lines["kv_act"].value, critical=lines["kv_critical"].value, title=title
        ),
        height=height,
        key="live_chart_waterline",
        alt=alt,
    )


def table(view: LiveView) -> str | None:
    """Replicas, worst first. Returns the name of the one that was clicked."""
    data = live_table.frame(view)
    event = st.dataframe(
        data,
        key="live_table",
        hide_index=True,
        height="auto" if len(data) <= 10 else 400,
        on_select="rerun",
        selection_mode="single-row",
        column_config={
            "State": st.column_config.TextColumn("State", width=112),
            "KV in use": st.column_config.ProgressColumn(
                "KV in use", min_value=0, max_value=100, format="%.0f %%", width=96
            ),
            **{
                name: st.column_config.TextColumn(name, width=width, help=tip)
                for name, (width, tip) in live_table.NARROW.items()
            },
            "Why": st.column_config.TextColumn("Why", width="large"),
        },
    )
    rows = event.selection.rows
    return str(data.iloc[rows[0]]["Replica"]) if rows and rows[0] < len(data) else None


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
        steps = charts.last_known(series.tokens_per_step)
        title = f"Tokens per step: {fmt.count(steps)}"
        _chart(
            "steps",
            charts.lines(title, frame, times, {"tokens per step": series.tokens_per_step}, unit="tokens"),
            height,
        )
    with right:
        _chart("prefix", _prefix(series, frame), height)
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


def _queue(series: PoolSeries, frame: charts.Frame) -> charts.Option:
    waiting = charts.last_known(series.totals.get("waiting", ()))
    running = charts.last_known(series.totals.get("running", ()))
    named = {"running": series.totals.get("running", ()), "waiting": series.totals.get("waiting", ())}
    deferred = series.totals.get("waiting_deferred", ())
    if any(deferred):
        named["deferred"] = deferred
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
    return charts.lines(
        f"Throughput: {fmt.rate(out)} output tokens/s", frame, series.times_s, named, unit="tokens/s"
    )


def _prefix(series: PoolSeries, frame: charts.Frame) -> charts.Option:
    rate = charts.last_known(series.prefix_hit_rate)
    if not any(v is not None for v in series.prefix_hit_rate):
        return charts.message("Prefix-cache hits", frame, "No prefix was looked up in this window.")
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
