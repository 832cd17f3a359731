"""Single requests as bars over time, and the block pool as a map at one moment.

Plain data in, figures out. Left out: which run and which moment (simulate_sections).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from capacity.simulation.block_map import BlockMap
from pages.ui.figure import ACT, CRITICAL, INFORMATION, OK, Chart, Drawing, dress
from pages.ui.simulate_words import seconds

PARTS = (("queue", ACT), ("prefill", INFORMATION), ("decode", OK), ("preempted", CRITICAL))
REQUEST_COLOURS = (
    "#8EC5E8", "#F2C879", "#8FD3BD", "#E3B1CD", "#C8B7E6", "#F0A987", "#B9D98A", "#9FB4D6", "#E8D98C", "#D1B59A",
)  # fmt: skip
CELLS_WITH_TEXT = 400


def segments(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """What each of the first 200 requests did when: rows of request, part, from_s, to_s."""
    away = _preempted(answer.get("events") or [])
    rows = []
    for one in answer["gantt"]:
        arrival, end = one["arrival_s"], one["end_s"]
        if arrival is None or end is None:
            continue
        started, first = one["scheduled_s"], one["first_token_s"]
        edges = [arrival, *(end if at is None else min(at, end) for at in (started, first)), end]
        for part, low, high in zip(("queue", "prefill", "decode"), edges, edges[1:], strict=False):
            if high > low:
                rows.append({"request": one["request"], "part": part, "from_s": low, "to_s": high})
        for low, high in away.get(one["request"], []):
            if min(high, end) > low:
                rows.append(
                    {"request": one["request"], "part": "preempted", "from_s": low, "to_s": min(high, end)}
                )
    return rows


def _preempted(events: Sequence[dict[str, Any]]) -> dict[int, list[tuple[float, float]]]:
    found: dict[int, list[tuple[float, float]]] = {}
    since: dict[int, float] = {}
    for event in events:
        request = event["request"]
        if event["event"] == "preempt":
            since.setdefault(request, event["t_s"])
        elif event["event"] in ("resume", "admit", "finish", "abort") and request in since:
            found.setdefault(request, []).append((since.pop(request), event["t_s"]))
    for request, at in since.items():
        found.setdefault(request, []).append((at, math.inf))
    return found


def gantt(answer: dict[str, Any], name: str) -> Chart:
    """One bar a request: queue, prefill, decode, time preempted; a cross where it was refused or gave up."""
    rows = segments(answer)
    requests = answer["gantt"]
    figure = Drawing()
    for part, colour in PARTS:
        mine = [row for row in rows if row["part"] == part]
        if not mine:
            continue
        figure.add_bar(
            y=[row["request"] for row in mine],
            base=[row["from_s"] for row in mine],
            x=[row["to_s"] - row["from_s"] for row in mine],
            orientation="h",
            name=part,
            marker={"color": colour, "line": {"width": 0}},
            customdata=[[row["from_s"], row["to_s"]] for row in mine],
            hovertemplate=f"request %{{y}}, {part}: %{{customdata[0]:,.2f}} to %{{customdata[1]:,.2f}} s<extra></extra>",
        )
    lost = [one for one in requests if one["outcome"] in ("rejected", "aborted") and one["end_s"] is not None]
    if lost:
        figure.add_scatter(
            x=[one["end_s"] for one in lost],
            y=[one["request"] for one in lost],
            mode="markers",
            name="refused or gave up",
            marker={"symbol": "x", "size": 8, "color": CRITICAL},
            customdata=[str(one["reason"] or one["outcome"]).replace("_", " ") for one in lost],
            hovertemplate="request %{y}: %{customdata}, %{x:,.2f} s<extra></extra>",
        )
    dress(figure, height=min(150 + len(requests) * (22 if len(requests) <= 20 else 9), 1100))
    figure.update_layout(
        barmode="overlay",
        bargap=0.25,
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
        margin={"l": 0, "r": 12, "t": 34, "b": 0},
        hovermode="closest",
    )
    figure.update_xaxes(title="simulated time, s", zeroline=False)
    figure.update_yaxes(
        title="request, in order of arrival", autorange="reversed", zeroline=False, tickformat="d"
    )
    slowest = max(
        (one for one in requests if one["outcome"] == "finished"),
        key=lambda one: one["end_s"] - one["arrival_s"],
        default=None,
    )
    total = answer["requests"]["arrived"]
    scope = (
        f"{len(requests)} requests"
        if len(requests) >= total
        else f"First {len(requests)} of {total:,} requests"
    )
    title = (
        f"{name}: {scope}, none finished"
        if slowest is None
        else f"{name}: {scope}, the slowest is number {slowest['request']} with "
        f"{seconds(slowest['end_s'] - slowest['arrival_s'])}, {len(lost)} refused or gave up"
    )
    return Chart(
        figure=figure.done(), title=title, alt=f"{title}. One bar a request over time.", rows=tuple(rows)
    )


def block_picture(found: BlockMap, *, dark: bool) -> Chart:
    """The pool as a grid, one cell a block, in order of block id: who holds it, shared ones and free ones."""
    total = len(found.owner)
    wide = min(max(10, math.ceil(math.sqrt(total * 3) / 10) * 10), 100)
    tall = math.ceil(total / wide)
    free, shared = "#232C36" if dark else "#EEF1F4", "#AEB7C0"
    palette = [free, shared, *REQUEST_COLOURS]
    cells: list[list[int | None]] = []
    words: list[list[str]] = []
    inside: list[list[str]] = []
    rows = []
    for y in range(tall):
        line: list[int | None] = []
        hover, text = [], []
        for i in range(y * wide, (y + 1) * wide):
            if i >= total:
                line.append(None)
                hover.append("")
                text.append("")
                continue
            owner, readers = found.owner[i], found.readers[i]
            state = "free" if readers == 0 else "shared" if readers > 1 else "used"
            line.append(0 if readers == 0 else 1 if readers > 1 else 2 + owner % len(REQUEST_COLOURS))
            by = {"free": "free", "shared": f"shared by {readers} requests", "used": f"request {owner}"}[
                state
            ]
            hover.append(f"block {i + 1}: {by}")
            text.append("" if readers == 0 else f"{readers}x" if readers > 1 else str(owner))
            rows.append(
                {"block": i + 1, "state": state, "request": owner if readers else None, "readers": readers}
            )
        cells.append(line)
        words.append(hover)
        inside.append(text)
    steps = len(palette)
    scale = [pair for i, c in enumerate(palette) for pair in ((i / steps, c), ((i + 1) / steps, c))]
    trace: dict[str, Any] = {
        "type": "heatmap", "z": cells, "hovertext": words, "hovertemplate": "%{hovertext}<extra></extra>",
        "zmin": -0.5, "zmax": steps - 0.5, "colorscale": scale, "showscale": False, "xgap": 2, "ygap": 2,
    }  # fmt: skip
    if total <= CELLS_WITH_TEXT:
        trace |= {"text": inside, "texttemplate": "%{text}", "textfont": {"size": 12, "color": "#10161C"}}
    drawing = Drawing()
    dress(drawing, height=min(max(40 + tall * 26, 140), 620))
    bare = {"showticklabels": False, "showgrid": False, "zeroline": False}
    drawing.update_xaxes(**bare)
    drawing.update_yaxes(**bare, autorange="reversed")
    layout = drawing.done().layout
    used = found.used
    many = sum(readers > 1 for readers in found.readers)
    holders = "1 request" if len(found.running) == 1 else f"{len(found.running)} requests"
    title = (
        f"At {found.at_s:,.2f} s: {used:,} of {total:,} blocks used by {holders}, {many:,} shared, "
        f"{total - used:,} free"
    )
    figure = go.Figure({"data": [trace], "layout": layout.to_plotly_json()}, _validate=False)
    return Chart(figure=figure, title=title, alt=f"{title}. A grid, one cell a block.", rows=tuple(rows))
