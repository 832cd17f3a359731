"""ECharts options of the Live page: pure functions from lines to a dictionary. Left out: formulas.

All charts of a page get the same time axis. Gaps stay gaps; limits are labelled at their line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from capacity.live_series import EngineKey, LatencySeries, Line, PoolSeries
from pages.ui.live_format import ACT, CRITICAL, GREY, clock

Option = dict[str, Any]
LINES = ("#0072B2", "#00805D", "#A8487F", "#3B8FC4", "#7A5BA6", "#6B737D")
LINES_ON_DARK = ("#56B4E9", "#2FC29A", "#E39CC5", "#9AD1F2", "#B9A2DC", "#A3ABB5")
LIMIT_WORDS = {ACT: "#8A5F00", CRITICAL: "#B34700"}
LIMIT_WORDS_ON_DARK = {ACT: "#E69F00", CRITICAL: "#F08A4B"}
MAX_LINES = 6
MARK_CHARS = 40
EMPTY_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What every chart of the page shares: the window, whether it is a demonstration, zone, markers, size, and
    what replicas are called (whole name -> short name).
    """

    start_s: float
    end_s: float
    demo: bool = False
    utc: bool = False
    markers: Sequence[tuple[float, str]] = ()
    scale: float = 1.0
    dark: bool = False
    zone: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def times(self) -> str:
        """Which zone the time axis is in, in words."""
        return "times in UTC" if self.utc else f"times in {self.zone or 'local time'}"

    def called(self, name: str) -> str:
        """A replica's short name."""
        return self.names.get(name, name)

    @property
    def colours(self) -> tuple[str, ...]:
        return LINES_ON_DARK if self.dark else LINES


def _line(name: str, *, colour: str, label: bool = True) -> Option:
    return {
        "id": name,
        "name": name,
        "type": "line",
        "encode": {"x": "time", "y": name, "tooltip": [name]},
        "showSymbol": False,
        "connectNulls": False,
        "lineStyle": {"width": 2, "color": colour},
        "itemStyle": {"color": colour},
        "emphasis": {"disabled": True},
        "endLabel": {
            "show": label,
            "formatter": "{a}",
            "color": colour,
            "distance": 6,
            "fontSize": 11,
            "minMargin": 8,
        },
        "labelLayout": {"moveOverlap": "shiftY"},
    }


def _table(times_s: Sequence[float], named: Mapping[str, Line], factor: float) -> pd.DataFrame:
    """What the chart draws, as its reader can download it: times in UTC, one column per line."""
    columns: dict[str, Any] = {
        "time": pd.to_datetime(pd.Series(times_s, dtype="float64"), unit="s", utc=True)
    }
    for name, line in named.items():
        columns[name] = pd.array([None if v is None else round(v * factor, 4) for v in line], dtype="Float64")
    return pd.DataFrame(columns)


def _value_format(unit: str) -> str:
    """How a value is written on hover: with its unit, the words after the unit left out.

    >>> _value_format("ms · merged"), _value_format("KV blocks in use, % · times in UTC")
    ('%,.1f ms', '%,.1f %%')
    """
    short = unit.partition(" · ")[0].rpartition(", ")[2].replace("%", "%%")
    return f"%,.1f {short}" if short else "%,.1f"


