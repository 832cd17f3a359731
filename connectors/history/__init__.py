"""Readings kept in a DuckDB file, so that any window can be drawn later, also straight after a restart."""

from connectors.history.errors import HistoryError, HistoryLocked, HistoryStopped
from connectors.history.store import History

__all__ = ["History", "HistoryError", "HistoryLocked", "HistoryStopped"]
