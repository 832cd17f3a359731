"""The end of a process: a poller that nobody stopped prints nothing, and stop() leaves no thread behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from capacity.telemetry import TargetSnapshot
from connectors.errors import Unreachable
from connectors.history import History
from connectors.poller import Poller, PollTarget

LEFT_RUNNING = """
import time
from connectors.errors import Unreachable
from connectors.poller import Poller, PollTarget

def refused():
    raise Unreachable("refused")

poller = Poller([PollTarget(name=f"t{i}", scrape=refused) for i in range(40)], interval_s=0.002)
poller.pause_s = lambda failures, scrape_s: 0.0
poller.start()
time.sleep(0.2)
"""

SERVICE_LEFT_RUNNING = """
import sys, time
from connectors.service import LiveService

service = LiveService(history_path=sys.argv[1], interval_s=0.02, demo=True, demo_past_s=10.0)
service.start()
while not service.history.rows_written:
    time.sleep(0.01)
"""


def test_a_service_that_nobody_stopped_closes_its_history(tmp_path: Path) -> None:
    """DuckDB aborts the process when it is called while the interpreter goes down."""
    path = tmp_path / "history.duckdb"
    done = subprocess.run(
        [sys.executable, "-c", SERVICE_LEFT_RUNNING, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    history = History(str(path))
    try:
        assert history.window(0.0, time.time(), points=10)
    finally:
        history.close()
    assert not path.with_name(path.name + ".wal").exists()


@pytest.mark.parametrize("again", range(3))
def test_an_interpreter_that_ends_says_nothing(again: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_RUNNING],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", ""), again


def test_scheduling_ends_quietly_where_no_worker_takes_a_scrape() -> None:
    poller = Poller([PollTarget(name="t", scrape=_never)], interval_s=0.01)
    seen: list[object] = []
    hook, threading.excepthook = threading.excepthook, seen.append
    try:
        poller.start()
        assert poller._workers is not None
        poller._workers.shutdown(wait=True)
        poller._threads[0].join(5)
        assert not poller._threads[0].is_alive()
    finally:
        threading.excepthook = hook
        poller.stop()
    assert seen == []


def test_stop_leaves_no_thread() -> None:
    before = threading.active_count()
    poller = Poller([PollTarget(name=f"t{i}", scrape=_never) for i in range(5)], interval_s=0.01)
    poller.start()
    time.sleep(0.1)
    poller.stop()
    assert threading.active_count() == before


def _never() -> TargetSnapshot:
    raise Unreachable("refused")
