"""Reads the coefficients of the memory terms: what a release uses, with its interval and its source.

Source: catalog/memory_coefficients.csv, fitted and cross-validated by benchmarks/fit_memory.py. Left out: the
formulas that use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from capacity.catalog.table import read_table
from capacity.engine import Version, parse_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """One row: the value of a release with its 80 % interval, what it was read or fitted on, and how well."""

    name: str
    first_release: Version
    when: str
    value: float
    low: float
    high: float
    unit: str
    rows: int
    residual: str
    source: str


@lru_cache(maxsize=1)
def coefficients() -> tuple[Coefficient, ...]:
    """Every row in the table's order (releases rise within one name and condition)."""
    return tuple(
        Coefficient(
            name=row["name"],
            first_release=parse_version(row["first_release"]),
            when=row["when"],
            value=float(row["value"]),
            low=float(row["low"]),
            high=float(row["high"]),
            unit=row["unit"],
            rows=int(row["rows"]),
            residual=row["residual"],
            source=row["source"],
        )
        for row in read_table("memory_coefficients")
    )


@lru_cache(maxsize=512)
def coefficient(name: str, version: Version, *conditions: str) -> Coefficient:
    """The newest row not above ``version`` for the first of ``conditions`` that has one. Raises KeyError."""
    for condition in conditions:
        found = None
        for row in coefficients():
            if row.name != name or row.when != condition or row.first_release > version:
                continue
            if found is None or row.first_release >= found.first_release:
                found = row
        if found is not None:
            return found
    raise KeyError(f"memory_coefficients.csv has no {name} for {' or '.join(conditions)}")
