"""What all of the planner's figures share: the record, the colours of states, the frame, labels at a line.

Colours are Okabe and Ito's, with the look's meaning. Left out: what a figure shows (charts).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

OK, ACT, CRITICAL, INFORMATION, GREY = "#009E73", "#E69F00", "#D55E00", "#0072B2", "#8A929A"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure, the message it carries (title), the same in words for a screen reader (alt), and its data."""

    figure: go.Figure
    title: str
    alt: str
    rows: tuple[dict[str, Any], ...]


def dress(figure: go.Figure, *, height: int) -> None:
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
    figure: go.Figure, x: float, y: float, text: str, colour: str, *, anchor: str, below: bool = False
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
    return [2**p for p in range(6, 27, 1) if values and values[0] <= 2**p <= values[-1] * 1.01]


def labels(values: Sequence[int]) -> list[str]:
    return [f"{tick // 1024}K" if tick >= 1024 else str(tick) for tick in powers(values)]
