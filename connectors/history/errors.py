"""What can be wrong with the history file. Messages say what was seen and what to do."""

from __future__ import annotations

from connectors.errors import ConnectorError


class HistoryError(ConnectorError):
    """The history file cannot be used."""


class HistoryLocked(HistoryError):
    """Another process has the file open."""


class HistoryStopped(HistoryError):
    """Writing has stopped (disk full, file gone); live readings go on."""


def first_line(error: Exception) -> str:
    """An error's first line, short."""
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
