"""Statements on an open history file: insert a batch, fetch a span, choose tiers for a window, export.

What it answers: how rows travel between DuckDB and numpy. Left out: when, and failures (store).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from connectors.history.errors import HistoryError
from connectors.history.rows import Frame, frame_of
from connectors.history.schema import COLUMNS, Tier

_NAMES = ", ".join(COLUMNS)
_FLOATS = tuple(name for name, kind in COLUMNS.items() if kind in ("DOUBLE", "FLOAT"))
_SELECT = ", ".join(
    f"nullif({name}, 'NaN'::DOUBLE)"
    if name in _FLOATS
    else "CASE WHEN counts = '' THEN NULL ELSE string_split(counts, ',')::UINTEGER[] END"
    if name == "counts"
    else name
    for name in COLUMNS
)


def insert_rows(con: duckdb.DuckDBPyConnection, table: str, rows: Sequence[dict[str, object]]) -> None:
    """One statement for the whole batch, from numpy columns; what a row leaves out becomes NULL."""
    batch: dict[str, NDArray[Any]] = {}
    for name in COLUMNS:
        if name in _FLOATS:
            values = [row.get(name) for row in rows]
            batch[name] = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
        elif name == "counts":
            texts = [",".join(map(str, row.get(name) or ())) for row in rows]  # type: ignore[call-overload]
            batch[name] = np.array(texts, dtype=object)
        elif name == "state":
            batch[name] = np.array([row[name] for row in rows], dtype=object)
        else:
            batch[name] = np.array([row[name] for row in rows], dtype=np.int64)
    con.execute(f"INSERT INTO {table} ({_NAMES}) SELECT {_SELECT} FROM batch")


def insert_frame(con: duckdb.DuckDBPyConnection, table: str, frame: Frame) -> None:
    """Rows that were summed up."""
    if not len(frame):
        return
    numbers = {name: values.tolist() for name, values in frame.numbers.items()}
    rows: list[dict[str, object]] = []
    for i in range(len(frame)):
        counts = frame.counts[i]
        row: dict[str, object] = {name: v for name, c in numbers.items() if (v := c[i]) == v}
        row |= {
            "end_s": float(frame.end_s[i]),
            "engine_id": int(frame.engine_id[i]),
            "seconds": float(frame.seconds[i]),
            "counted_s": float(frame.counted_s[i]),
            "state": frame.state[i],
            "layout_id": int(frame.layout_id[i]),
            "counts": None if counts is None else counts.tolist(),
        }
        rows.append(row)
    insert_rows(con, table, rows)


def fetch(
    con: duckdb.DuckDBPyConnection,
    table: str,
    *,
    after_s: float,
    until_s: float,
    engine_ids: Sequence[int] | None = None,
) -> Frame:
    """Rows of ``(after_s, until_s]``, ordered by engine and time."""
    where = "" if engine_ids is None else f" AND engine_id IN ({', '.join(map(str, engine_ids))})"
    columns: dict[str, Any] = con.execute(
        f"SELECT {_NAMES} FROM {table} WHERE end_s > ? AND end_s <= ?{where} ORDER BY engine_id, end_s",
        [after_s, until_s],
    ).fetchnumpy()
    return frame_of(columns)


def pieces(
    con: duckdb.DuckDBPyConnection,
    tiers: Sequence[Tier],
    *,
    start_s: float,
    end_s: float,
    step_s: float,
    summed: Mapping[str, float],
) -> list[tuple[str, float, float]]:
    """(table, after, until) whose union is the window.

    The coarsest tier that is fine enough gives its own span, finer ones what it has not summed up yet, and a
    coarser one what it has already forgotten.
    """
    fit = max(i for i, tier in enumerate(tiers) if i == 0 or tier.step_s <= step_s)
    found: list[tuple[str, float, float]] = []
    at = start_s
    for tier in reversed(tiers[: fit + 1]):
        until = end_s if tier.source is None else min(end_s, summed.get(tier.table, 0.0))
        if until > at:
            found.append((tier.table, at, until))
            at = until
    oldest_s = _oldest(con, tiers[fit], end_s)
    for tier in tiers[fit + 1 :]:
        if oldest_s <= start_s or _oldest(con, tier, end_s) >= oldest_s:
            continue
        until = min(math.ceil(oldest_s / tier.step_s) * tier.step_s, summed.get(tier.table, 0.0), end_s)
        if until > start_s:
            rest = [(table, max(after, until), upto) for table, after, upto in found if upto > until]
            return [(tier.table, start_s, until), *rest]
    return found


def _oldest(con: duckdb.DuckDBPyConnection, tier: Tier, default_s: float) -> float:
    row = con.execute(f"SELECT min(end_s) FROM {tier.table}").fetchone()
    return float(row[0]) if row and row[0] is not None else default_s


def export_rows(con: duckdb.DuckDBPyConnection, destination: str, *, start_s: float, end_s: float) -> int:
    """Write the raw rows of a window to .parquet or .csv; HistoryError for another suffix."""
    name = os.path.basename(destination)
    kind = {".parquet": "PARQUET", ".csv": "CSV"}.get(os.path.splitext(name)[1].lower())
    if kind is None:
        raise HistoryError(f"export to {name!r} is not known; valid: .parquet, .csv")
    options = "(FORMAT CSV, HEADER)" if kind == "CSV" else "(FORMAT PARQUET)"
    path = destination.replace("'", "''")
    row = con.execute(
        "COPY (SELECT make_timestamp((s.end_s * 1e6)::BIGINT) AS time_utc, "
        "e.target, e.engine, e.model_name, e.release, e.demo, "
        "s.* EXCLUDE (engine_id, layout_id), l.layout AS counts_layout "
        "FROM samples s JOIN engines e USING (engine_id) LEFT JOIN layouts l USING (layout_id) "
        f"WHERE s.end_s > {float(start_s)!r} AND s.end_s <= {float(end_s)!r} "
        f"ORDER BY s.end_s, e.target, e.engine) TO '{path}' {options}"
    ).fetchone()
    return int(row[0]) if row else 0
