"""The comparison as rows of texts: each scenario's figure, its interval, and how far it is from the first. No Streamlit.

Left out: the figures (compare.py).
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any

from capacity.compare import ROWS, Column, Figure, Row, change, different_inputs
from capacity.scenario import field_table
from pages.ui.compare_parts import plain, seconds, spread, together
from pages.ui.format import UNKNOWN, count, first_upper, gib, rate

SAME = 0.005


def shown(unit: str) -> Callable[[float | None], str]:
    """The text of a value of that unit."""
    return {"gib": gib, "s": seconds, "usd": _dollars, "per_s": rate}.get(unit, count)


def _dollars(value: float | None) -> str:
    if value is not None and 0 < value < 0.995:
        return f"${value:.2f}" if value >= 0.0995 else f"${value:.2g}"
    return UNKNOWN if value is None else f"${value:,.2f}"


def sorted_columns(columns: Sequence[Column], key: str | None) -> list[Column]:
    """Best first by a row; unknown last; as pinned for None or a row that does not exist."""
    row = next((row for row in ROWS if row.key == key), None)
    if row is None:
        return list(columns)
    sign = 1.0 if row.better == "lower" else -1.0

    def rank(one: Column) -> float:
        value = one.figures[row.key].value
        return math.inf if value is None else sign * value

    return sorted(columns, key=rank)


def cell(row: Row, figure: Figure, first: Figure | None) -> str:
    """A figure in Markdown, marked against the first: green better, orange worse."""
    if figure.value is None:
        return UNKNOWN
    show = shown(row.unit)
    around = together(spread(figure.value, figure.low, figure.high, show))
    text = f"**{plain(show(figure.value))}**{plain(around)}"
    mark = difference(row, figure, first)
    return f"{text}  \n{mark}" if mark else text


def difference(row: Row, figure: Figure, first: Figure | None) -> str:
    """How far from the first, as a coloured text; empty for the first itself and for less than half a percent."""
    share = change(first, figure) if first is not None and first is not figure else None
    if share is None or abs(share) < SAME:
        return ""
    words = f"{abs(share) * 100:,.0f} % {'more' if share > 0 else 'less'}"
    if share >= 1 - SAME:
        words = f"{share + 1:,.1f} times"
    elif -1 < share <= SAME - 1:  # 1 of 1,000 is not 100 % less
        words = f"1 of {1 / (share + 1):,.0f}"
    better = (share < 0) == (row.better == "lower")
    return f":green[{words}, better]" if better else f":orange[{words}, worse]"


def table(columns: Sequence[Column], first: Column) -> list[dict[str, str]]:
    """The rows for the screen, a column per scenario."""
    names: list[str] = []
    for one in columns:  # no two alike: a name that itself ends in "(first)" keeps its column
        name = one.entry.name + (" (first)" if one is first else "")
        names.append(next(text for n in range(len(columns)) if (text := name + "\u200b" * n) not in names))

    def line(label: str, cells: Sequence[str]) -> dict[str, str]:
        return {"": label, **dict(zip(names, cells, strict=True))}

    rows = [line("Fits", [_fit(one) for one in columns])]
    for key, values in different_inputs([one.entry for one in columns]):
        base = values[columns.index(first)] if first in columns else values[0]
        rows.append(
            line(_label(key), [plain(_text(v)) if v == base else f":blue[{plain(_text(v))}]" for v in values])
        )
    single = all(one.figures["gpus"].value in (None, 1.0) for one in columns)
    for row in ROWS:
        if single and row.key in ("gpus", "tokens_per_s_per_gpu"):
            continue
        rows.append(
            line(row.label, [cell(row, one.figures[row.key], first.figures[row.key]) for one in columns])
        )
    rows.append(line("Bound", [one.bound or UNKNOWN for one in columns]))
    rows.append(line("Speed known from", [_known(one) for one in columns]))
    return rows


def _fit(one: Column) -> str:
    icon = {"fits": ":green[:material/check_circle: fits]"}.get(one.fit)
    if icon:
        return icon
    word, _, _ = one.fit.partition(":")
    colour, mark = ("orange", "warning") if word == "marginal" else ("red", "cancel")
    return f":{colour}[:material/{mark}: {plain(word)}]"


def _known(one: Column) -> str:
    if one.load is None:
        return UNKNOWN
    own = len(one.entry.measured)
    measured = f"{own} own point{'' if own == 1 else 's'}, " if own else ""
    return measured + ("extrapolated" if one.extrapolated else "measured runs")


def _label(key: str) -> str:
    field = field_table().get(key)
    return field.label if field else key


def _text(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, dict):
        return f"{value['mean']:g}" if "mean" in value else "own config"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return " ".join(_text(item) for item in value[:8])
    return f"{value:,}" if isinstance(value, int) else str(value)


def why(columns: Sequence[Column]) -> list[dict[str, str]]:
    """Reasons of what is unknown, marginal or extrapolated, the price's source and the quality's, one row each."""
    rows: dict[tuple[str, str], list[str]] = {}
    for one in columns:
        found: list[tuple[str, str]] = []
        if one.fit != "fits":
            found.append(("fit", one.fit))
        found += [("extrapolated", reason) for reason in one.extrapolated]
        found += [("unknown", figure.reason) for figure in one.figures.values() if figure.value is None]
        found += [("quality", one.quality), ("price", one.price)]
        for kind, text in dict.fromkeys(found):
            if text and not (kind == "unknown" and text in one.fit):
                rows.setdefault((kind, text), []).append(one.entry.name)
    every = len(columns)
    return [
        {
            "about": kind,
            "scenarios": "all" if len(names) == every else "; ".join(plain(name) for name in names),
            "why": plain(first_upper(text)),
        }
        for (kind, text), names in sorted(rows.items(), key=lambda item: item[0][0])
    ]


def csv_rows(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """One line per scenario and row: value and interval unrounded, the difference from the first, the reason."""
    first = columns[0]
    return [
        {
            "scenario": one.entry.name,
            "row": row.key,
            "unit": {"s": "s", "gib": "GiB", "usd": "USD"}.get(row.unit, "1"),
            "value": one.figures[row.key].value,
            "low": one.figures[row.key].low,
            "high": one.figures[row.key].high,
            "change_from_first": change(first.figures[row.key], one.figures[row.key]),
            "requests_in_flight": one.load,
            "bound": one.bound,
            "reason": one.figures[row.key].reason or None,
        }
        for row in ROWS
        for one in columns
    ]


CLOSE = 0.05
"""Share below which two estimates are not told apart: scatter of one model's variants against each other."""


