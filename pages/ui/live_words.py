"""Text of others (targets' names, labels, reasons) made safe to stand in Markdown. Pure."""

from __future__ import annotations

import re

MARKS = re.compile(r"[\\`*_\[\]$#~<|]|:(?=\w)")


def plain(text: str) -> str:
    """``text`` on one line with every mark of Markdown escaped; a colon only where a directive could begin.

    >>> print(plain("KV-bound: a_b :red[x]"))
    KV-bound: a\\_b \\:red\\[x\\]
    """
    return MARKS.sub(lambda mark: f"\\{mark[0]}", " ".join(text.split()))
