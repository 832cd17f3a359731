"""No page may hide a fault: one that is shown as a sentence fails the test all the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


class _Kept(logging.Handler):
    """Keeps the faults that the pages log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(autouse=True)
def no_faults(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test whose page had a fault of its own; the mark ``faulty_page`` says that it is wanted."""
    kept = _Kept()
    log = logging.getLogger("waterline")
    log.addHandler(kept)
    yield
    log.removeHandler(kept)
    if request.node.get_closest_marker("faulty_page") is None:
        said = [(one.getMessage(), repr(one.exc_info and one.exc_info[1])) for one in kept.records]
        assert said == []
