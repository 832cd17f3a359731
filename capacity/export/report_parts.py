"""Parts of the report that hold text: tables, lists, sentences. Every text is escaped. Left out: charts (svg)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def bullets(texts: Iterable[str]) -> str:
    """Sentences as a list; nothing when there are none."""
    inner = "".join(f"<li>{escape(sentence(text))}</li>" for text in texts)
    return f"<ul>{inner}</ul>" if inner else ""


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: frozenset[int] | set[int] = frozenset(),
    quiet: frozenset[int] | set[int] = frozenset(),
    kind: str = "plain",
) -> str:
    """Rows under heads; ``numbers``: columns to the right, ``quiet``: columns in grey, ``kind``: its class."""

    def mark(i: int) -> str:
        return " class='n'" if i in numbers else " class='src'" if i in quiet else ""

    head = "".join(
        f"<th{mark(i) if i in numbers else ''} scope='col'>{escape(text)}</th>"
        for i, text in enumerate(heads)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{mark(i)}>{escape(str(cell))}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<div class='scroll'><table class='{kind}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def sentence(text: str) -> str:
    """A core message as a sentence.

    >>> sentence("the pool  is full")
    'The pool is full.'
    """
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
