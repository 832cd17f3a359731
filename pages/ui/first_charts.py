"""The two figures that a visitor sees first, the memory bill and the length curve: ECharts options, pure functions.

They are drawn with ECharts because its script is a quarter of Plotly's, which holds a browser up for seconds
before it shows anything. Left out: the figures of the other tabs (charts), where a figure is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from capacity.length_curve import longest_in_pool
from capacity.plan import Plan
from capacity.plan import plan as planned
from capacity.units import GIB
from pages.ui.charts import TERM_COLOURS, TERM_NAMES
from pages.ui.figure import CRITICAL, GREY, INFORMATION, OK, span
from pages.ui.format import count, gib, percent, times

Option = dict[str, Any]
LABEL_FROM, LABEL_FROM_NARROW = 0.07, 0.3
NARROW_PX = 640
INK, INK_ON_DARK, INFORMATION_ON_DARK = "#1B1F24", "#E6EAEE", "#56B4E9"
ON_LIGHT_BAR, ON_DARK_BAR = "#10161C", "#FFFFFF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An ECharts option, its height in pixels, its message (title), the same for a screen reader (alt), its data."""

    option: Option
    height: int
    title: str
    alt: str
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPoint:
    """Full-length requests at one max_model_len; low and high carry the memory interval."""

    tokens: int
    requests: float
    low: float
    high: float
    textbook: int | None


def memory_bar(plan: Plan, *, ink: str) -> Picture | None:
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
    drawn = [part for part in parts if part[1] > 0]
    text = f"budget {gib(budget)} GiB" + (f" + CUDA graphs {gib(outside)} outside it" if outside else "")
    series = [_piece(*part, reach=reach) for part in drawn]
    series.append(
        {
            "id": "budget",
            "type": "bar",
            "stack": "bill",
            "data": [],
            "markLine": _limit({"xAxis": line}, CRITICAL if used > line * 1.001 else ink, 2.5)
            | {
                "label": _words(text, ink)
                | {"position": "end", "align": "right" if line > reach / 2 else "left", "distance": 4}
            },
        }
    )
    option: Option = {
        "animation": False,
        "grid": {"left": 0, "right": 8, "top": 22, "height": 62, "outerBoundsMode": "none"},
        "legend": {
            "left": 0,
            "top": 94,
            "padding": 0,
            "itemGap": 12,
            "itemWidth": 12,
            "itemHeight": 12,
            "icon": "rect",
            "selectedMode": False,
            "textStyle": {"fontSize": 13, "color": ink},
            "data": [entry["name"] for entry in series if entry["id"] != "budget"],
        },
        "tooltip": {"trigger": "item", "confine": True},
        "xAxis": {"type": "value", "min": 0, "max": reach * 1.005, "show": False},
        "yAxis": {"type": "category", "data": [""], "show": False},
        "series": series,
    }
    narrow = [
        {"id": name, "label": {"show": size / reach >= LABEL_FROM_NARROW}} for name, size, _, _ in drawn
    ]
    small = {"series": narrow, "legend": {"itemGap": 7, "textStyle": {"fontSize": 11}}}
    share = "" if total == 0 else f", {percent(kv / total)} of the card"
    title = (
        f"One GPU: weights take {gib(parts[0][1])} of {gib(total)} GiB, {gib(kv)} GiB are left for KV cache"
        if kv > 0
        else f"One GPU: {gib(used)} GiB are needed before any KV cache, the budget is {gib(budget)} GiB"
    )
    alt = f"{title}{share}. " + ", ".join(f"{TERM_NAMES[p[0]]} {gib(p[1])} GiB" for p in drawn)
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
    return Picture(
        option={"baseOption": option, "media": [{"query": {"maxWidth": NARROW_PX}, "option": small}]},
        height=136,
        title=title,
        alt=alt,
        rows=tuple(rows),
    )


def _piece(name: str, size: float, low: float | None, high: float | None, *, reach: float) -> Option:
    """One term of the bar: its label when there is room, its interval on hover."""
    spread = f" ({gib(low)}-{gib(high)})" if low is not None and gib(low) != gib(high) else ""
    return {
        "id": name,
        "name": f"{TERM_NAMES[name]} {gib(size)}",
        "type": "bar",
        "stack": "bill",
        "barWidth": "100%",
        "data": [size],
        "itemStyle": {"color": TERM_COLOURS[name], "borderWidth": 1, "borderColor": "rgba(255,255,255,0.6)"},
        "emphasis": {"disabled": True},
        "label": {
            "show": size / reach >= LABEL_FROM,
            "position": "inside",
            "formatter": f"{TERM_NAMES[name]}\n{gib(size)}",
            "color": ON_DARK_BAR if name in ("weights", "cuda_graphs", "other") else ON_LIGHT_BAR,
            "textBorderWidth": 0,
            "fontSize": 13,
            "lineHeight": 17,
        },
        "tooltip": {"formatter": f"{TERM_NAMES[name]}: {gib(size)}{spread} GiB"},
    }


