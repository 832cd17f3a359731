"""Reads one bundled table. Left out: what its columns mean."""

from __future__ import annotations

import csv
from importlib.resources import files


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of ``capacity/catalog/<name>.csv``; blank cells are empty texts ("not stated", never zero)."""
    with (files("capacity.catalog") / f"{name}.csv").open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))
