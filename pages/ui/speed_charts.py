"""TPOT and output tokens/s against concurrency as two stacked figures with a shared x. No Streamlit.

Bands are 80 % intervals; the KV limit and the seat limit are lines with their names at them. Left out: the forecast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from capacity.estimate import Estimate
from capacity.performance.measured import MeasuredPoint
from capacity.performance.records import Band
from pages.ui.compare_parts import seconds
from pages.ui.figure import CRITICAL, GREY, INFORMATION, OK, Chart, Drawing, dress, span
from pages.ui.format import count, in_flight, rate

HEIGHT = 440
UPPER, LOWER = (0.55, 1.0), (0.0, 0.45)
REACH = 1e5
LIGHT_INK = "#1B1F24"


def levels(found: Estimate) -> np.ndarray:
    """Concurrencies to draw: from one request to beyond both limits."""
    limits = [x for x in (found.planned.kv_requests, found.planned.seats) if math.isfinite(x)]
    most = min(max([*limits, 8.0]) * 1.25, REACH)
    marks = [x for x in limits if 1 <= x <= most]
    return np.unique(np.concatenate([np.geomspace(1.0, most, 72), marks]))


def speed_curve(
    found: Estimate, *, load: float, measured: Sequence[MeasuredPoint] = (), ink: str = LIGHT_INK
) -> Chart:
    """The two curves of ``found`` (a forecast over ``levels``) with ``load`` marked on both."""
    one = found.forecast
    x = [float(value) for value in one.concurrency]
    figure = Drawing()
    upper, times = _times(found)
    for axis, band, colour, text in (
        ("y", times, INFORMATION, upper + " %{y:,.1f} ms (%{customdata[0]:,.1f}-%{customdata[1]:,.1f})"),
        (
            "y2",
            one.output_tokens_per_s,
            OK,
            "%{y:,.0f} tokens/s (%{customdata[0]:,.0f}-%{customdata[1]:,.0f})",
        ),
    ):
        scale = 1e3 if axis == "y" else 1.0
        value, low, high = ([float(v) * scale for v in part] for part in (band.value, band.low, band.high))
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        figure.add_scatter(
            x=[*x, *reversed(x)],
            y=[*high, *reversed(low)],
            fill="toself",
            fillcolor=f"rgba({red},{green},{blue},0.18)",
            line={"width": 0},
            hoverinfo="skip",
            yaxis=axis,
        )
        figure.add_scatter(
            x=x,
            y=value,
            customdata=list(zip(low, high, strict=True)),
            mode="lines",
            line={"color": colour, "width": 2.5},
            hovertemplate=text + " at %{x:,.0f} in flight<extra></extra>",
            yaxis=axis,
        )
        figure.add_scatter(
            x=[load],
            y=[float(np.interp(load, x, value))],
            mode="markers",
            marker={"size": 10, "color": colour, "line": {"width": 2, "color": "#FFFFFF"}},
            hoverinfo="skip",
            yaxis=axis,
        )
    if measured and upper == "TPOT":
        figure.add_scatter(
            x=[p.concurrency for p in measured],
            y=[p.tpot_s * 1e3 for p in measured],
            mode="markers",
            marker={"size": 10, "symbol": "diamond", "color": CRITICAL},
            hovertemplate="measured: %{y:,.2f} ms at %{x:,.0f}<extra></extra>",
        )
    reach = span(x, 0.01)
    figure.update_layout(
        shapes=_limits(found, figure, reach, ink),
        yaxis2={
            "domain": list(LOWER),
            "title": {"text": "output tokens/s"},
            "range": [0, float(one.output_tokens_per_s.high.max()) * 1.08],
            "tickformat": ",",
            "fixedrange": True,
            "automargin": True,
            "anchor": "x",
        },
    )
    dress(figure, height=HEIGHT)
    figure.update_layout(margin={"l": 0, "r": 12, "t": 24, "b": 0})
    figure.update_xaxes(
        type="log", title="requests in flight (log)", range=reach, tickformat=",", dtick=1, anchor="y2"
    )
    highest = max([float(times.high.max()), *(p.tpot_s for p in measured)])
    figure.update_yaxes(title=f"{upper}, ms", range=[0, highest * 1.08e3], domain=list(UPPER), tickformat=",")
    title = _title(found, load, x)
    return Chart(
        figure=figure.done(),
        title=title,
        alt=f"{title}. Two stacked line charts over concurrency, logarithmic, with 80 % bands.",
        rows=_rows(found),
    )


def _times(found: Estimate) -> tuple[str, Band]:
    """The time that is drawn over concurrency: TPOT, or TTFT where one token is all the output."""
    one = found.forecast
    return ("TTFT", one.ttft_s) if bool(np.isnan(one.tpot_s.value).any()) else ("TPOT", one.tpot_s)


def _limits(found: Estimate, figure: Drawing, reach: Sequence[float], ink: str) -> list[dict[str, Any]]:
    """Lines of the KV and the seat limit over both figures, each named at its line."""
    shapes = []
    drawn = [
        (name, value)
        for name, value in (("KV limit", found.planned.kv_requests), ("seats", found.planned.seats))
        if math.isfinite(value) and value >= 1 and math.log10(value) <= reach[1]
    ]
    for name, value in drawn:
        at = math.log10(value)
        shapes.append(
            {
                "type": "line",
                "xref": "x",
                "x0": value,
                "x1": value,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"dash": "dash", "width": 1.5, "color": ink if name == "KV limit" else GREY},
            }
        )
        figure.add_annotation(
            x=at,
            y=1,
            yref="y domain" if name == "KV limit" else "y2 domain",
            text=f"<b>{name} {count(math.floor(value))}</b>",
            showarrow=False,
            xanchor="right" if at > sum(reach) / 2 else "left",
            yanchor="bottom",
            font={"color": ink, "size": 13},
            bgcolor="#0F1419" if ink != LIGHT_INK else "#FFFFFF",
        )
    return shapes


def _title(found: Estimate, load: float, x: Sequence[float]) -> str:
    one = found.forecast
    upper, times = _times(found)
    alone, there = float(times.value[0]), float(np.interp(load, x, times.value))
    most = float(one.output_tokens_per_s.value.max())
    binds = "KV cache is full" if found.planned.deployment.limited_by == "KV-bound" else "seats are taken"
    limit = count(math.floor(found.planned.deployment.most_running))
    return (
        f"{upper} goes from {seconds(alone)} for one request to {seconds(there)} at {in_flight(load)} in flight; "
        f"output levels off at {rate(most)} tokens/s, where {binds} ({limit})"
    )


def _rows(found: Estimate) -> tuple[dict[str, Any], ...]:
    one = found.forecast
    rows = []
    for i in range(len(one.concurrency)):
        row: dict[str, Any] = {"concurrency": float(one.concurrency[i]), "running": float(one.running[i])}
        for name in ("tpot_s", "ttft_s", "output_tokens_per_s"):
            band = getattr(one, name)
            ends = ((name, band.value), (f"{name}_low", band.low), (f"{name}_high", band.high))
            row |= {key: None if math.isnan(part[i]) else float(part[i]) for key, part in ends}
        row["bound"] = one.bound[i]
        rows.append(row)
    return tuple(rows)
