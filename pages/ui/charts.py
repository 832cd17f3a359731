"""The planner's figures in the tabs: plain data in, a Plotly figure with its message and its rows out. No Streamlit.

Colours are the look's: one per memory term in one order, everywhere. Left out: the bill and the length curve
(first_charts), where a figure is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from capacity.plan import Plan
from capacity.textbook_steps import Step
from capacity.units import GIB
from pages.ui.figure import ACT, GREY, INFORMATION, OK, Chart, Drawing, dress
from pages.ui.format import count, gib, percent

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


def allocation(plan: Plan) -> Chart | None:
    """Tokens reserved for a mean request: one piece of max_model_len against blocks; None without a workload."""
    parts = plan.fragmentation
    if parts is None:
        return None
    paged = parts.used_tokens + parts.paged_waste_tokens
    names = ["contiguous", "paged"]
    figure = Drawing()
    empty = [parts.reserved_tokens - parts.used_tokens, parts.paged_waste_tokens]
    figure.add_bar(y=names, x=[parts.used_tokens] * 2, orientation="h", name="used", marker={"color": OK},
                   hovertemplate="used: %{x:,.0f} tokens<extra></extra>")  # fmt: skip
    figure.add_bar(y=names, x=empty, orientation="h", name="reserved, empty", marker={"color": ACT},
                   hovertemplate="reserved and empty: %{x:,.1f} tokens<extra></extra>")  # fmt: skip
    for name, void, share, held in (
        (names[0], empty[0], parts.waste_share, parts.contiguous_requests),
        (names[1], empty[1], parts.paged_waste_share, parts.paged_requests),
    ):
        figure.add_annotation(
            y=name, x=0, yshift=29, showarrow=False, xanchor="left",
            text=f"<b>{count(held)} requests</b>: {count(parts.used_tokens)} used, {count(void)} empty ({percent(share)})",
        )  # fmt: skip
    dress(figure, height=210)
    figure.update_layout(barmode="stack", bargap=0.55)
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
    title = f"{gib(worst.total / GIB)} GiB of weights on one GPU"
    if plan.resolved.parallel.tensor > 1:
        kept = percent(worst.replicated / worst.total if worst.total else None)
        title = f"{gib(worst.total / GIB)} GiB of weights on the fullest GPU, {kept} of it on every rank"
    rows = tuple(
        {"gpu": name, "sharded_gib": s.sharded / GIB, "replicated_gib": s.replicated / GIB,
         "padded_gib": s.padded / GIB, "total_gib": s.total / GIB}
        for name, s in zip(names, stages, strict=True)
    )  # fmt: skip
    return Chart(figure=figure.done(), title=title, alt=title, rows=rows)