def _base(title: str, frame: Frame, *, unit: str, legend: bool, right: int = 76) -> Option:
    tag = "  {demo|DEMO}" if frame.demo else ""
    size = round(14 * frame.scale)
    return {
        "animation": False,
        "useUTC": frame.utc,
        "title": {
            "text": title + tag,
            "subtext": unit,
            "itemGap": round(4 * frame.scale**3),
            "left": 0,
            "top": 2,
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
        "legend": {
            "show": legend,
            "type": "scroll",
            "top": round(32 * frame.scale),
            "left": 0,
            "itemHeight": 14,
            "itemWidth": 14,
            "icon": "roundRect",
            "textStyle": {"fontSize": round(11 * frame.scale)},
        },
        "grid": {
            "left": 8,
            "right": right,
            "top": round((66 if legend else 46) * frame.scale),
            "bottom": 4,
        },
        "tooltip": {"trigger": "axis", "valueFormatter": _value_format(unit), "confine": True},
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


def _markers(frame: Frame, *, words: bool) -> Option | None:
    """A line at each marked moment; its words, where asked for, above it on the side that has room."""
    if not frame.markers:
        return None
    middle = (frame.start_s + frame.end_s) / 2
    return {
        "symbol": "none",
        "silent": True,
        "animation": False,
        "lineStyle": {"color": GREY, "width": 1.5, "type": "solid"},
        "label": {"show": words, "formatter": "{b}", "position": "end", "distance": 3},
        "data": [
            {
                "name": text if len(text) <= MARK_CHARS else f"{text[: MARK_CHARS - 1]}…",
                "xAxis": round(at * 1000),
                "label": {
                    "align": "right" if at > middle else "left",
                    "color": "#A3ABB5" if frame.dark else "#5B636C",
                    "fontSize": round(11 * frame.scale),
                },
            }
            for at, text in frame.markers
        ],
    }


def _finish(option: Option, frame: Frame, *, words: bool = False) -> Option:
    marks = _markers(frame, words=words)
    if marks is not None and option["series"]:
        option["series"].append({"id": "markers", "type": "line", "data": [], "markLine": marks})
    return option


def engine_name(key: EngineKey, keys: Sequence[EngineKey]) -> str:
    """The target's name, with the engine's number where a target has several.

    >>> engine_name(("a", "0"), [("a", "0"), ("b", "0")]), engine_name(("a", "1"), [("a", "0"), ("a", "1")])
    ('a', 'a/1')
    """
    target = key[0].removeprefix("http://").removeprefix("https://").removesuffix("/metrics")
    return target if sum(k[0] == key[0] for k in keys) == 1 else f"{target}/{key[1]}"


def last_known(line: Line) -> float | None:
    """The newest value that is known within the last few points."""
    return next((v for v in reversed(line[-4:]) if v is not None), None)


def _colours(
    shown: Sequence[EngineKey], every: Sequence[EngineKey], palette: Sequence[str]
) -> dict[EngineKey, str]:
    """A colour each: a replica keeps its own while others come and go, as far as no two need the same."""
    free, found = list(palette), {}
    for key in sorted(shown, key=lambda k: (every.index(k) >= len(palette), k)):
        own = palette[every.index(key) % len(palette)]
        found[key] = own if own in free else free[0] if free else GREY
        if found[key] in free:
            free.remove(found[key])
    return found


def waterline(series: PoolSeries, frame: Frame, *, act: float, critical: float, title: str) -> Option:
    """KV blocks in use per replica, 0 to 100 %, under both limits; at most six lines, the fullest first."""
    known = [k for k, line in series.kv_usage.items() if any(v is not None for v in line)]
    keys = sorted(known, key=lambda k: -(last_known(series.kv_usage[k]) or 0.0))
    shown = keys if len(keys) <= MAX_LINES else keys[: MAX_LINES - 1]
    few = len(shown) <= 4
    option = _base(
        title,
        frame,
        unit=f"KV blocks in use, % · {frame.times}{begins(series.times_s, frame)}",
        legend=not few,
        right=84,
    )
    option["yAxis"] |= {"max": 100, "interval": 20}
    every = sorted(series.kv_usage)
    palette = frame.colours if len(shown) == len(keys) else frame.colours[:-1]  # grey is for the others
    colours = _colours(shown, every, palette)
    called = {key: frame.called(engine_name(key, every)) for key in shown}
    named = {called[key]: series.kv_usage[key] for key in shown}
    option["series"] = [_line(called[key], colour=colours[key], label=few) for key in shown]
    rest = keys[len(shown) :]
    if rest:
        highest = tuple(
            max((v for k in rest if (v := series.kv_usage[k][i]) is not None), default=None)
            for i in range(len(series.times_s))
        )
        name = f"highest of {len(rest)} others"
        named[name] = highest
        option["series"].append(_line(name, colour=GREY, label=few))
    for entry in option["series"]:
        entry["endLabel"]["fontSize"] = round(11 * frame.scale)
    option["dataset"] = {"source": _table(series.times_s, named, 100.0)}
    words = LIMIT_WORDS_ON_DARK if frame.dark else LIMIT_WORDS
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
                            "formatter": f"{word} {value * 100:.0f} %",
                            "position": "insideStartTop",
                            "color": words[colour],
                            "fontSize": round(11 * frame.scale),
                            "fontWeight": 600,
                        },
                    }
                    for value, colour, word in limits
                ],
            },
        }
    )
    return _finish(option, frame, words=True)


def begins(times_s: Sequence[float], frame: Frame) -> str:
    """When the readings begin, where much of the window lies before them: an empty chart is not a quiet pool.

    >>> begins([900.0, 1000.0], Frame(start_s=0.0, end_s=1000.0, utc=True))
    ' · readings begin 1970-01-01 00:15:00 UTC'
    """
    if not times_s or times_s[0] - frame.start_s <= EMPTY_SHARE * (frame.end_s - frame.start_s):
        return ""
    return f" · readings begin {clock(times_s[0], utc=frame.utc, zone=frame.zone)}"


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
    shown = dict(list(named.items())[:MAX_LINES])
    option["dataset"] = {"source": _table(times_s, shown, factor)}
    option["series"] = [
        _line(name, colour=frame.colours[i % len(LINES)], label=1 < len(shown) <= 4)
        for i, name in enumerate(shown)
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
        unit=("ms" if milliseconds else "s") + (f" · {series.note}" if series.note else ""),
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
        "style": {
            "text": text,
            "fill": GREY,
            "fontSize": 13,
            "lineHeight": 18,
            "width": 380,
            "overflow": "break",
        },
    }
    return option


def csv(option: Option) -> str:
    """What a chart draws, a line per moment in UTC, units in the heads; empty where it draws nothing."""
    if "dataset" not in option:
        return ""
    unit = str(option["title"]["subtext"]).partition(" · ")[0]
    table: pd.DataFrame = option["dataset"]["source"]
    return table.rename(
        columns={"time": "time_utc"} | {n: f"{n} ({unit})" for n in table.columns[1:]}
    ).to_csv(index=False, date_format="%Y-%m-%dT%H:%M:%SZ")
