"""The planner's answer on the screen: verdict, figures, bill, fixes, tabs. Draws a Plan, computes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from capacity.answer import verdict
from capacity.explain import explain
from capacity.export.serve_command import serve_command, serve_notes
from capacity.fixes import fixes
from capacity.plan import Plan
from capacity.scenario import field_table
from capacity.textbook_steps import steps
from capacity.units import GIB
from pages.ui import charts, first_charts
from pages.ui.curve import length_points
from pages.ui.downloads import download
from pages.ui.figure import Chart
from pages.ui.first_charts import Picture
from pages.ui.format import UNKNOWN, between, count, first_upper, gib, percent, short_model, table_csv
from pages.ui.inputs import apply
from pages.ui.speed_section import speed

TABS = (
    "Length",
    "Speed",
    "Allocation",
    "Engine log and command",
    "Textbook",
    "How this number came about",
    "Assumptions",
    "Weights per GPU",
)
STATES = {
    "yes": (st.success, ":material/check_circle:"),
    "marginal": (st.warning, ":material/warning:"),
    "no": (st.error, ":material/cancel:"),
}


def name_of(plan: Plan) -> str:
    """A plan in a few words."""
    r = plan.resolved
    gpus = f"{r.parallel.gpus} x {r.gpu.id if r.gpu else 'GPU'}"
    return f"{short_model(r.spec.model_id)} on {gpus}, vLLM {r.release.asked}, {r.max_model_len:,} tokens"


def problem(sentence: str, *, key: str | None, stale: bool) -> None:
    """What was wrong with the input and where it is; what was typed stays there."""
    field = field_table().get(key or "")
    where = f"{field.group.capitalize()}, {field.label}: " if field is not None else ""
    if field is not None and field.label.lower() == field.group:
        where = ""
    tail = " Nothing you entered is lost." + (" Below is the last answer." if stale else "")
    st.error(f"**Check the input.** {_plain(where + sentence)}{tail}", icon=":material/error:")


def _plain(text: str) -> str:
    for mark in ("\\", "`", "*", "_", "[", "]", "$", "#", "~", "<", ":"):
        text = text.replace(mark, f"\\{mark}")
    return text


def answer_block(plan: Plan, *, stale: bool) -> None:
    """The verdict, at most five figures, the bill, and what to change when it does not fit.

    ``stale``: the answer is not for the inputs as they stand; the banner is grey and names what it is for.
    """
    show, icon = STATES[plan.fit]
    sentence = verdict(plan)
    word, _, rest = sentence.partition(". " if plan.fit == "yes" else ": ")
    words = f"**{word}{'.' if plan.fit == 'yes' else ':'}** {_plain(rest)}"
    if stale:
        with st.container(border=True):
            st.markdown(f":material/history: **Last answer**, for {_plain(name_of(plan))}. It was: {words}")
    else:
        show(words, icon=icon)
    _figures(plan)
    bar = first_charts.memory_bar(plan, ink=_ink())
    if bar is None:
        st.caption("No GPU is given: the KV memory is taken as you measured it, without a bill.")
    else:
        _chart(bar, "memory")
    if plan.fit != "yes":
        _fixes(plan)


def _ink() -> str:
    """The colour of lines that must stand out from the bars in the visitor's theme."""
    return first_charts.INK_ON_DARK if st.context.theme.type == "dark" else first_charts.INK


