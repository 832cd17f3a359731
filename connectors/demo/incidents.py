"""Scripted incidents of the demonstration engine, one row of ``incidents.csv`` each.

What it answers: the traffic, limits and faults at a moment of an incident. Times are seconds since it began.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from capacity.errors import CapacityError


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One script. ``rate_*`` multiply the base arrival rate; ``scope`` "one" strikes the last replica."""

    name: str
    what: str
    scope: Literal["all", "one"]
    rate_from: float
    rate_to: float
    ramp_s: float
    prompt_tokens: int
    output_tokens: int
    max_num_seqs: int | None
    freeze_after_s: float | None
    down_after_s: float | None
    down_for_s: float | None
    repeat_s: float | None
    scrape_delay_s: float

    def rate_factor(self, elapsed_s: float) -> float:
        """Arrival rate over the base rate, with a slow swell of 15 %: calm is not frozen."""
        share = 1.0 if self.ramp_s <= 0 else min(1.0, elapsed_s / self.ramp_s)
        level = self.rate_from + (self.rate_to - self.rate_from) * share
        return level * (1 + 0.15 * math.sin(elapsed_s / 23.0))

    def is_frozen(self, elapsed_s: float) -> bool:
        """True while the engine does not step."""
        return self.freeze_after_s is not None and elapsed_s >= self.freeze_after_s

    def is_down(self, elapsed_s: float) -> bool:
        """True while the process is gone; ``repeat_s`` starts the script over."""
        if self.down_after_s is None:
            return False
        local = elapsed_s % self.repeat_s if self.repeat_s else elapsed_s
        end = math.inf if self.down_for_s is None else self.down_after_s + self.down_for_s
        return self.down_after_s <= local < end


def _number(text: str) -> float | None:
    return float(text) if text else None


@cache
def incidents() -> dict[str, Incident]:
    """Every incident by name, in the table's order.

    >>> list(incidents())[:3]
    ['calm', 'idle', 'ramp']
    """
    text = resources.files("connectors.demo").joinpath("incidents.csv").read_text(encoding="utf-8")
    found = {}
    for row in csv.DictReader(text.splitlines()):
        seats = _number(row["max_num_seqs"])
        found[row["name"]] = Incident(
            name=row["name"],
            what=row["what"],
            scope="one" if row["scope"] == "one" else "all",
            rate_from=float(row["rate_from"]),
            rate_to=float(row["rate_to"]),
            ramp_s=float(row["ramp_s"]),
            prompt_tokens=int(row["prompt_tokens"]),
            output_tokens=int(row["output_tokens"]),
            max_num_seqs=None if seats is None else int(seats),
            freeze_after_s=_number(row["freeze_after_s"]),
            down_after_s=_number(row["down_after_s"]),
            down_for_s=_number(row["down_for_s"]),
            repeat_s=_number(row["repeat_s"]),
            scrape_delay_s=float(row["scrape_delay_s"]),
        )
    return found


def incident(name: str) -> Incident:
    """The incident called ``name``; CapacityError names the valid ones."""
    found = incidents().get(name)
    if found is None:
        raise CapacityError(
            f"incident {name!r} is not known; valid: {', '.join(incidents())}", field="incident"
        )
    return found
