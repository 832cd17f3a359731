"""The history file: writes intervals, sums them up, forgets old ones, reads any window back.

What it answers: what the pool did, also before this process started. One process owns the file. A write that
fails stops writing and says so, and never stops the live readings. Left out: which signals exist (intervals).
"""

from __future__ import annotations

import contextlib
import math
import shutil
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import duckdb

from capacity.intervals import Interval
from connectors.history import schema
from connectors.history.errors import HistoryError, HistoryLocked, HistoryStopped, first_line
from connectors.history.rows import (
    EngineKey,
    Layout,
    intervals_of,
    joined,
    layout_from_json,
    layout_json,
    layout_of,
    row_of,
    sum_up,
)
from connectors.history.sql import export_rows, fetch, insert_frame, insert_rows, pieces

RETRY_S = 60.0
HOUR_S = 3600.0
LATE_S = 15.0
_CONFIG = {
    "threads": "1",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


class History:
    """A DuckDB file of intervals. ``path`` ":memory:" keeps nothing.

    Raises HistoryLocked when another process has the file, HistoryError when it cannot be opened. ``record``
    never raises: ``problem`` says why writing has stopped, and it is tried again every minute.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        min_free_bytes: int = 64 << 20,
        memory_limit: str = "128MB",
        tiers: Sequence[schema.Tier] = schema.TIERS,
    ) -> None:
        self.path = path or schema.default_path()
        self.tiers = tuple(tiers)
        self.problem: str | None = None
        self.rows_written = 0
        self._min_free_bytes = min_free_bytes
        self._memory_limit = memory_limit
        self._lock = threading.RLock()
        self._retry_at = 0.0
        self._engines: dict[EngineKey, int] = {}
        self._layouts: dict[Layout, int] = {}
        self._summed_s: dict[str, float] = {}
        self._next_forget = 0.0
        self._con: duckdb.DuckDBPyConnection | None = self._open()

    def _open(self) -> duckdb.DuckDBPyConnection:
        if self.path != ":memory:":
            try:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise HistoryError(
                    f"history folder of {self.path} cannot be made: {error.strerror}"
                ) from None
        try:
            con = duckdb.connect(self.path, config={**_CONFIG, "memory_limit": self._memory_limit})
        except duckdb.Error as error:
            if "lock" in str(error).lower():
                raise HistoryLocked(
                    f"history file {self.path} is open in another Waterline process; "
                    "close that one, or set WATERLINE_HISTORY to another file"
                ) from None
            raise HistoryError(
                f"history file {self.path} cannot be opened as DuckDB ({first_line(error)}); "
                "move it away, or set WATERLINE_HISTORY to another file"
            ) from None
        try:
            self._prepare(con)
        except duckdb.Error as error:
            con.close()
            raise HistoryError(f"history file {self.path} cannot be prepared: {first_line(error)}") from None
        return con

    def _prepare(self, con: duckdb.DuckDBPyConnection) -> None:
        existing: dict[str, set[str]] = {}
        for table, column in con.execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal"
        ).fetchall():
            existing.setdefault(table, set()).add(column)
        for statement in schema.statements(existing):
            con.execute(statement)
        con.execute("INSERT OR IGNORE INTO meta VALUES ('version', ?)", [str(schema.VERSION)])
        self._read_names(con)
        for tier in self.tiers:
            row = con.execute(f"SELECT max(end_s) FROM {tier.table}").fetchone()
            newest = row[0] if row and row[0] is not None else 0.0
            self._summed_s[tier.table] = -(-newest // tier.step_s) * tier.step_s if tier.step_s else newest

    def _read_names(self, con: duckdb.DuckDBPyConnection) -> None:
        self._engines = {
            EngineKey(target=t, engine=e, model_name=m, release=r, demo=bool(d)): int(i)
            for i, t, e, m, r, d in con.execute(
                "SELECT engine_id, target, engine, model_name, release, demo FROM engines"
            ).fetchall()
        }
        self._layouts = {
            layout_from_json(text): int(i)
            for i, text in con.execute("SELECT layout_id, layout FROM layouts").fetchall()
        }

    def record(self, intervals: Sequence[Interval]) -> bool:
        """Keep ``intervals`` (one commit). False when writing has stopped; ``problem`` says why."""
        if not intervals:
            return self.problem is None
        with self._lock:
            if self.problem is not None and time.monotonic() < self._retry_at:
                return False
            try:
                self._check_space()
                if self._con is None:
                    self._con = self._open()
                self._write(self._con, intervals)
            except (duckdb.Error, HistoryError, OSError) as error:
                self._stop(error)
                return False
            self.problem = None
            return True

    def _check_space(self) -> None:
        if self.path == ":memory:":
            return
        free = shutil.disk_usage(Path(self.path).parent).free
        if free < self._min_free_bytes:
            raise HistoryStopped(
                f"disk of {self.path} has {free >> 20} MiB free, under the {self._min_free_bytes >> 20} MiB "
                "that history leaves alone; free some space or set WATERLINE_HISTORY to another disk"
            )

    def _stop(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + RETRY_S
        text = first_line(error)
        self.problem = text if isinstance(error, HistoryError) else f"writing to {self.path} failed: {text}"
        if isinstance(error, HistoryStopped) or self._con is None:
            return
        with contextlib.suppress(duckdb.Error):
            self._con.execute("ROLLBACK")
        try:
            self._read_names(self._con)
        except duckdb.Error:
            self._con.close()
            self._con = None

    def _write(self, con: duckdb.DuckDBPyConnection, intervals: Sequence[Interval]) -> None:
        con.execute("BEGIN")
        rows = [
            row_of(i, engine_id=self._engine_id(con, i), layout_id=self._layout_id(con, i)) for i in intervals
        ]
        insert_rows(con, "samples", rows)
        con.execute("COMMIT")
        self.rows_written += len(rows)
        newest = max(i.end_s for i in intervals)
        self._sum_up(con, newest)
        if newest >= self._next_forget:
            self._next_forget = newest + HOUR_S
            self.forget(newest)

    def _engine_id(self, con: duckdb.DuckDBPyConnection, interval: Interval) -> int:
        key = EngineKey(
            target=interval.target,
            engine=interval.engine,
            model_name=interval.model_name,
            release=interval.release,
            demo=interval.demo,
        )
        found = self._engines.get(key)
        if found is None:
            found = max(self._engines.values(), default=0) + 1
            con.execute(
                "INSERT INTO engines VALUES (?, ?, ?, ?, ?, ?)",
                [found, key.target, key.engine, key.model_name, key.release, key.demo],
            )
            self._engines[key] = found
        return found

    def _layout_id(self, con: duckdb.DuckDBPyConnection, interval: Interval) -> int:
        layout = layout_of(interval.histograms)
        if not layout:
            return 0
        found = self._layouts.get(layout)
        if found is None:
            found = max(self._layouts.values(), default=0) + 1
            con.execute("INSERT INTO layouts VALUES (?, ?)", [found, layout_json(layout)])
            self._layouts[layout] = found
        return found

    def _sum_up(self, con: duckdb.DuckDBPyConnection, newest_s: float) -> None:
        """Fill the coarser tiers up to the last whole step. What a crash left out is summed up here too."""
        for tier in self.tiers:
            if tier.source is None:
                continue
            until = (newest_s - LATE_S) // tier.step_s * tier.step_s
            since = self._summed_s[tier.table]
            if since <= 0:
                row = con.execute(f"SELECT min(end_s) FROM {tier.source}").fetchone()
                oldest = row[0] if row and row[0] is not None else newest_s
                since = (math.ceil(oldest / tier.step_s) - 1) * tier.step_s
            chunk = max(tier.step_s, HOUR_S)
            while since < until:
                upto = min(until, since + chunk)
                frame = fetch(con, tier.source, after_s=since, until_s=upto)
                insert_frame(con, tier.table, sum_up(frame, step_s=tier.step_s))
                since = upto
            self._summed_s[tier.table] = since

    def forget(self, now_s: float) -> None:
        """Drop what is older than each tier keeps."""
        with self._lock:
            if self._con is not None:
                for tier in self.tiers:
                    self._con.execute(f"DELETE FROM {tier.table} WHERE end_s < ?", [now_s - tier.keep_s])

    def window(
        self,
        start_s: float,
        end_s: float,
        *,
        points: int = 300,
        targets: Iterable[str] | None = None,
        demo: bool | None = None,
    ) -> list[Interval]:
        """Intervals of ``(start_s, end_s]``, about ``points`` per engine.

        Read from the coarsest tier that is fine enough. Ordered by engine and time. Raises
        HistoryStopped when the file cannot be read now.
        """
        with self._lock:
            if self._con is None:
                raise HistoryStopped(self.problem or f"history file {self.path} is closed")
            cursor = self._con.cursor()
            engines = {number: key for key, number in self._engines.items()}
            layouts = {number: layout for layout, number in self._layouts.items()}
            summed = dict(self._summed_s)
        wanted = None if targets is None else set(targets)
        chosen = [
            number
            for number, key in engines.items()
            if (wanted is None or key.target in wanted) and (demo is None or key.demo == demo)
        ]
        if not chosen or end_s <= start_s:
            return []
        step_s = max((end_s - start_s) / points, 1e-9)
        try:
            plan = pieces(cursor, self.tiers, start_s=start_s, end_s=end_s, step_s=step_s, summed=summed)
            frames = [
                fetch(cursor, table, after_s=after_s, until_s=until_s, engine_ids=chosen)
                for table, after_s, until_s in plan
            ]
        except duckdb.Error as error:
            raise HistoryStopped(f"history file {self.path} cannot be read: {first_line(error)}") from None
        finally:
            cursor.close()
        frame = sum_up(joined(frames), step_s=step_s)
        found = intervals_of(frame, engines=engines, layouts=layouts)
        return sorted(found, key=lambda i: (i.target, i.engine, i.end_s))

    def mark(self, at_s: float, text: str) -> None:
        """Keep a marker such as "my change" at a moment."""
        with self._lock:
            if self._con is None:
                raise HistoryStopped(self.problem or f"history file {self.path} is closed")
            self._con.execute("INSERT INTO markers VALUES (?, ?)", [at_s, text[:200]])

    def markers(self, start_s: float, end_s: float) -> list[tuple[float, str]]:
        """Markers inside the window, oldest first."""
        with self._lock:
            if self._con is None:
                return []
            return [
                (float(at), str(text))
                for at, text in self._con.execute(
                    "SELECT at_s, text FROM markers WHERE at_s BETWEEN ? AND ? ORDER BY at_s",
                    [start_s, end_s],
                ).fetchall()
            ]

    def export(self, destination: str, *, start_s: float, end_s: float) -> int:
        """Raw rows of the window as .parquet or .csv, with engine names and layouts; returns their count.

        Raises HistoryError for another suffix or when the file cannot be written.
        """
        with self._lock:
            if self._con is None:
                raise HistoryStopped(self.problem or f"history file {self.path} is closed")
            cursor = self._con.cursor()
        try:
            return export_rows(cursor, destination, start_s=start_s, end_s=end_s)
        except duckdb.Error as error:
            raise HistoryError(f"export to {destination} failed: {first_line(error)}") from None
        finally:
            cursor.close()

    def close(self) -> None:
        """Flush and let go of the file; a second call does nothing."""
        with self._lock:
            if self._con is not None:
                self._con.close()
                self._con = None
                self.problem = f"history file {self.path} is closed"
                self._retry_at = float("inf")

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
