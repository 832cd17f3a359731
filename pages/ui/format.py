"""Numbers, intervals and tables as every page writes them. Pure: values in, text or bytes out.

The rules are those of the look: GiB with one decimal, tokens up to a million in full, unknown as an en dash.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

UNKNOWN = "–"


def count(value: float | None) -> str:
    """Whole things (tokens, blocks, requests): separators up to a million, then two decimals and M or B.

    >>> count(420_912), count(1_310_000), count(None)
    ('420,912', '1.31M', '–')
    """
    if value is None:
        return UNKNOWN
    if abs(value) >= 1e9:
        return f"{value / 1e9:,.2f}B"
    return f"{value / 1e6:.2f}M" if abs(value) >= 1e6 else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Tokens per second: as ``count``, with two digits under 10, so that a slow one does not read 0.

    >>> rate(0.629), rate(1.0), rate(9.96), rate(135.2), rate(0.0), rate(None)
    ('0.63', '1.0', '10', '135', '0', '–')
    """
    if value is None or value == 0 or abs(value) >= 9.95:
        return count(value)
    return f"{value:.1f}" if abs(value) >= 0.995 else f"{value:.2g}"


def in_flight(value: float | None) -> str:
    """Requests in flight: as ``count``, and under 10 with the fraction that was typed.

    >>> in_flight(32.0), in_flight(1.5), in_flight(1.0), in_flight(442.3)
    ('32', '1.5', '1', '442')
    """
    return count(value) if value is None or value >= 10 else f"{value:.3g}"


def gib(value: float | None) -> str:
    """GiB with one decimal, two under 10.

    >>> gib(51.38), gib(3.333), gib(None)
    ('51.4', '3.33', '–')
    """
    if value is None:
        return UNKNOWN
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.1f}"


def times(value: float | None) -> str:
    """A concurrency as the engine logs it.

    >>> times(13.456)
    '13.46x'
    """
    return UNKNOWN if value is None else f"{value:,.2f}x"


def percent(share: float | None) -> str:
    """A share as a percentage: no decimals, except one under 10.

    >>> percent(0.931), percent(0.0123)
    ('93 %', '1.2 %')
    """
    if share is None:
        return UNKNOWN
    return f"{share * 100:.1f} %" if abs(share) < 0.0995 else f"{share * 100:.0f} %"


def between(low: float | None, high: float | None, show: Callable[[float | None], str]) -> str:
    """An interval's two ends; empty when both read the same.

    >>> between(54, 61, count), between(3, 3, count)
    ('54-61', '')
    """
    first, last = show(low), show(high)
    return "" if first == last else f"{first}-{last}"


def short_model(model_id: str) -> str:
    """A model's name without its organisation."""
    return model_id.rsplit("/", 1)[-1]


def first_upper(text: str) -> str:
    """A core message (lower case, no full stop) as a sentence for the screen; names of keys stay as they are.

    >>> first_upper("the config is empty"), first_upper("max_model_len is nan")
    ('The config is empty.', 'max_model_len is nan.')
    """
    text = " ".join(text.split())
    if not text:
        return ""
    start = text[0] if "_" in text.split(" ")[0] else text[0].upper()
    return start + text[1:] + ("" if text.endswith((".", "?")) else ".")


def table_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows with the same keys as CSV text; None becomes an empty cell. Cells that a spreadsheet would run as a
    formula get an apostrophe in front.
    """
    out = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(out, fieldnames=list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow({key: _cell(value) for key, value in row.items()})
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return f"'{value}"
    return value


def flat(answer: Mapping[str, Any], prefix: str = "") -> list[dict[str, Any]]:
    """A nested answer as rows of key and value, in order.

    >>> flat({"a": {"b": 1}, "c": [True]})
    [{'key': 'a.b', 'value': 1}, {'key': 'c.0', 'value': True}]
    """
    rows: list[dict[str, Any]] = []
    for key, value in answer.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            rows += flat(value, f"{name}.")
        elif isinstance(value, list):
            rows += flat({str(i): item for i, item in enumerate(value)}, f"{name}.")
        else:
            rows.append({"key": name, "value": value})
    return rows
