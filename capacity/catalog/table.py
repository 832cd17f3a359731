"""Reads one bundled table. Left out: what its columns mean."""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib.resources import files


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of ``capacity/catalog/<name>.csv``; blank cells are empty texts ("not stated", never zero).

    The file is read once; do not change a row.
    """
    return list(_rows(name))


@lru_cache(maxsize=64)
def _rows(name: str) -> tuple[dict[str, str], ...]:
    with (files("capacity.catalog") / f"{name}.csv").open(encoding="utf-8") as lines:
        return tuple(csv.DictReader(lines))
