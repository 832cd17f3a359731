"""Scenarios to start from, as rows of examples.json. The first one is what a new visitor sees."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A named scenario (JSON object with the planner's keys)."""

    name: str
    scenario: dict[str, Any]


@lru_cache(maxsize=1)
def examples() -> tuple[Example, ...]:
    """All examples in order."""
    rows = json.loads((files("pages.ui") / "examples.json").read_text(encoding="utf-8"))
    return tuple(Example(name=row["name"], scenario=row["scenario"]) for row in rows)
