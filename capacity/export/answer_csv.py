"""An answer as CSV with one key and one value a row, for a spreadsheet. Left out: what the keys mean (answer)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

RISKY = ("=", "+", "-", "@", "\t", "\r")


def answer_csv(answer: Mapping[str, Any]) -> str:
    """The nested answer as rows ``key,value``; unknown is an empty cell, and no cell starts a formula.

    >>> print(answer_csv({"memory": {"terms": [{"gib": 1.5}]}, "reason": None, "id": "=1+1"}), end="")
    key,value
    memory.terms.0.gib,1.5
    reason,
    id,'=1+1
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("key", "value"))
    writer.writerows((key, _cell(value)) for key, value in _rows(answer, ""))
    return out.getvalue()


def _rows(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _rows(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _rows(item, f"{key}.{index}")
    else:
        yield key, value


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(RISKY):
        return f"'{value}"
    return value