def _figures(plan: Plan) -> None:
    counted, pool, r = plan.concurrency, plan.pool, plan.resolved
    stage = pool.stage if pool else 0
    usual = counted.typical
    per = " per replica" if r.parallel.data > 1 else ""
    row = st.container(horizontal=True, gap="small")

    def figure(label: str, value: str, beside: str, hint: str) -> None:
        row.metric(
            label,
            value,
            beside or None,
            delta_color="off",
            delta_arrow="off",
            help=hint,
            border=True,
            height="stretch",
        )

    figure(
        f"Guaranteed{per}",
        count(counted.guaranteed),
        between(counted.low, counted.high, count) or "requests",
        f"Whole requests that fit when each grows to max_model_len ({r.max_model_len:,} tokens), with the memory's interval.",
    )
    starts = pool is not None and pool.starts
    figure(
        f"Typical{per}",
        count(usual.mean if plan.fit != "no" else 0) if usual else UNKNOWN,
        (
            "does not start"
            if plan.fit == "no"
            else f"{count(usual.safe)} at p{usual.percentile:g}{'' if starts else ', if it starts'}"
        )
        if usual
        else "no lengths given",
        "Requests in flight for the workload's lengths when the pool is full on average; beside it the number that "
        "holds at the safe percentile. Give prompt and output tokens on the left."
        + (f" Seats allow {counted.seats:,}." if usual else ""),
    )
    empty = plan.fit == "no" and not plan.kv_high_bytes[stage]  # the engine stops before it has a pool
    figure(
        "KV tokens",
        count(pool.tokens_logged) if pool and not empty else UNKNOWN,
        f"{count(plan.bytes_per_token_per_gpu / 1024)} KiB per token",
        "Tokens that the engine logs as GPU KV cache size at start-up; beside it the bytes of one token on one GPU.",
    )
    figure(
        "KV blocks",
        count(pool.num_blocks) if pool and not empty else UNKNOWN,
        f"{count(pool.blocks_per_max_request)} per full request" if pool else "",
        f"Blocks in the pool, of {plan.layout.block_size} tokens each; the engine keeps one for itself.",
    )
    figure(
        "KV cache per GPU",
        UNKNOWN if empty else f"{gib(plan.kv_bytes[stage] / GIB)} GiB",
        "no memory is left"
        if empty
        else between(plan.kv_low_bytes[stage] / GIB, plan.kv_high_bytes[stage] / GIB, gib)
        or ("as given" if plan.kv_given else "no interval"),
        "Memory left for KV cache on the GPU that has the least, with its 80 % interval.",
    )


def _fixes(plan: Plan) -> None:
    found = fixes(plan)
    st.markdown(
        "**What to change**, smallest effect on the deployment first. Each line was computed."
        if found
        else "**What to change**"
    )
    if not found:
        st.markdown(
            "No single change makes it fit. Tried: utilization, seats, KV in 8 bits, a shorter length, weights in "
            "fewer bits, up to 16 of these GPUs, up to 8 of every larger one of the vendor."
        )
        return
    box = st.container(border=True, gap="xxsmall")
    for index, fix in enumerate(found):
        line = box.container(horizontal=True, gap="small", vertical_alignment="center", wrap=False)
        holds = f"holds **{count(fix['guaranteed'])}**, logs {fix['max_concurrency']:.2f}x"
        if fix["fit"] != "yes":
            holds += " by the estimate; the low end of its interval holds none"
        line.markdown(f"{index + 1}. {_plain(first_upper(fix['action']))} Then it {holds}.")
        line.button("Apply", key=f"plan_fix_{index}", on_click=apply, args=(fix["changes"],), type="tertiary")
    rows = [
        {
            "action": fix["action"],
            "changes": json.dumps(fix["changes"]),
            "fit": fix["fit"],
            "guaranteed": fix["guaranteed"],
            "max_concurrency": fix["max_concurrency"],
        }
        for fix in found
    ]
    download("CSV", table_csv(rows), "fixes.csv", "text/csv", key="plan_download_fixes.csv")


def details(plan: Plan) -> None:
    """Everything else, one tab at a time; the open tab is part of the link."""
    for text in plan.warnings:
        st.caption(f":material/info: {_plain(first_upper(text))}")
    tabs = st.tabs(TABS, key="plan_tab", on_change="rerun", bind="query-params")
    drawers = (_length, speed, _allocation, _engine, _textbook, _explanation, _assumptions, _weights)
    for tab, draw in zip(tabs, drawers, strict=True):
        if tab.open:
            with tab:
                draw(plan)


def _chart(chart: Chart | Picture, key: str) -> None:
    left, right = st.columns([12, 1], vertical_alignment="center", wrap=False)
    left.markdown(f"**{_plain(chart.title)}**")
    with right, st.container(horizontal=True, horizontal_alignment="right"):
        download("CSV", table_csv(chart.rows), f"{key}.csv", "text/csv", key=f"plan_download_{key}.csv")
    if isinstance(chart, Picture):
        st.echarts_chart(chart.option, height=chart.height, key=f"plan_chart_{key}", alt=chart.alt)
        return
    st.plotly_chart(
        chart.figure,
        key=f"plan_chart_{key}",
        config={"displayModeBar": False, "responsive": True},
        alt=chart.alt,
    )


