"""Runs as figures: waterline, running, waiting and refusals on one time axis; goodput and latency against arrival rate.

Plain data in, a Plotly figure with its message and rows out. Left out: single requests and blocks (simulate_pictures).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas  # noqa: F401  # whole before the first figure: Plotly takes it half imported from another page's thread
import plotly.graph_objects as go

from capacity.simulation.sweep import SweepPoint, knee, miss
from pages.ui.figure import ACT, CRITICAL, GREY, Chart
from pages.ui.format import percent
from pages.ui.simulate_runs import Outcome
from pages.ui.simulate_words import rate, refused, seconds

COLOURS = {False: ("#0072B2", "#AA4499", "#7A5C3E"), True: ("#56B4E9", "#E48FD0", "#D9B98C")}
POINTS = 500
PANELS = (
    ("waterline", "fullest pool, %"),
    ("running", "running"),
    ("waiting", "waiting"),
    ("refused", "refusals, total"),
)


def colour(letter: str, *, dark: bool) -> str:
    """The line of a policy, the same in every figure."""
    return COLOURS[dark]["ABC".index(letter.upper())]


def series(answer: dict[str, Any], points: int = POINTS) -> dict[str, list[float]]:
    """All engines of a run on one time axis: the fullest pool in %, running, waiting, refusals so far.

    The samples of one engine as they are, with a point for a peak between two of them; else ``points`` points, each the
    highest of its stretch.
    """
    engines = answer["timeline"]
    blocks = answer["blocks"]["total"] / max(len(engines), 1)
    spans = [engine["t_s"] for engine in engines if engine["t_s"]]
    if not spans:
        return {name: [] for name in ("t_s", *(key for key, _ in PANELS))}
    if len(engines) == 1 and len(spans[0]) <= points:
        return _as_sampled(engines[0], blocks)
    first, last = min(at[0] for at in spans), max(at[-1] for at in spans)
    times = np.linspace(first, last, points)
    columns = {key: np.zeros(points) for key, _ in PANELS}
    for engine in engines:
        at = np.asarray(engine["t_s"])
        if not at.size:
            continue
        drawn = np.interp(times, at, engine["used_blocks"], left=0.0, right=0.0)
        place = np.searchsorted(times, at)
        np.maximum.at(drawn, place[1:], np.asarray(engine["peak_blocks"], dtype=float)[1:])
        np.maximum.at(drawn, place[:1], np.asarray(engine["used_blocks"], dtype=float)[:1])
        columns["waterline"] = np.maximum(columns["waterline"], 100 * drawn / blocks)
        for key, name in (("running", "running"), ("waiting", "waiting"), ("refused", "rejected")):
            values = np.asarray(engine[name], dtype=float)
            upto = np.searchsorted(at, times, side="right")
            held = np.where(upto > 0, values[np.maximum(upto - 1, 0)], 0.0)
            np.maximum.at(held, place, values)
            columns[key] += held
    return {"t_s": times.tolist(), **{key: column.tolist() for key, column in columns.items()}}


def _as_sampled(engine: dict[str, list[float]], blocks: float) -> dict[str, list[float]]:
    """One engine's rows; where the pool was fuller between two rows than at both, a point between them says so."""
    found: dict[str, list[float]] = {name: [] for name in ("t_s", *(key for key, _ in PANELS))}

    def put(row: int, at: float, used: float) -> None:
        for key, value in (
            ("t_s", at),
            ("waterline", 100 * used / blocks),
            ("running", engine["running"][row]),
            ("waiting", engine["waiting"][row]),
            ("refused", engine["rejected"][row]),
        ):
            found[key].append(value)

    at, used, peak = engine["t_s"], engine["used_blocks"], engine["peak_blocks"]
    still = [engine[name] for name in ("admitted", "preemptions", "prompt_tokens")]
    for row in range(len(at)):
        if row and any(values[row] != values[row - 1] for values in still):
            put(
                row - 1, at[row], used[row - 1]
            )  # blocks change when a step starts; only decoding makes them grow
        if row and peak[row] > max(used[row], used[row - 1]):
            put(row - 1, (at[row] + at[row - 1]) / 2, peak[row])
        put(row, at[row], used[row])
    return found


