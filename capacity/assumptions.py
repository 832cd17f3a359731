"""What the planner assumed for keys that were not given, each with its value and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One default that was used: the scenario key, the value taken, and one sentence of source."""

    key: str
    value: str
    source: str
