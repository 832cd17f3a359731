"""The planner's figures: plain data in, a Plotly figure with its message and its rows out. No Streamlit.

Colours are the look's: one per memory term in one order, everywhere. Left out: where a figure is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from capacity.plan import Plan
from capacity.textbook_steps import Step
from capacity.units import GIB
from pages.ui.figure import (
    ACT,
    CRITICAL,
    GREY,
    INFORMATION,
    OK,
    Chart,
    Drawing,
    dress,
    labels,
    mark,
    powers,
    span,
)
from pages.ui.format import count, gib, percent, times

TERM_COLOURS = {
    "weights": "#0072B2",
    "activation": "#56B4E9",
    "cuda_graphs": "#AA4499",
    "non_torch": "#B8A24A",
    "other": "#7A5C3E",
    "kv_cache": "#009E73",
    "unused": "#C9CFD5",
}
TERM_NAMES = {
    "weights": "Weights",
    "activation": "Activation",
    "cuda_graphs": "CUDA graphs",
    "non_torch": "Non-torch",
    "other": "Other",
    "kv_cache": "KV cache",
    "unused": "Unused",
}
LABEL_FROM = 0.07


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPoint:
    """Full-length requests at one max_model_len; low and high carry the memory interval."""

    tokens: int
    requests: float
    low: float
    high: float
    textbook: int | None


def memory_bar(plan: Plan, *, ink: str) -> Chart | None:
    """The bill of the GPU that sets the pool as one stacked bar, with the budget line in ``ink``; None without a GPU."""
    bill = plan.bill
    if bill is None:
        return None
    total = bill.total_bytes / GIB
    budget = bill.budget_bytes / GIB
    stage = plan.pool.stage if plan.pool else 0
    kv = plan.kv_bytes[stage] / GIB
    parts: list[tuple[str, float, float | None, float | None]] = [
        (term.name, term.bytes / GIB, term.low_bytes / GIB, term.high_bytes / GIB) for term in bill.terms
    ]
    parts.append(("kv_cache", kv, plan.kv_low_bytes[stage] / GIB, plan.kv_high_bytes[stage] / GIB))
    used = sum(part[1] for part in parts)
    parts.append(("unused", max(0.0, total - used), None, None))
    outside = 0.0 if bill.graphs_in_budget else next(p[1] for p in parts if p[0] == "cuda_graphs")
    line, reach = budget + outside, max(total, used)
    figure = Drawing()
    for name, size, low, high in parts:
        if size <= 0:
            continue
        spread = f" ({gib(low)}-{gib(high)})" if low is not None and gib(low) != gib(high) else ""
        figure.add_bar(
            y=[""],
            x=[size],
            orientation="h",
            name=f"{TERM_NAMES[name]} {gib(size)}",
            marker={"color": TERM_COLOURS[name], "line": {"width": 1, "color": "rgba(255,255,255,0.6)"}},
            text=f"{TERM_NAMES[name]}<br>{gib(size)}" if size / reach >= LABEL_FROM else "",
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={
                "color": "#FFFFFF" if name in ("weights", "cuda_graphs", "other") else "#10161C",
                "size": 13,
            },
            hovertemplate=f"{TERM_NAMES[name]}: {gib(size)}{spread} GiB<extra></extra>",
        )
    over = used > line * 1.001
    figure.add_vline(x=line, line={"dash": "dash", "width": 2.5, "color": CRITICAL if over else ink})
    text = f"budget {gib(budget)} GiB" + (", CUDA graphs outside it" if outside else "")
    figure.add_annotation(
        x=line,
        y=1,
        yref="paper",
        text=text,
        showarrow=False,
        xanchor="right",
        yanchor="bottom",
        xshift=-2,
        font={"color": ink, "size": 13},
    )
    dress(figure, height=136)
    figure.update_layout(
        barmode="stack",
        showlegend=True,
        legend={
            "orientation": "h",
            "y": -0.08,
            "x": 0,
            "xanchor": "left",
            "yanchor": "top",
            "traceorder": "normal",
        },
        margin={"l": 0, "r": 8, "t": 22, "b": 40},
        xaxis={"range": [0, reach * 1.005], "showticklabels": False, "showgrid": False, "zeroline": False},
        yaxis={"showticklabels": False, "showgrid": False},
    )
    share = "" if total == 0 else f", {percent(kv / total)} of the card"
    title = (
        f"One GPU: weights take {gib(parts[0][1])} of {gib(total)} GiB, {gib(kv)} GiB are left for KV cache"
        if kv > 0
        else f"One GPU: {gib(used)} GiB are needed before any KV cache, the budget is {gib(budget)} GiB"
    )
    alt = f"{title}{share}. " + ", ".join(f"{TERM_NAMES[p[0]]} {gib(p[1])} GiB" for p in parts if p[1] > 0)
    rows = [
        {
            "term": TERM_NAMES[n],
            "gib": s,
            "low_gib": lo,
            "high_gib": hi,
            "budget_gib": budget,
            "total_gib": total,
        }
        for n, s, lo, hi in parts
    ]
    return Chart(figure=figure.done(), title=title, alt=alt, rows=tuple(rows))


def concurrency_curve(plan: Plan, points: Sequence[LengthPoint], *, ink: str) -> Chart:
    """Full-length requests against their length, log-log, with the memory's band and the chosen point.

    ``ink``: the colour of labels in the visitor's theme.
    """
    drawn = [p for p in points if p.requests > 0]
    chosen = plan.resolved.max_model_len
    here = min(drawn, key=lambda p: abs(p.tokens - chosen)) if drawn else None
    seats = plan.concurrency.seats
    figure = Drawing()
    xs = [p.tokens for p in drawn]
    figure.add_scatter(
        x=[*xs, *reversed(xs)],
        y=[*(p.high for p in drawn), *(p.low for p in reversed(drawn))],
        fill="toself",
        fillcolor="rgba(0,158,115,0.18)",
        line={"width": 0},
        hoverinfo="skip",
        name="interval",
    )
    first = next((p for p in points if p.textbook), None)
    book = (
        [(p.tokens, first.textbook * first.tokens / p.tokens) for p in points]
        if first and first.textbook
        else []
    )
    book = [pair for pair in book if pair[1] >= 0.5]
    if book:
        figure.add_scatter(
            x=[b[0] for b in book],
            y=[b[1] for b in book],
            mode="lines",
            line={"color": GREY, "width": 1.5, "dash": "dot"},
            name="textbook",
            hovertemplate="textbook: %{y:,.0f} requests of %{x:,} tokens<extra></extra>",
        )
    figure.add_scatter(
        x=xs,
        y=[p.requests for p in drawn],
        mode="lines",
        line={"color": OK, "width": 2.5},
        customdata=[(p.low, p.high) for p in drawn],
        name="engine",
        hovertemplate="%{y:,.1f} (%{customdata[0]:,.1f}-%{customdata[1]:,.1f}) requests of %{x:,} tokens<extra></extra>",
    )
    figure.add_hline(y=seats, line={"dash": "dash", "width": 1.5, "color": INFORMATION})
    if drawn:
        mark(figure, xs[-1], seats, f"seats {count(seats)}", ink, anchor="right")
        if book:
            tokens, requests = book[len(book) * 3 // 4]
            mark(figure, tokens, requests, "textbook", ink, anchor="left")
    title = "No length in this range fits"
    if here is not None and here.tokens == chosen:
        figure.add_scatter(
            x=[chosen],
            y=[here.requests],
            mode="markers",
            marker={"size": 11, "color": OK, "line": {"width": 2, "color": "#FFFFFF"}},
            hovertemplate=f"chosen: {chosen:,} tokens, {here.requests:,.2f}x<extra></extra>",
            name="chosen",
        )
        late = math.log(chosen / xs[0]) > 0.45 * math.log(max(xs[-1] / xs[0], 1.001))
        words = f"engine, {chosen:,} tokens: {times(here.requests)}"
        mark(figure, chosen, here.requests, words, ink, anchor="right" if late else "left", below=late)
        title = _curve_title(plan, drawn, seats)
    dress(figure, height=340)
    figure.update_xaxes(
        type="log", title="max_model_len, tokens (log)", tickvals=powers(xs), ticktext=labels(xs)
    )
    heights = (
        [p.low for p in drawn if p.low > 0] + [p.high for p in drawn] + [b[1] for b in book] + [float(seats)]
    )
    figure.update_xaxes(range=span(xs or [p.tokens for p in points], 0.02))
    figure.update_yaxes(
        type="log", title="full-length requests (log)", dtick=1, tickformat=",", range=span(heights, 0.08)
    )
    rows = tuple(
        {
            "max_model_len": p.tokens,
            "requests": p.requests,
            "low": p.low,
            "high": p.high,
            "textbook": p.textbook,
        }
        for p in points
    )
    return Chart(
        figure=figure.done(), title=title, alt=f"{title}. Line chart, both axes logarithmic.", rows=rows
    )


def _curve_title(plan: Plan, drawn: Sequence[LengthPoint], seats: int) -> str:
    r = plan.resolved
    free = [p.tokens for p in drawn if p.requests >= seats]
    longest = [p.tokens for p in drawn if p.requests >= 1]
    if not longest:
        return "Not one full-length request fits at any length shown"
    tail = f"one still fits at {longest[-1]:,} tokens"
    if free and free[-1] >= r.max_model_len:
        return f"Seats bind up to about {free[-1]:,} tokens; {tail}"
    return f"KV cache binds at {r.max_model_len:,} tokens; {tail}"


def allocation(plan: Plan) -> Chart | None:
    """Tokens reserved for a mean request: one piece of max_model_len against blocks; None without a workload."""
    parts = plan.fragmentation
    if parts is None:
        return None
    paged = parts.used_tokens + parts.paged_waste_tokens
    names = ["Contiguous: max_model_len each", "Paged: blocks as needed"]
    figure = Drawing()
    empty = [parts.reserved_tokens - parts.used_tokens, parts.paged_waste_tokens]
    figure.add_bar(y=names, x=[parts.used_tokens] * 2, orientation="h", name="used", marker={"color": OK},
                   hovertemplate="used: %{x:,.0f} tokens<extra></extra>")  # fmt: skip
    figure.add_bar(y=names, x=empty, orientation="h", name="reserved, empty", marker={"color": ACT},
                   hovertemplate="reserved and empty: %{x:,.1f} tokens<extra></extra>")  # fmt: skip
    for name, width, share, held in (
        (names[0], parts.reserved_tokens, parts.waste_share, parts.contiguous_requests),
        (names[1], paged, parts.paged_waste_share, parts.paged_requests),
    ):
        inside = width > parts.reserved_tokens * 0.6
        figure.add_annotation(
            y=name, x=width, text=f"{percent(share)} empty, {count(held)} requests", showarrow=False,
            xanchor="right" if inside else "left", xshift=-6 if inside else 6,
            font={"color": "#10161C"} if inside else {},
        )  # fmt: skip
    dress(figure, height=190)
    figure.update_layout(
        barmode="stack",
        showlegend=True,
        legend={"orientation": "h", "y": 1.22, "x": 0, "traceorder": "normal"},
    )
    figure.update_xaxes(title="tokens reserved for a mean request", tickformat=",")
    figure.update_yaxes(autorange="reversed")
    title = (
        f"Reserving {count(parts.reserved_tokens)} tokens per request leaves {percent(parts.waste_share)} empty: "
        f"{count(parts.contiguous_requests)} requests in place of {count(parts.paged_requests)}"
    )
    rows = (
        {"allocation": "contiguous", "reserved_tokens": parts.reserved_tokens, "used_tokens": parts.used_tokens,
         "empty_share": parts.waste_share, "requests": parts.contiguous_requests},
        {"allocation": "paged", "reserved_tokens": paged, "used_tokens": parts.used_tokens,
         "empty_share": parts.paged_waste_share, "requests": parts.paged_requests},
    )  # fmt: skip
    return Chart(figure=figure.done(), title=title, alt=title, rows=rows)


def block_sizes(plan: Plan) -> Chart | None:
    """Empty tokens in the last blocks of one request, by block size; None without a workload."""
    parts = plan.fragmentation
    if parts is None:
        return None
    sizes = [str(size) for size, _, _ in parts.by_block_size]
    wastes = [waste for _, waste, _ in parts.by_block_size]
    figure = Drawing()
    figure.add_bar(
        x=sizes, y=wastes, marker={"color": ACT}, text=[f"{w:,.1f}" for w in wastes], textposition="outside",
        cliponaxis=False, hovertemplate="block of %{x}: %{y:,.1f} tokens empty per request<extra></extra>",
    )  # fmt: skip
    dress(figure, height=230)
    figure.update_xaxes(title="block size, tokens", type="category")
    figure.update_yaxes(title="empty tokens per request", rangemode="tozero")
    first, last = parts.by_block_size[0], parts.by_block_size[-1]
    title = (
        f"Blocks of {last[0]} tokens leave {last[1]:,.0f} tokens of each request empty and hold {count(last[2])} "
        f"requests; blocks of {first[0]} hold {count(first[2])}"
    )
    rows = tuple(
        {"block_size": s, "empty_tokens_per_request": w, "requests": n} for s, w, n in parts.by_block_size
    )
    return Chart(figure=figure.done(), title=title, alt=title, rows=rows)


def textbook_walk(found: Sequence[Step]) -> Chart | None:
    """Requests after each step from the textbook to the engine; None when no memory is known."""
    if not found:
        return None
    names, values = (
        [step.name.capitalize() if step.name != "textbook" else "Textbook" for step in found],
        [step.requests for step in found],
    )
    colours = [GREY, *([INFORMATION] * (len(found) - 2)), OK]
    figure = Drawing()
    figure.add_bar(
        y=names, x=values, orientation="h", marker={"color": colours}, text=[f"{v:,.2f}" for v in values],
        textposition="outside", cliponaxis=False, customdata=[step.detail for step in found],
        hovertemplate="%{y}: %{x:,.2f} requests<br>%{customdata}<extra></extra>",
    )  # fmt: skip
    dress(figure, height=40 + 38 * len(found))
    figure.update_xaxes(title="full-length requests", range=[0, max([*values, 0.1]) * 1.15])
    figure.update_yaxes(autorange="reversed")
    title = f"The textbook says {found[0].requests:,.0f} requests, the engine holds {found[-1].requests:,.0f}"
    rows = tuple({"step": s.name, "detail": s.detail, "requests": s.requests} for s in found)
    return Chart(figure=figure.done(), title=title, alt=f"{title}. Bars, one per step.", rows=rows)


def weight_parts(plan: Plan) -> Chart:
    """Weights of each pipeline stage's fullest GPU: sharded, replicated, padded."""
    stages = plan.weights.stages
    names = ["each GPU"] if len(stages) == 1 else [f"stage {i}" for i in range(len(stages))]
    figure = Drawing()
    for part, colour in (("sharded", "#0072B2"), ("replicated", "#56B4E9"), ("padded", "#B8A24A")):
        values = [getattr(stage, part) / GIB for stage in stages]
        figure.add_bar(y=names, x=values, orientation="h", name=part, marker={"color": colour},
                       hovertemplate=f"%{{y}}: {part} %{{x:,.3f}} GiB<extra></extra>")  # fmt: skip
    dress(figure, height=110 + 30 * len(stages))
    figure.update_layout(
        barmode="stack",
        showlegend=True,
        legend={"orientation": "h", "y": 1.3, "x": 0, "traceorder": "normal"},
    )
    figure.update_xaxes(title="GiB")
    figure.update_yaxes(autorange="reversed")
    worst = plan.weights.worst
    title = (
        f"{gib(worst.total / GIB)} GiB of weights on the fullest GPU, "
        f"{percent(worst.replicated / worst.total if worst.total else None)} of it on every rank"
    )
    rows = tuple(
        {"gpu": name, "sharded_gib": s.sharded / GIB, "replicated_gib": s.replicated / GIB,
         "padded_gib": s.padded / GIB, "total_gib": s.total / GIB}
        for name, s in zip(names, stages, strict=True)
    )  # fmt: skip
    return Chart(figure=figure.done(), title=title, alt=title, rows=rows)
