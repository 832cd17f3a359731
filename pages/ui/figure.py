"""What all of the planner's figures share: the record, the colours of states, the frame, labels at a line.

Colours are Okabe and Ito's, with the look's meaning. Left out: what a figure shows (charts).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas  # noqa: F401  # whole before the first figure: Plotly takes it half imported from another page's thread
import plotly.graph_objects as go

OK, ACT, CRITICAL, INFORMATION, GREY = "#009E73", "#E69F00", "#D55E00", "#0072B2", "#8A929A"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure, the message it carries (title), the same in words for a screen reader (alt), and its data."""

    figure: go.Figure
    title: str
    alt: str
    rows: tuple[dict[str, Any], ...]


class Drawing:
    """A figure under construction as plain dicts: Plotly checks a whole figure ten times slower than it draws one.

    The tests check every figure once with Plotly's own validation. Axis titles may be plain texts.
    """

    def __init__(self) -> None:
        self._data: list[dict[str, Any]] = []
        self._layout: dict[str, Any] = {"xaxis": {}, "yaxis": {}, "shapes": [], "annotations": []}

    def add_bar(self, **trace: Any) -> None:
        self._data.append({"type": "bar", **trace})

    def add_scatter(self, **trace: Any) -> None:
        self._data.append({"type": "scatter", **trace})

    def add_trace(self, **trace: Any) -> None:
        self._data.append(trace)

    def add_vline(self, *, x: float, line: dict[str, Any]) -> None:
        place = {"xref": "x", "x0": x, "x1": x, "yref": "y domain", "y0": 0, "y1": 1}
        self._layout["shapes"].append({"type": "line", **place, "line": line})

    def add_hline(self, *, y: float, line: dict[str, Any]) -> None:
        place = {"yref": "y", "y0": y, "y1": y, "xref": "x domain", "x0": 0, "x1": 1}
        self._layout["shapes"].append({"type": "line", **place, "line": line})

    def add_annotation(self, **note: Any) -> None:
        self._layout["annotations"].append(note)

    def update_layout(self, **layout: Any) -> None:
        for axis, update in (("xaxis", self.update_xaxes), ("yaxis", self.update_yaxes)):
            update(**layout.pop(axis, {}))
        self._layout.update(layout)

    def update_xaxes(self, **axis: Any) -> None:
        self._layout["xaxis"].update(_titled(axis))

    def update_yaxes(self, **axis: Any) -> None:
        self._layout["yaxis"].update(_titled(axis))

    def done(self) -> go.Figure:
        """The figure, unchecked."""
        return go.Figure({"data": self._data, "layout": self._layout}, _validate=False)


def _titled(axis: dict[str, Any]) -> dict[str, Any]:
    return {**axis, "title": {"text": axis["title"]}} if isinstance(axis.get("title"), str) else axis


def dress(figure: Drawing, *, height: int) -> None:
    """The frame of every figure: margins, no zoom, no legend."""
    figure.update_layout(
        height=height,
        margin={"l": 0, "r": 12, "t": 10, "b": 0},
        showlegend=False,
        dragmode=False,
        bargap=0.3,
        hoverlabel={"font": {"size": 13}},
    )
    figure.update_xaxes(fixedrange=True, automargin=True)
    figure.update_yaxes(fixedrange=True, automargin=True)


def mark(
    figure: Drawing, x: float, y: float, text: str, colour: str, *, anchor: str, below: bool = False
) -> None:
    """A label at a point of a log-log figure (positions on log axes are exponents)."""
    figure.add_annotation(
        x=math.log10(x),
        y=math.log10(y) if y > 0 else 0,
        text=f"<b>{text}</b>",
        showarrow=False,
        xanchor=anchor,
        yanchor="top" if below else "bottom",
        xshift=8 if anchor == "left" else -8,
        yshift=-4 if below else 4,
        font={"color": colour, "size": 13},
    )


def span(values: Sequence[float], margin: float) -> list[float]:
    """A log axis' range (exponents) around the values; margin is a share of it at each end."""
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(0.3, high - low) * margin
    return [low - room, high + room]


def powers(values: Sequence[int]) -> list[int]:
    """Ticks of a length axis: powers of two within the values."""
    return [2**p for p in range(6, 27, 1) if values and values[0] <= 2**p <= values[-1] * 1.01]


def labels(values: Sequence[int]) -> list[str]:
    """The ticks of ``powers`` as people write lengths."""
    return [f"{tick // 1024}K" if tick >= 1024 else str(tick) for tick in powers(values)]
