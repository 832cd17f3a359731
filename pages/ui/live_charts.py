"""ECharts options of the Live page: pure functions from lines to a dictionary. Left out: formulas.

All charts of a page get the same time axis. Gaps stay gaps; limits are labelled at their line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capacity.live_series import EngineKey, LatencySeries, Line, PoolSeries
from pages.ui.live_format import ACT, CRITICAL, GREY

Option = dict[str, Any]
LINES = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#8C6BB1", "#7A828C")
MAX_LINES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What every chart of the page shares: the window, whether it is a demonstration, zone, markers, size."""

    start_s: float
    end_s: float
    demo: bool = False
    utc: bool = False
    markers: Sequence[tuple[float, str]] = ()
    scale: float = 1.0


def _points(times_s: Sequence[float], line: Line, factor: float = 1.0) -> list[list[float | None]]:
    return [
        [round(t * 1000), None if v is None else round(v * factor, 6)]
        for t, v in zip(times_s, line, strict=True)
    ]


def _line(
    name: str, times_s: Sequence[float], line: Line, *, colour: str, factor: float = 1.0, label: bool = True
) -> Option:
    return {
        "id": name,
        "name": name,
        "type": "line",
        "data": _points(times_s, line, factor),
        "showSymbol": False,
        "connectNulls": False,
        "lineStyle": {"width": 2, "color": colour},
        "itemStyle": {"color": colour},
        "emphasis": {"disabled": True},
        "endLabel": {"show": label, "formatter": "{a}", "color": colour, "distance": 6, "fontSize": 11},
        "labelLayout": {"moveOverlap": "shiftY"},
    }


def _base(title: str, frame: Frame, *, unit: str, legend: bool, right: int = 76) -> Option:
    tag = "  {demo|DEMO}" if frame.demo else ""
    size = round(14 * frame.scale)
    return {
        "animation": False,
        "useUTC": frame.utc,
        "title": {
            "text": title + tag,
            "subtext": unit,
            "itemGap": 4,
            "left": 0,
            "top": 0,
            "padding": 0,
            "subtextStyle": {"fontSize": round(11 * frame.scale)},
            "textStyle": {
                "fontSize": size,
                "fontWeight": 600,
                "rich": {
                    "demo": {
                        "fontSize": round(10 * frame.scale),
                        "fontWeight": 700,
                        "color": "#FFFFFF",
                        "backgroundColor": "#A3487F",
                        "padding": [2, 5, 2, 5],
                        "borderRadius": 3,
                    }
                },
            },
        },
        "legend": {"show": legend, "top": 18, "left": 150, "itemHeight": 8, "itemWidth": 16, "icon": "rect"},
        "grid": {
            "left": 8,
            "right": right,
            "top": round(46 * frame.scale),
            "bottom": 4,
        },
        "tooltip": {"trigger": "axis", "valueFormatter": "plain", "confine": True},
        "xAxis": {
            "type": "time",
            "min": round(frame.start_s * 1000),
            "max": round(frame.end_s * 1000),
            "axisLabel": {"hideOverlap": True, "fontSize": round(11 * frame.scale)},
            "splitLine": {"show": False},
        },
        "yAxis": {
            "type": "value",
            "min": 0,
            "axisLabel": {"fontSize": round(11 * frame.scale)},
            "splitNumber": 4,
        },
        "series": [],
    }


def _markers(frame: Frame) -> Option | None:
    if not frame.markers:
        return None
    return {
        "symbol": "none",
        "silent": True,
        "animation": False,
        "lineStyle": {"color": GREY, "width": 1.5, "type": "solid"},
        "label": {"formatter": "{b}", "position": "insideEndTop", "fontSize": 10, "color": GREY},
        "data": [{"name": text[:24], "xAxis": round(at * 1000)} for at, text in frame.markers],
    }


def _finish(option: Option, frame: Frame) -> Option:
    marks = _markers(frame)
    if marks is not None and option["series"]:
        option["series"].append({"id": "markers", "type": "line", "data": [], "markLine": marks})
    return option


