"""What docs/runbook.md says about a verdict: its meaning, what to look at first, when to wake somebody else.

Left out: actions and their price (the verdict carries them). Without the file (an installed copy) there is none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
LINE = re.compile(r"^- \*\*(?P<name>[^:*]+):\*\* (?P<text>.+?)(?=\n- \*\*|\n\n|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One section of the runbook, as Markdown without line breaks."""

    meaning: str
    look_first: str
    wake_when: str


@cache
def advice() -> dict[str, Advice]:
    """By verdict, in the runbook's order.

    >>> advice()["idle"].meaning
    'No request is running or waiting.'
    """
    try:
        text = RUNBOOK.read_text(encoding="utf-8")
    except OSError:
        return {}
    found = {}
    for section in text.split("\n## ")[1:]:
        name, _, body = section.partition("\n")
        lines = {m["name"]: _flat(m["text"]) for m in LINE.finditer(body)}
        if "Look first" in lines:
            found[name.strip()] = Advice(
                meaning=_flat(body.strip().partition("\n\n")[0]),
                look_first=lines["Look first"],
                wake_when=lines.get("Wake somebody else when", ""),
            )
    return found


def _flat(text: str) -> str:
    return " ".join(text.split())