def _rows(
    rows: Sequence[Mapping[str, Any]], name: str, *, csv: Sequence[Mapping[str, Any]] | None = None
) -> None:
    """A table with its CSV; ``csv``: more columns than there is room for."""
    st.table([dict(row) for row in rows], hide_index=True, border="horizontal")
    download("CSV", table_csv(csv or rows), f"{name}.csv", "text/csv", key=f"plan_download_{name}.csv")


def _length(plan: Plan) -> None:
    _chart(first_charts.concurrency_curve(plan, length_points(plan), ink=_ink()), "length")
    st.caption(
        "The line is the engine's own figure, the band carries the memory's interval, dotted is the textbook."
    )


def _allocation(plan: Plan) -> None:
    parts = charts.allocation(plan), charts.block_sizes(plan)
    if parts[0] is None or parts[1] is None:
        st.info(
            "Give prompt and output tokens under Workload to compare allocations.",
            icon=":material/arrow_back:",
        )
        return
    _chart(parts[0], "allocation")
    _chart(parts[1], "block-sizes")
    st.caption(
        "Requests are counted at their workload's full length; the typical figure above counts them while they grow."
    )


def _engine(plan: Plan) -> None:
    st.markdown(f"**vLLM {plan.resolved.release.asked} will log at start-up**")
    lines = plan.pool.log_lines if plan.pool else ()
    st.code("\n".join(lines) or "nothing: the engine stops before", language=None, wrap_lines=True)
    if plan.pool is not None and plan.pool.refusal:
        st.caption(f"Then it stops: {_plain(plan.pool.refusal)}.")
    st.markdown("**Start it with**")
    st.code(serve_command(plan), language="bash", wrap_lines=True)
    for note in serve_notes(plan):
        st.caption(f":material/info: {_plain(first_upper(note))}")


def _textbook(plan: Plan) -> None:
    book = plan.textbook
    found = steps(plan)
    chart = charts.textbook_walk(found)
    if chart is None:
        st.info("Give a GPU to compare with the textbook: it needs the memory.", icon=":material/arrow_back:")
        return
    _chart(chart, "textbook")
    rule = (
        "bytes x layers x (latent + rope)"
        if plan.resolved.spec.uses_mla
        else "2 x bytes x layers x KV heads x head dim"
    )
    st.caption(
        f"Textbook: {rule} = {book.bytes_per_token:,} B per token, "
        f"{book.kv_gib_per_request:,.4g} GiB per request of {plan.resolved.max_model_len:,} tokens."
    )
    _rows(
        [{"step": s.name, "what changes": s.detail, "requests": f"{s.requests:,.2f}"} for s in found],
        "textbook-steps",
    )


def _explanation(plan: Plan) -> None:
    found = explain(plan)
    rows = [
        {"quantity": e.name, "equation": e.formula, "with the values put in": e.values, "result": e.result}
        for e in found
    ]
    _rows(rows, "equations", csv=[{**row, "source": e.source} for row, e in zip(rows, found, strict=True)])
    st.caption("The CSV holds each equation's source as well.")


def _assumptions(plan: Plan) -> None:
    st.markdown("**Not given, so taken by the engine's rules**")
    rows = [{"input": a.key, "value": a.value, "source": a.source} for a in plan.assumptions]
    if rows:
        _rows(rows, "assumptions")
    else:
        st.caption("Nothing: every input was given.")
    if plan.bill is not None:
        st.markdown("**Where the bill's terms come from**")
        _rows(
            [
                {
                    "term": charts.TERM_NAMES.get(term.name, term.name),
                    "GiB": gib(term.bytes / GIB),
                    "interval": between(term.low_bytes / GIB, term.high_bytes / GIB, gib) or UNKNOWN,
                    "basis": term.basis,
                    "source": term.source,
                }
                for term in (*plan.bill.terms, plan.bill.kv_cache)
            ],
            "terms",
        )
    for note in plan.resolved.spec.notes:
        st.caption(f":material/info: {_plain(first_upper(note))}")


def _weights(plan: Plan) -> None:
    _chart(charts.weight_parts(plan), "weights")
    worst = plan.weights.worst
    st.caption(
        f"Sharded: split over the ranks. Replicated: kept whole on each. Padded: added by alignment "
        f"({percent(worst.padded / worst.total if worst.total else None)}). Source: {_plain(plan.weights.source)}."
    )
