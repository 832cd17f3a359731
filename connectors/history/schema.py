"""Tables of the history file: what is kept, per tier, and where the file lies.

What it answers: column names and types, tiers and their retention. One row is one engine over one interval;
all histograms of a row share one list of counts, whose order ``layouts`` describes. Times: Unix seconds, UTC.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from capacity.intervals import COUNTERS, FACTS, GAUGES, HISTOGRAMS, PEAKS

VERSION = 1
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One resolution. ``step_s`` 0 is what was scraped; ``source`` is the tier it is summed up from."""

    table: str
    step_s: float
    keep_s: float
    source: str | None


TIERS = (
    Tier(table="samples", step_s=0.0, keep_s=7 * DAY_S, source=None),
    Tier(table="samples_1m", step_s=60.0, keep_s=35 * DAY_S, source="samples"),
    Tier(table="samples_15m", step_s=900.0, keep_s=400 * DAY_S, source="samples_1m"),
)

MEAN_COLUMNS = GAUGES
MAX_COLUMNS = PEAKS
LAST_COLUMNS = FACTS
SUM_COLUMNS = COUNTERS
HISTOGRAM_SUMS = tuple(f"{name}_sum" for name in HISTOGRAMS)
NUMBER_COLUMNS = (*MEAN_COLUMNS, *MAX_COLUMNS, *LAST_COLUMNS, *SUM_COLUMNS, *HISTOGRAM_SUMS)
KEY_COLUMNS = {
    "end_s": "DOUBLE",
    "engine_id": "INTEGER",
    "seconds": "FLOAT",
    "counted_s": "FLOAT",
    "state": "VARCHAR",
    "layout_id": "INTEGER",
    "counts": "UINTEGER[]",
}
COLUMNS = {
    **KEY_COLUMNS,
    **dict.fromkeys((*MEAN_COLUMNS, *MAX_COLUMNS), "FLOAT"),
    **dict.fromkeys((*LAST_COLUMNS, *SUM_COLUMNS, *HISTOGRAM_SUMS), "DOUBLE"),
}


def statements(existing: Mapping[str, Collection[str]]) -> list[str]:
    """DDL that creates what is missing and leaves the rest; ``existing`` holds the columns of each table."""
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    wanted = {
        "meta": "key VARCHAR PRIMARY KEY, value VARCHAR",
        "engines": "engine_id INTEGER PRIMARY KEY, target VARCHAR, engine VARCHAR, model_name VARCHAR, "
        "release VARCHAR, demo BOOLEAN",
        "layouts": "layout_id INTEGER PRIMARY KEY, layout VARCHAR",
        "markers": "at_s DOUBLE, text VARCHAR",
        **{tier.table: columns for tier in TIERS},
    }
    found = [f"CREATE TABLE {table} ({body})" for table, body in wanted.items() if table not in existing]
    for tier in TIERS:
        if tier.table in existing:
            found += [
                f"ALTER TABLE {tier.table} ADD COLUMN {name} {kind}"
                for name, kind in COLUMNS.items()
                if name not in existing[tier.table]
            ]
    return found


def default_path() -> str:
    """WATERLINE_HISTORY, else history.duckdb under the user's state directory."""
    named = os.environ.get("WATERLINE_HISTORY")
    if named:
        return named
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return str(Path(state) / "waterline" / "history.duckdb")
