"""Fits the step-time and first-token coefficients and writes the two tables that ship with the product.

Source: benchmarks/data/performance_points.csv through performance_regression.py; half-ranges from performance_spread.py.
Left out: any use at run time.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.performance_data import CONTRADICTS, Point, points
from benchmarks.performance_regression import Fitted, Table, build_table, fit_both
from benchmarks.performance_spread import Spread, spread
from capacity.performance.coefficients import CLASSES, KNOWLEDGE, LEVELS, QUANTITIES, Coefficients, from_rows

CATALOG = Path(__file__).parent.parent / "capacity" / "catalog"


def correction_rows(
    table: Table, quantity: str, fitted: Fitted, spreads: Spread, train: NDArray[np.bool_]
) -> list[dict[str, str]]:
    """Rows of performance_coefficients.csv for one quantity."""
    train = train & table.steady & np.isfinite(table.targets[quantity])
    found: list[dict[str, str]] = []
    for level in LEVELS:
        for key, offsets in fitted.levels[level].items():
            rows = np.flatnonzero(train & (table.keys[level] == key))
            half = spreads.measured(key) if level == "gpu" else 0.0
            dates = sorted(d for d in (table.points[i].measured for i in rows) if d[:2] == "20")
            found.append(
                {
                    "quantity": quantity,
                    "level": level,
                    "key": key,
                    "rows": str(len(rows)),
                    **{
                        name: f"{value:.4f}" if abs(value) >= 5e-5 else ""
                        for name, value in zip(CLASSES, offsets, strict=True)
                    },
                    "spread": f"{half:.4f}" if half else "",
                    "first_date": dates[0] if dates else "",
                    "last_date": dates[-1] if dates else "",
                    "largest_concurrency": f"{max(table.points[i].concurrency for i in rows):g}",
                    "model": table.points[int(rows[0])].model if level != "engine" else "",
                    "source": "; ".join(sorted({table.points[i].source.split(":")[0] for i in rows})),
                }
            )
    for name, value in [*spreads.pooled.items(), ("load_exponent", spreads.exponent)]:
        found.append(
            {
                "quantity": quantity,
                "level": "spread",
                "key": name,
                "rows": str(int(train.sum())),
                "spread": f"{value:.4f}",
                "source": "cross-validation by curve, by GPU, by model",
            }
        )
    return found


ROW_COLUMNS = (
    "quantity",
    "level",
    "key",
    "rows",
    *CLASSES,
    "spread",
    "first_date",
    "last_date",
    "largest_concurrency",
    "model",
    "source",
)
TERM_COLUMNS = ("quantity", "term", "class", "coefficient", "source")


def term_rows(quantity: str, fitted: Fitted, rows: int) -> list[dict[str, str]]:
    """Rows of performance_terms.csv for one quantity."""
    return [
        {
            "quantity": quantity,
            "term": term,
            "class": kind,
            "coefficient": f"{value:.6g}",
            "source": f"fit on {rows} public operating points, benchmarks/fit_performance.py",
        }
        for (term, kind), value in zip(QUANTITIES[quantity].items(), fitted.base, strict=True)
    ]


def make(
    table: Table, train: NDArray[np.bool_], *, spreads: bool = True
) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """(term rows, correction rows) of both quantities."""
    fitted = fit_both(table, train)
    terms: list[dict[str, str]] = []
    rows: list[dict[str, str]] = []
    for quantity in QUANTITIES:
        halves = spread(table, quantity, train) if spreads else Spread({}, dict.fromkeys(KNOWLEDGE, 0.2), 0.0)
        terms += term_rows(quantity, fitted[quantity], int((train & table.steady).sum()))
        rows += correction_rows(table, quantity, fitted[quantity], halves, train)
    return terms, rows


def as_coefficients(terms: list[dict[str, str]], rows: list[dict[str, str]]) -> Coefficients:
    """The same rows as the product would read them."""
    return from_rows(terms, [{**dict.fromkeys(ROW_COLUMNS, ""), **row} for row in rows])


def fit_points() -> list[Point]:
    """The points to predict; those of runs that contradict themselves are not fitted (Table.steady)."""
    return [p for p in points() if p.use in ("fit", CONTRADICTS)]


def main(argv: Sequence[str]) -> int:
    """Writes both tables into capacity/catalog (or the folder given)."""
    out = Path(argv[0]) if argv else CATALOG
    table = build_table(fit_points())
    terms, rows = make(table, np.ones(len(table.points), dtype=bool))
    for name, columns, found in (
        ("performance_terms", TERM_COLUMNS, terms),
        ("performance_coefficients", ROW_COLUMNS, rows),
    ):
        with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)
        print(f"{name}.csv: {len(found)} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