def concurrency_curve(plan: Plan, points: Sequence[LengthPoint], *, ink: str) -> Picture:
    """Full-length requests against their length, log-log, with the memory's band and the chosen point.

    ``ink``: the colour of labels in the visitor's theme.
    """
    drawn = [p for p in points if p.requests > 0]
    chosen = plan.resolved.max_model_len
    here = min(drawn, key=lambda p: abs(p.tokens - chosen)) if drawn else None
    seats = plan.concurrency.seats
    book = _textbook(points)
    heights = [
        *(p.low for p in drawn if p.low > 0),
        *(p.high for p in drawn),
        *book.values(),
        float(seats),
        *(() if drawn else (1.0,)),
    ]
    floor, top = (10.0**end for end in span(heights, 0.08))
    series = [
        *_band(drawn, floor),
        _line("textbook", [{"value": pair} for pair in book.items()], GREY, 1.5, "dotted"),
        _line("engine", [_engine_point(p, book.get(p.tokens)) for p in drawn], OK, 2.5, "solid"),
        {
            "id": "seats",
            "type": "line",
            "data": [],
            "markLine": _limit(
                {"yAxis": seats}, INFORMATION_ON_DARK if ink == INK_ON_DARK else INFORMATION, 1.5
            )
            | {"label": _words(f"seats {count(seats)}", ink) | {"position": "insideEndTop"}},
        },
    ]
    if drawn and book:
        at = list(book.items())[len(book) * 3 // 4]
        series.append(_mark("textbook label", at, "textbook", ink, left=False, below=False))
    title = "No length in this range fits"
    if here is not None and here.tokens == chosen:
        first, last = drawn[0].tokens, drawn[-1].tokens
        late = math.log(chosen / first) > 0.45 * math.log(max(last / first, 1.001))
        words = f"engine, {chosen:,} tokens: {times(here.requests)}"
        series.append(
            _mark("chosen", (chosen, here.requests), words, ink, left=late, below=late)
            | {
                "symbol": "circle",
                "symbolSize": 13,
                "itemStyle": {"color": OK, "borderColor": "#FFFFFF", "borderWidth": 2, "opacity": 1},
            }
        )
        title = _curve_title(plan, drawn, seats)
    octaves = _octaves([p.tokens for p in drawn or points] or [chosen])
    option: Option = {
        "animation": False,
        "grid": {"left": 4, "right": 16, "top": 10, "bottom": 4},
        "tooltip": {"trigger": "axis", "confine": True, "formatter": "{b}"},
        "xAxis": [
            {"type": "log", "logBase": 2, "min": octaves[0], "max": octaves[-1], "show": False},
            {
                "type": "category",
                "position": "bottom",
                "boundaryGap": False,
                "data": [_short(tick) for tick in octaves],
                "name": "max_model_len, tokens (log)",
                "nameLocation": "middle",
                "nameTextStyle": {"fontSize": 13, "color": ink},
                "nameGap": 8,
                "axisLine": {"onZero": False},
                "axisTick": {"show": True, "alignWithLabel": True},
                "axisLabel": {"hideOverlap": True, "fontSize": 13, "color": ink},
                "axisPointer": {"show": False},
                "splitLine": {"show": True},
            },
        ],
        "yAxis": {
            "type": "log",
            "min": floor,
            "max": top,
            "name": "full-length requests (log)",
            "nameLocation": "middle",
            "nameTextStyle": {"fontSize": 13, "color": ink},
            "axisLabel": {"showMinLabel": False, "showMaxLabel": False, "fontSize": 13, "color": ink},
            "axisTick": {"show": False},
            "splitLine": {"showMinLine": False, "showMaxLine": False},
        },
        "series": series,
    }
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
    alt = f"{title}. Line chart, both axes logarithmic."
    return Picture(option=option, height=340, title=title, alt=alt, rows=rows)


def _textbook(points: Sequence[LengthPoint]) -> dict[int, float]:
    """The textbook's requests by length, unrounded, as far as half a request fits."""
    first = next((p for p in points if p.textbook), None)
    if first is None or not first.textbook:
        return {}
    every = {p.tokens: first.textbook * first.tokens / p.tokens for p in points}
    return {tokens: requests for tokens, requests in every.items() if requests >= 0.5}


def _engine_point(point: LengthPoint, book: float | None) -> Option:
    """One point of the engine's line; its name is what hovering says."""
    words = f"{point.requests:,.1f} ({point.low:,.1f}-{point.high:,.1f}) requests of {point.tokens:,} tokens"
    said = words if book is None else f"{words}, textbook {book:,.0f}"
    return {"value": (point.tokens, point.requests), "name": said}


def _line(name: str, data: list[Option], colour: str, width: float, dash: str) -> Option:
    return {
        "id": name,
        "name": name,
        "type": "line",
        "data": data,
        "showSymbol": False,
        "lineStyle": {"color": colour, "width": width, "type": dash},
        "itemStyle": {"color": colour},
        "emphasis": {"disabled": True},
        "tooltip": {"show": name == "engine"},
    }


def _band(drawn: Sequence[LengthPoint], floor: float) -> list[Option]:
    """The interval as two stacked areas: an invisible one up to its low end, a tinted one up to its high end."""
    low = [(p.tokens, max(p.low, floor)) for p in drawn]
    height = [(p.tokens, max(p.high, floor) - max(p.low, floor)) for p in drawn]
    common: Option = {
        "type": "line",
        "stack": "interval",
        "silent": True,
        "showSymbol": False,
        "lineStyle": {"width": 0},
        "tooltip": {"show": False},
    }
    return [
        {"id": "low", "data": low} | common,
        {"id": "interval", "data": height, "areaStyle": {"color": OK, "opacity": 0.18}} | common,
    ]


def _limit(place: Option, colour: str, width: float) -> Option:
    return {
        "symbol": "none",
        "silent": True,
        "animation": False,
        "lineStyle": {"type": "dashed", "width": width, "color": colour},
        "data": [place],
    }


def _words(text: str, colour: str) -> Option:
    return {
        "show": True,
        "formatter": text,
        "color": colour,
        "fontSize": 13,
        "fontWeight": 600,
        "textBorderWidth": 0,
        "opacity": 1,
    }


def _mark(name: str, at: tuple[int, float], text: str, ink: str, *, left: bool, below: bool) -> Option:
    """A label beside a point of the curve."""
    place = {"position": "left" if left else "right", "offset": [0, 14 if below else -12], "distance": 8}
    return {
        "id": name,
        "type": "scatter",
        "data": [at],
        "symbolSize": 0.1,
        "silent": True,
        "z": 5,
        "label": _words(text, ink) | place,
        "tooltip": {"show": False},
    }


def _octaves(tokens: Sequence[int]) -> list[int]:
    """The powers of two from the one at or below the shortest to the one at or above the longest, at least two.

    >>> _octaves([300, 1500])
    [256, 512, 1024, 2048]
    """
    low = min(tokens).bit_length() - 1
    high = max((max(tokens) - 1).bit_length(), low + 1)
    return [2**power for power in range(low, high + 1)]


def _short(tick: int) -> str:
    """A power of two as people write a length.

    >>> _short(512), _short(131072), _short(2**20)
    ('512', '128K', '1M')
    """
    if tick >= 2**20:
        return f"{tick // 2**20}M"
    return f"{tick // 1024}K" if tick >= 1024 else str(tick)


def _curve_title(plan: Plan, drawn: Sequence[LengthPoint], seats: int) -> str:
    r = plan.resolved
    free = [p.tokens for p in drawn if p.requests >= seats]
    longest = [p.tokens for p in drawn if p.requests >= 1]
    if not longest:
        return "Not one full-length request fits at any length shown"
    fits, last = longest[-1], drawn[-1]
    if fits < last.tokens:  # between two points that were drawn
        longer = r.max_model_len if fits < r.max_model_len else last.tokens
        fits = longest_in_pool(planned(replace(r.scenario, max_model_len=longer)), sure=False)
    tail = f"; one still fits at {fits:,} tokens"
    if fits == last.tokens:
        tail = f"; {count(math.floor(last.requests))} fit at {fits:,}, the longest that the model takes"
    if fits == last.tokens == r.max_model_len:
        tail = ", the longest that the model takes"
    if not r.spec.max_position_embeddings:
        tail = tail.replace("that the model takes", "planned")
    if free and free[-1] >= r.max_model_len:
        return f"Seats bind up to about {free[-1]:,} tokens{tail}"
    return f"KV cache binds at {r.max_model_len:,} tokens{tail}"
