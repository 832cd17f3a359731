"""Scenarios to start from with the policies to compare: the simulator's presets and this page's choice of contestants."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from capacity.simulation.presets import PRESETS
from pages.ui.simulate_policies import LETTERS, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A preset: its scenario without admission, and its policies."""

    key: str
    title: str
    shows: str
    scenario: dict[str, Any]
    policies: tuple[Policy, ...]


@lru_cache(maxsize=1)
def starts() -> tuple[Start, ...]:
    """All presets in order."""
    rows = json.loads((files("pages.ui") / "simulate_presets.json").read_text(encoding="utf-8"))
    found = []
    for item in PRESETS:
        row = rows.get(item.key, {"a": {"gate": ""}})
        scenario = {key: value for key, value in item.scenario.items() if key != "admission"}
        found.append(
            Start(
                key=item.key,
                title=item.title,
                shows=row.get("shows", item.shows),
                scenario={**scenario, **row.get("scenario", {})},
                policies=tuple(Policy(letter=one, **row[one]) for one in LETTERS if one in row),
            )
        )
    return tuple(found)