def headline(columns: Sequence[Column], load: str) -> str:
    """The comparison in a sentence: who is fastest, who has the most throughput per GPU, who is cheapest, and where
    the first is too close to another to call."""
    found: dict[str, list[str]] = {}
    for key, words in (
        ("tpot_s", "lowest TPOT"),
        ("tokens_per_s_per_gpu", "most output tokens/s per GPU"),
        ("usd_per_million", "cheapest token"),
    ):
        ranked = [one for one in sorted_columns(columns, key) if one.figures[key].value is not None]
        if not ranked:
            continue
        row = next(row for row in ROWS if row.key == key)
        best = ranked[0].figures[key].value or 0.0
        tail = " per 1M" if key == "usd_per_million" else ""
        text = f"{words} ({plain(shown(row.unit)(best))}{tail})"
        close = [
            f"**{plain(one.entry.name)}**"
            for one in ranked[1:]
            if abs((one.figures[key].value or 0.0) - best) <= CLOSE * best
        ]
        if close:
            text += f", too close to call with {' and '.join(close)}"
        found.setdefault(ranked[0].entry.name, []).append(text)
    if not found:
        refused = sum(_refused(one) for one in columns)
        can = "can be served" if refused == len(columns) else "has a speed"
        return f"None of {len(columns)} {can} at {load}."
    sentences = "; ".join(
        f"**{plain(name)}** has {_all([f'the {text}' for text in texts])}" for name, texts in found.items()
    )
    return f"At {load}: {sentences}.{_missing(columns)}"


def _refused(one: Column) -> bool:
    return one.load is None and one.fit.startswith("does not fit")


def _missing(columns: Sequence[Column]) -> str:
    """How many have no speed, those that do not fit apart from those that are unknown."""
    refused = sum(_refused(one) for one in columns)
    unknown = sum(one.load is None for one in columns) - refused
    counts = ((refused, "cannot be served"), (unknown, "has no speed" if unknown == 1 else "have no speed"))
    return "".join(f" {number} of {len(columns)} {words}." for number, words in counts if number)


def _all(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def page_html(columns: Sequence[Column], load: str) -> str:
    """The comparison as a page of its own, printable, without scripts."""
    first = columns[0]
    head = "".join(f"<th>{html.escape(one.entry.name)}</th>" for one in columns)
    body = []
    for key, values in different_inputs([one.entry for one in columns]):
        cells = "".join(f"<td>{html.escape(_text(v))}</td>" for v in values)
        body.append(f"<tr><th>{html.escape(_label(key))}</th>{cells}</tr>")
    for row in ROWS:
        show = shown(row.unit)
        cells = ""
        for one in columns:
            figure = one.figures[row.key]
            share = change(first.figures[row.key], figure) if one is not first else None
            digits = 3 if share is not None and -1 < share <= SAME - 1 else 0
            tail = "" if share is None or abs(share) < SAME else f"<small>{share * 100:+.{digits}f} %</small>"
            cells += (
                f'<td title="{html.escape(figure.reason)}"><b>{html.escape(show(figure.value))}</b>'
                f"{html.escape(spread(figure.value, figure.low, figure.high, show))} {tail}</td>"
            )
        body.append(f"<tr><th>{html.escape(row.label)}</th>{cells}</tr>")
    notes = "".join(
        f"<li>{html.escape(row['scenarios'].replace(chr(92), ''))}, {row['about']}: "
        f"{html.escape(row['why'].replace(chr(92), ''))}</li>"
        for row in why(columns)
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Waterline: compare</title><style>'
        "body{font:15px system-ui,sans-serif;margin:2rem;color:#1B1F24;background:#fff}table{border-collapse:collapse}"
        "th,td{padding:.4rem .7rem;border-bottom:1px solid #d5dade;text-align:left;vertical-align:top}"
        "small{color:#5a636b;white-space:nowrap}</style><h1>Compare</h1>"
        f"<p>Speeds at {html.escape(load)}. In brackets: 80 % interval. Differences against the first.</p>"
        f"<table><tr><th></th>{head}</tr>{''.join(body)}</table><h2>Why</h2><ul>{notes}</ul></html>"
    )
