"""Figures of the Compare page: Pareto fronts with the SLO corner, sweeps as lines and heat maps. No Streamlit.

Left out: what they show is computed in compare.py and speed_grid.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from capacity.compare import Frontier
from capacity.speed_grid import Axis, SpeedGrid
from pages.ui.compare_parts import seconds
from pages.ui.figure import OK, Chart, Drawing, dress
from pages.ui.format import UNKNOWN, count, percent, rate

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
MEASURES = {
    "tpot_s": "TPOT, ms",
    "ttft_s": "TTFT, ms",
    "e2e_s": "E2E, s",
    "output_tokens_per_s": "output tokens/s",
    "total_tokens_per_s": "total tokens/s",
    "requests_per_s": "requests/s",
    "mfu": "MFU",
    "mbu": "MBU",
}
SCALE = {"tpot_s": 1e3, "ttft_s": 1e3}
SECONDS = ("tpot_s", "ttft_s", "e2e_s")
MOST_LINES, DIRECT = 6, 4


def pareto(
    fronts: Sequence[Frontier], *, ttft_s: float | None, tpot_s: float | None, ink: str
) -> Chart | None:
    """Output tokens/s per GPU against tokens/s per user, one line per scenario; None when nothing can run."""
    drawn = [(i, one) for i, one in enumerate(fronts) if one.points]
    if not drawn:
        return None
    figure = Drawing()
    best: tuple[float, str] | None = None
    top = max(p.tokens_per_s_per_gpu for _, one in drawn for p in one.points)
    reach = max(p.tokens_per_s_per_user for _, one in drawn for p in one.points) * 1.08
    if tpot_s is not None and 1 / tpot_s < reach:
        figure.update_layout(
            shapes=[
                {
                    "type": "rect",
                    "x0": 1 / tpot_s,
                    "x1": reach,
                    "yref": "paper",
                    "y0": 0,
                    "y1": 1,
                    "fillcolor": "rgba(0,158,115,0.08)",
                    "line": {"width": 0},
                    "layer": "below",
                },
                {
                    "type": "line",
                    "x0": 1 / tpot_s,
                    "x1": 1 / tpot_s,
                    "yref": "paper",
                    "y0": 0,
                    "y1": 1,
                    "line": {"dash": "dash", "width": 1.5, "color": ink},
                },
            ]
        )
        figure.add_annotation(
            x=1 / tpot_s, y=1, yref="paper", text=f"<b>TPOT within {seconds(tpot_s)}</b>", showarrow=False,
            xanchor="left" if 1 / tpot_s < reach * 0.7 else "right", yanchor="bottom",
            font={"color": ink, "size": 13},
        )  # fmt: skip
    rows: list[dict[str, Any]] = []
    for i, one in drawn:
        xs, ys = (
            [p.tokens_per_s_per_user for p in one.points],
            [p.tokens_per_s_per_gpu for p in one.points],
        )
        figure.add_scatter(
            x=xs,
            y=ys,
            customdata=[p.concurrency for p in one.points],
            mode="lines",
            line={"color": SERIES[i], "width": 2.5},
            name=one.entry.name,
            hovertemplate=f"{one.entry.name}<br>%{{y:,.0f}} tokens/s per GPU, %{{x:,.1f}} per user, "
            "%{customdata:,.0f} in flight<extra></extra>",
        )
        if len(drawn) <= DIRECT:
            figure.add_annotation(
                x=xs[-1], y=ys[-1], text=f"<b>{one.entry.name}</b>", showarrow=False, xanchor="left",
                yanchor="bottom", font={"color": ink, "size": 13},
            )  # fmt: skip
        if one.corner is not None:
            figure.add_scatter(
                x=[one.corner.tokens_per_s_per_user],
                y=[one.corner.tokens_per_s_per_gpu],
                mode="markers",
                marker={
                    "size": 12,
                    "symbol": SYMBOLS[i],
                    "color": SERIES[i],
                    "line": {"width": 2, "color": "#FFFFFF"},
                },
                showlegend=False,
                hovertemplate=f"{one.entry.name}: most within the SLO, %{{y:,.0f}} tokens/s per GPU at "
                f"{one.corner.concurrency:,.0f} in flight<extra></extra>",
            )
            if best is None or one.corner.tokens_per_s_per_gpu > best[0]:
                best = (one.corner.tokens_per_s_per_gpu, one.entry.name)
        for p in one.points:
            rows.append(
                {
                    "scenario": one.entry.name,
                    "concurrency": p.concurrency,
                    "tokens_per_s_per_gpu": p.tokens_per_s_per_gpu,
                    "tokens_per_s_per_user": p.tokens_per_s_per_user,
                    "slo_corner": one.corner is not None and p.concurrency == one.corner.concurrency,
                }
            )
    dress(figure, height=400)
    figure.update_layout(
        showlegend=len(drawn) > DIRECT,
        legend={"orientation": "h", "y": -0.2, "x": 0, "yanchor": "top", "traceorder": "normal"},
        margin={"l": 0, "r": 12, "t": 26, "b": 0},
    )
    figure.update_xaxes(title="tokens/s per user (1 / TPOT)", range=[0, reach], tickformat=",")
    figure.update_yaxes(title="output tokens/s per GPU", range=[0, top * 1.08], tickformat=",")
    slo = _slo(ttft_s, tpot_s)
    if best is not None:
        title = f"Within {slo}, {best[1]} serves the most: {rate(best[0])} tokens/s per GPU"
    elif slo:
        title = f"No scenario meets {slo}, not even with one request in flight"
    else:
        most = max(drawn, key=lambda item: item[1].points[-1].tokens_per_s_per_gpu)[1]
        title = f"{most.entry.name} reaches the most tokens/s per GPU: {rate(top)}"
    return Chart(
        figure=figure.done(), title=title, alt=f"{title}. Lines, one per scenario.", rows=tuple(rows)
    )


def _slo(ttft_s: float | None, tpot_s: float | None) -> str:
    parts = [f"{name} {seconds(v)}" for name, v in (("TTFT", ttft_s), ("TPOT", tpot_s)) if v is not None]
    return " and ".join(parts)


def _value(measure: str, value: float) -> str:
    if not math.isfinite(value):
        return UNKNOWN
    if measure in ("mfu", "mbu"):
        return percent(value)
    if measure in SECONDS:
        return seconds(value)
    return f"{value:,.3g}" if value < 100 else count(value)


def _ticks(axis: Axis) -> list[str]:
    return [
        ("on" if v else "off") if isinstance(v, bool) else f"{v:,g}" if isinstance(v, int | float) else str(v)
        for v in axis.values
    ]


def _place(axis: Axis, index: int, labels: dict[str, str]) -> str:
    """One value of an axis as a sentence names it: "16 in flight", "b200", "max model length 8,192"."""
    tick, label = _ticks(axis)[index], labels[axis.key]
    if axis.key == "concurrency":
        return f"{tick} in flight"
    if axis.key == "gpu":
        return tick
    words = label[0].lower() + label[1:] if label[1:2].islower() else label
    return f"{tick} {words}" if label.endswith("tokens") else f"{words} {tick}"


def _cell(measure: str, value: float) -> str:
    """A value in the unit of the chart, short enough for a narrow cell."""
    if not math.isfinite(value) or measure in ("mfu", "mbu"):
        return _value(measure, value)
    scaled = value * SCALE.get(measure, 1.0)
    return f"{scaled:.2f}" if scaled < 9.995 else f"{scaled:.1f}" if scaled < 99.95 else f"{scaled:,.0f}"


def sweep_lines(grid: SpeedGrid, measure: str, labels: dict[str, str]) -> Chart:
    """``measure`` over x, one line per y value (at most six), a band when there is one line. Gaps where nothing fits."""
    scale, x, y = SCALE.get(measure, 1.0), _ticks(grid.x), _ticks(grid.y) if grid.y else [""]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in grid.x.values)
    places: list[Any] = list(grid.x.values) if numeric else x
    figure = Drawing()
    values = grid.measures[measure] * scale
    only = len(y) == 1
    if only and measure in grid.low:
        keep = np.isfinite(values[0])
        low, high = (part[measure][0][keep] * scale for part in (grid.low, grid.high))
        at = [place for place, good in zip(places, keep, strict=True) if good]
        figure.add_scatter(x=[*at, *reversed(at)], y=[*map(float, high), *map(float, reversed(low))], mode="lines", fill="toself",
                           fillcolor="rgba(0,158,115,0.18)", line={"width": 0}, hoverinfo="skip", showlegend=False)  # fmt: skip
    for i, name in enumerate(y[:MOST_LINES]):
        ys = [None if not math.isfinite(v) else float(v) for v in values[i]]
        figure.add_scatter(
            x=places, y=ys, mode="lines+markers", connectgaps=False, name=f"{name}",
            line={"color": OK if only else SERIES[i], "width": 2.5},
            hovertemplate=f"{labels[grid.x.key]} %{{x}}{'' if only else ', ' + name}: %{{y:,.4g}}<extra></extra>",
        )  # fmt: skip
    dress(figure, height=380)
    if not only:
        figure.update_layout(
            showlegend=True,
            legend={
                "orientation": "h",
                "y": -0.2,
                "yanchor": "top",
                "x": 0,
                "title": {"text": labels[grid.y.key] + " " if grid.y else ""},
            },
        )
    log = numeric and min(places) > 0 and max(places) / min(places) >= 16
    scaled: dict[str, Any] = {"type": "log"} if log else {} if numeric else {"type": "category"}
    if log and len(x) <= 14:
        scaled |= {"tickvals": places, "ticktext": x}
    figure.update_xaxes(title=labels[grid.x.key] + (" (log)" if log else ""), **scaled)
    figure.update_yaxes(title=MEASURES[measure], rangemode="tozero", tickformat=",")
    title = _title(grid, measure, labels)
    return Chart(figure=figure.done(), title=title, alt=f"{title}. Line chart.", rows=_rows(grid))


def sweep_map(grid: SpeedGrid, measure: str, labels: dict[str, str]) -> Chart:
    """``measure`` over x and y as a heat map with its values in the cells while there is room."""
    assert grid.y is not None
    raw = grid.measures[measure]
    cells = [
        [None if not math.isfinite(v) else float(v) for v in line] for line in raw * SCALE.get(measure, 1.0)
    ]
    texts = [[_value(measure, float(v)) for v in line] for line in raw]
    roomy = raw.size <= 120  # the values stand in the cells, so no colour bar takes their place
    short = [[_cell(measure, float(v)) for v in line] for line in raw]
    hover = [
        [grid.reasons.get((i, j), text) or UNKNOWN for j, text in enumerate(line)]
        for i, line in enumerate(texts)
    ]
    figure = Drawing()
    figure.add_trace(
        type="heatmap", x=_ticks(grid.x), y=_ticks(grid.y), z=cells, customdata=hover, colorscale="Cividis",
        reversescale=measure in ("tpot_s", "ttft_s", "e2e_s"), xgap=1, ygap=1,
        text=short if roomy else None, texttemplate="%{text}" if roomy else None, showscale=not roomy,
        colorbar={"title": {"text": MEASURES[measure], "side": "right"}, "thickness": 12},
        hovertemplate=f"{labels[grid.x.key]} %{{x}}, {labels[grid.y.key]} %{{y}}<br>%{{customdata}}<extra></extra>",
    )  # fmt: skip
    dress(figure, height=max(260, min(560, 120 + 34 * len(grid.y.values))))
    figure.update_xaxes(title=labels[grid.x.key], type="category", showgrid=False)
    figure.update_yaxes(title=labels[grid.y.key], type="category", showgrid=False)
    title = _title(grid, measure, labels)
    return Chart(figure=figure.done(), title=title, alt=f"{title}. Heat map.", rows=_rows(grid))


def _title(grid: SpeedGrid, measure: str, labels: dict[str, str]) -> str:
    raw = grid.measures[measure]
    name = MEASURES[measure].split(",")[0]
    name = name[0].upper() + name[1:]
    if not np.isfinite(raw).any():
        fits = np.isfinite(grid.measures["ttft_s"]).any()
        return f"{name} has no value with 1 output token" if fits else f"{name}: nothing fits in this sweep"
    low, high = (int(f(raw)) for f in (np.nanargmin, np.nanargmax))
    words = []
    for place in (low, high):
        i, j = divmod(place, raw.shape[1])
        at = _place(grid.x, j, labels)
        if grid.y is not None:
            at += f", {_place(grid.y, i, labels)}"
        words.append(f"{_value(measure, float(raw[i, j]))} at {at}")
    return f"{name} goes from {words[0]} to {words[1]}"


def _rows(grid: SpeedGrid) -> tuple[dict[str, Any], ...]:
    rows = []
    for i in range(len(grid.y.values) if grid.y else 1):
        for j, x in enumerate(grid.x.values):
            row: dict[str, Any] = {grid.x.key: x, **({grid.y.key: grid.y.values[i]} if grid.y else {})}
            for name, values in grid.measures.items():
                row[name] = _known(values[i, j])
                if name in grid.low:
                    row |= {
                        f"{name}_low": _known(grid.low[name][i, j]),
                        f"{name}_high": _known(grid.high[name][i, j]),
                    }
            row["reason"] = grid.reasons.get((i, j))
            rows.append(row)
    return tuple(rows)


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
