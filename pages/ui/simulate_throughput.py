"""What the engines computed over time: prompt and output tokens per second, and preemptions so far.

Plain data in, a Plotly figure with its message and rows out. Left out: the waterline (simulate_charts).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from pages.ui.figure import Chart
from pages.ui.format import count
from pages.ui.simulate_charts import frame, line, whole_ticks
from pages.ui.simulate_runs import Outcome

POINTS = 120
PANELS = (
    ("prompt_tokens_per_s", "prompt tokens/s"),
    ("output_tokens_per_s", "output tokens/s"),
    ("preemptions", "preemptions, total"),
)


def rates(answer: dict[str, Any], points: int = POINTS) -> dict[str, list[float]]:
    """All engines together, in ``points`` equal stretches of the run: tokens computed per second, preemptions so far.

    ``t_s`` is the end of each stretch. Empty when the run took no time.
    """
    engines = [engine for engine in answer["timeline"] if len(engine["t_s"]) > 1]
    spans = [engine["t_s"] for engine in engines]
    names = ("t_s", *(key for key, _ in PANELS))
    if not spans or max(at[-1] for at in spans) <= min(at[0] for at in spans):
        return {name: [] for name in names}
    edges = np.linspace(min(at[0] for at in spans), max(at[-1] for at in spans), points + 1)
    totals = {name: np.zeros(points + 1) for name in ("prompt_tokens", "output_tokens", "preemptions")}
    for engine in engines:
        for name, total in totals.items():
            total += np.interp(edges, engine["t_s"], engine[name])
    wide = np.diff(edges)
    return {
        "t_s": edges[1:].tolist(),
        "prompt_tokens_per_s": (np.diff(totals["prompt_tokens"]) / wide).tolist(),
        "output_tokens_per_s": (np.diff(totals["output_tokens"]) / wide).tolist(),
        "preemptions": np.floor(totals["preemptions"][1:] + 1e-9).tolist(),
    }


def throughput(outcomes: Sequence[Outcome], *, ink: str, dark: bool) -> Chart:
    """One panel a quantity, one line a policy."""
    lines = [(one, rates(one.answer)) for one in outcomes]
    panels = PANELS if any(one.answer["requests"]["preemptions"] for one in outcomes) else PANELS[:2]
    layout = frame(len(panels), 120, ink)
    data: list[dict[str, Any]] = []
    for row, (key, label) in enumerate(panels, start=1):
        axis = "" if row == 1 else str(row)
        layout[f"yaxis{axis}"] |= {"title": {"text": label}, "rangemode": "tozero"}
        if key == "preemptions":
            layout[f"yaxis{axis}"] |= whole_ticks(max((max(v[key], default=0) for _, v in lines), default=0))
        for place, (one, values) in enumerate(lines):
            found = line(one, values["t_s"], values[key], row=row, place=place, shape="vh", dark=dark)
            found["hovertemplate"] = f"{one.letter}: %{{y:,.0f}} {label}, until %{{x:,.1f}} s<extra></extra>"
            data.append(found)
    layout["xaxis"] |= {"title": {"text": "simulated time, s"}, "anchor": f"y{len(panels)}"}
    parts = "; ".join(
        f"{one.letter} {count(one.answer['steps']['prompt_tokens'])} prompt and "
        f"{count(one.answer['steps']['output_tokens'])} output tokens in {count(one.answer['steps']['total'])} steps"
        for one, _ in lines
    )
    title = f"Computed: {parts}"
    rows = tuple(
        {"policy": one.letter, "t_s": at, **{key: values[key][i] for key, _ in PANELS}}
        for one, values in lines
        for i, at in enumerate(values["t_s"])
    )
    figure = go.Figure({"data": data, "layout": layout}, _validate=False)
    return Chart(
        figure=figure, title=title, alt=f"{title}. {len(panels)} line charts over one time axis.", rows=rows
    )