def engine_name(key: EngineKey, keys: Sequence[EngineKey]) -> str:
    """The target's name, with the engine label where a target has several."""
    target = key[0].removeprefix("http://").removeprefix("https://").removesuffix("/metrics")
    return f"{target} #{key[1]}" if sum(k[0] == key[0] for k in keys) > 1 else target


def last_known(line: Line) -> float | None:
    """The newest value that is known within the last few points."""
    return next((v for v in reversed(line[-4:]) if v is not None), None)


def waterline(series: PoolSeries, frame: Frame, *, act: float, critical: float, title: str) -> Option:
    """KV blocks in use per replica, 0 to 100 %, under both limits; at most six lines, the fullest first."""
    keys = sorted(series.kv_usage, key=lambda k: -(last_known(series.kv_usage[k]) or 0.0))
    shown = keys if len(keys) <= MAX_LINES else keys[: MAX_LINES - 1]
    few = len(shown) <= 4
    option = _base(title, frame, unit="KV blocks in use, %", legend=not few, right=84)
    option["yAxis"] |= {"max": 100, "interval": 20}
    colours = {key: LINES[i % len(LINES)] for i, key in enumerate(sorted(shown))}
    option["series"] = [
        _line(
            engine_name(key, keys),
            series.times_s,
            series.kv_usage[key],
            colour=colours[key],
            factor=100,
            label=few,
        )
        for key in shown
    ]
    rest = keys[len(shown) :]
    if rest:
        highest = tuple(
            max((v for k in rest if (v := series.kv_usage[k][i]) is not None), default=None)
            for i in range(len(series.times_s))
        )
        name = f"highest of {len(rest)} others"
        option["series"].append(_line(name, series.times_s, highest, colour=GREY, factor=100, label=few))
    limits = [(act, ACT, "act"), (critical, CRITICAL, "critical")]
    option["series"].append(
        {
            "id": "limits",
            "type": "line",
            "data": [],
            "markLine": {
                "symbol": "none",
                "silent": True,
                "animation": False,
                "data": [
                    {
                        "yAxis": round(value * 100, 1),
                        "lineStyle": {"color": colour, "width": 1.5, "type": "solid"},
                        "label": {
                            "formatter": f"{word} {value:.0%}",
                            "position": "insideStartTop",
                            "color": colour,
                            "fontWeight": 600,
                        },
                    }
                    for value, colour, word in limits
                ],
            },
        }
    )
    return _finish(option, frame)


def lines(
    title: str,
    frame: Frame,
    times_s: Sequence[float],
    named: Mapping[str, Line],
    *,
    unit: str,
    factor: float = 1.0,
    top: float | None = None,
) -> Option:
    """A plain chart of up to six lines with one unit."""
    option = _base(title, frame, unit=unit, legend=len(named) > 4, right=84)
    option["series"] = [
        _line(
            name,
            times_s,
            line,
            colour=LINES[i % len(LINES)],
            factor=factor,
            label=1 < len(named) <= 4,
        )
        for i, (name, line) in enumerate(list(named.items())[:MAX_LINES])
    ]
    if top is not None:
        option["yAxis"] |= {"max": top, "interval": top / 4}
    return _finish(option, frame)


def latency(title: str, frame: Frame, series: LatencySeries, *, milliseconds: bool) -> Option:
    """p50, p90 and p99 of one family; dots where a step's neighbours are gaps."""
    named = {f"p{q * 100:g}": line for q, line in series.lines.items()}
    option = lines(
        title,
        frame,
        series.times_s,
        named,
        unit="ms" if milliseconds else "s",
        factor=1000.0 if milliseconds else 1.0,
    )
    for entry in option["series"]:
        entry["showSymbol"] = len(series.times_s) < 40
        entry["symbolSize"] = 4
    return option


def message(title: str, frame: Frame, text: str) -> Option:
    """A chart that has nothing to draw and says why, in the same place and size."""
    option = _base(title, frame, unit="", legend=False)
    option["yAxis"] |= {"show": False}
    option["graphic"] = {
        "type": "text",
        "left": "center",
        "top": "middle",
        "style": {"text": text, "fill": GREY, "fontSize": 13, "width": 420, "overflow": "break"},
    }
    return option