def line(
    one: Outcome,
    at_s: Sequence[float],
    values: Sequence[float],
    *,
    row: int,
    place: int,
    shape: str,
    dark: bool,
) -> dict[str, Any]:
    """One policy's line in panel ``row`` (from 1); ``place``: how many lines of the panel lie under it."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": at_s,
        "y": values,
        "xaxis": "x",
        "yaxis": f"y{'' if row == 1 else row}",
        "name": one.policy.title,
        "showlegend": row == 1,
        "line": {"color": colour(one.letter, dark=dark), "width": 2.2 - 0.3 * place, "shape": shape},
    }


def timeline(outcomes: Sequence[Outcome], *, ink: str, dark: bool) -> Chart:
    """The four panels of all runs."""
    lines = [(one, series(one.answer)) for one in outcomes]
    panels = [
        panel for panel in PANELS if panel[0] != "refused" or any(refused(one.answer) for one in outcomes)
    ]
    data: list[dict[str, Any]] = []
    layout = frame(len(panels), 96 if len(panels) > 3 else 128, ink)
    for row, (key, label) in enumerate(panels, start=1):
        axis, unit = "" if row == 1 else str(row), " %" if key == "waterline" else ""
        layout[f"yaxis{axis}"] |= {"title": {"text": label}, "rangemode": "tozero"}
        if key != "waterline":
            layout[f"yaxis{axis}"] |= whole_ticks(max((max(v[key], default=0) for _, v in lines), default=0))
        if key == "waterline":
            layout[f"yaxis{axis}"] |= {"range": [0, 108], "tickvals": [0, 50, 100]}
            layout["shapes"].append(_rule(f"y{axis}", 100, CRITICAL))
            note = {"x": 1, "xref": "x domain", "xanchor": "right", "y": 100, "yref": f"y{axis}"}
            note |= {"yanchor": "bottom", "text": "pool full", "showarrow": False, "font": {"color": ink}}
            layout["annotations"].append(note)
        for place, (one, values) in enumerate(lines):
            shape = "linear" if key == "waterline" else "hv"
            found = line(one, values["t_s"], values[key], row=row, place=place, shape=shape, dark=dark)
            found["hovertemplate"] = f"{one.letter}: %{{y:,.0f}}{unit} {key}, %{{x:,.1f}} s<extra></extra>"
            data.append(found)
    layout["xaxis"] |= {
        "title": {"text": "simulated time, s"},
        "anchor": f"y{len(panels) if len(panels) > 1 else ''}",
    }
    peaks = "; ".join(
        f"{one.letter} fills {percent(one.answer['kv_usage']['peak'])} of the pool and lets up to "
        f"{_most_waiting(one, values):,.0f} wait"
        for one, values in lines
    )
    title = f"At the peak {peaks}"
    rows = tuple(
        {"policy": one.letter, "t_s": at, **{key: values[key][i] for key, _ in PANELS}}
        for one, values in lines
        for i, at in enumerate(values["t_s"])
    )
    figure = go.Figure({"data": data, "layout": layout}, _validate=False)
    return Chart(
        figure=figure, title=title, alt=f"{title}. {len(panels)} line charts over one time axis.", rows=rows
    )


def _most_waiting(one: Outcome, values: dict[str, list[float]]) -> float:
    """The longest line: of one engine as metered, of several together as drawn."""
    if len(one.answer["timeline"]) == 1:
        return float(one.answer["steps"]["peak_waiting"])
    return max(values["waiting"], default=0.0)


def frame(rows: int, height: int, ink: str) -> dict[str, Any]:
    """``rows`` panels over one x axis, a legend above."""
    gap = 0.045
    tall = (1 - gap * (rows - 1)) / rows
    layout: dict[str, Any] = {
        "height": height * rows + 50,
        "margin": {"l": 0, "r": 16, "t": 30, "b": 0},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "font": {"color": ink}},
        "dragmode": False,
        "hovermode": "closest",
        "hoverlabel": {"font": {"size": 13}},
        "xaxis": {"fixedrange": True, "automargin": True, "zeroline": False},
        "shapes": [],
        "annotations": [],
    }
    for row in range(rows):
        top = 1 - row * (tall + gap)
        layout[f"yaxis{'' if row == 0 else row + 1}"] = {
            "domain": [max(top - tall, 0.0), top],
            "fixedrange": True,
            "automargin": True,
            "zeroline": False,
        }
    return layout


def whole_ticks(top: float) -> dict[str, Any]:
    """Marks of an axis that counts things: none between two whole numbers."""
    return {"dtick": 1 if top <= 4 else 2} if top <= 8 else {}


def log_ticks(values: Sequence[float]) -> dict[str, Any]:
    """Marks of a log axis of seconds at 1, 2 and 5 times powers of ten, written out; the range holds all values."""
    seen = [value for value in values if value > 0 and math.isfinite(value)]
    if not seen:
        return {"type": "log"}
    low, high = min(seen) / 1.15, max(seen) * 1.15
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    marks = [m * 10.0**p for p in powers for m in (1, 1.5, 2, 3, 5, 7)]
    marks = [mark for mark in marks if low <= mark <= high]
    if len(marks) > 5:
        marks = [
            mark for mark in marks if round(mark / 10 ** math.floor(math.log10(mark) + 1e-9), 3) in (1, 2, 5)
        ]
    if len(marks) > 6:
        marks = [mark for mark in marks if round(mark / 10 ** math.floor(math.log10(mark) + 1e-9), 3) == 1]
    bounds = [math.log10(low), math.log10(high)]
    return {"type": "log", "range": bounds, "tickvals": marks, "ticktext": [seconds(mark) for mark in marks]}


def _rule(axis: str, at: float, line: str) -> dict[str, Any]:
    return {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "yref": axis, "y0": at, "y1": at,
            "line": {"color": line, "width": 1.2, "dash": "dash"}}  # fmt: skip


def sweep_chart(
    found: Sequence[tuple[Outcome, Sequence[SweepPoint]]], *, slo: dict[str, Any], ink: str, dark: bool
) -> Chart:
    """Goodput, TTFT p99 and TPOT p99 against the arrival rate, with the objective's lines and each policy's knee."""
    panels: list[tuple[str, str, float | None]] = [
        ("goodput_rps", "goodput, requests/s", None),
        ("ttft_p99_s", "TTFT p99 (log)", slo.get("ttft_s")),
        ("tpot_p99_s", "TPOT p99 (log)", slo.get("tpot_s")),
    ]
    layout = frame(len(panels), 170, ink)
    data: list[dict[str, Any]] = []
    rates = [p.rate_rps for _, points in found for p in points]
    top = max(rates, default=1.0)
    for row, (key, label, limit) in enumerate(panels, start=1):
        axis = "" if row == 1 else str(row)
        spec = layout[f"yaxis{axis}"]
        spec["title"] = {"text": label}
        if row == 1:
            spec["rangemode"] = "tozero"
            data.append(
                {"type": "scatter", "mode": "lines", "x": [0, top], "y": [0, top], "xaxis": "x", "yaxis": "y",
                 "name": "every request good", "line": {"color": GREY, "width": 1.3, "dash": "dot"},
                 "hoverinfo": "skip"}
            )  # fmt: skip
        else:
            drawn_values = [getattr(p, key) or 0.0 for _, points in found for p in points]
            spec |= log_ticks([*drawn_values, *([limit] if limit else [])])
        if limit is not None and limit > 0:
            layout["shapes"].append(_rule(f"y{axis}", limit, ACT))
            layout["annotations"].append(
                {"x": 0, "xref": "x domain", "xanchor": "left", "y": math.log10(limit), "yref": f"y{axis}",
                 "yanchor": "bottom", "text": f"<b>objective {seconds(limit)}</b>", "showarrow": False,
                 "font": {"color": ink, "size": 13}}
            )  # fmt: skip
        for one, points in found:
            drawn = points
            best = knee(points)
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "x": [p.rate_rps for p in drawn],
                    "y": [getattr(p, key) for p in drawn],
                    "xaxis": "x",
                    "yaxis": f"y{axis}",
                    "name": one.policy.title,
                    "showlegend": row == 1,
                    "line": {"color": colour(one.letter, dark=dark), "width": 2.2},
                    "marker": {
                        "size": [13 if p is best else 6 for p in drawn],
                        "symbol": ["diamond" if p is best else "circle" for p in drawn],
                    },
                    "hovertemplate": f"{one.letter}: %{{y:,.3g}} at %{{x:,.2f}} requests/s<extra></extra>",
                }
            )
    layout["xaxis"] |= {"title": {"text": "arrival rate, requests/s"}, "anchor": "y3", "rangemode": "tozero"}
    parts = []
    for one, points in found:
        best, beyond = knee(points), miss(points)
        if best is None:
            parts.append(f"{one.letter} misses it at every rate tried")
        elif beyond is None:
            parts.append(f"{one.letter} at least up to {rate(best.rate_rps)} requests/s")
        else:
            parts.append(
                f"{one.letter} up to {rate(best.rate_rps)} requests/s (missed at {rate(beyond.rate_rps)})"
            )
    title = "95 % of what arrives meets the objective: " + ", ".join(parts)
    rows = tuple(
        {
            "policy": one.letter,
            "rate_rps": p.rate_rps,
            "goodput_rps": p.goodput_rps,
            "ttft_p99_s": p.ttft_p99_s,
            "tpot_p99_s": p.tpot_p99_s,
            "kv_peak": p.kv_peak,
            "preemptions": p.preemptions,
            "knee": p is knee(points),
        }
        for one, points in found
        for p in points
    )
    figure = go.Figure({"data": data, "layout": layout}, _validate=False)
    return Chart(
        figure=figure, title=title, alt=f"{title}. Three line charts over the arrival rate.", rows=rows
    )
