"""The app on a free loopback port and a real Chromium, both started here and stopped by their own id."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="session")
def app_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of this test run."""
    port, home = free_port(), tmp_path_factory.mktemp("app-home")
    environ = {key: value for key, value in os.environ.items() if not key.startswith("WATERLINE_")}
    environ |= {"WATERLINE_HISTORY": str(home / "history.duckdb"), "HOME": str(home)}
    with (home / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)],
            cwd=ROOT,
            env=environ,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 90
            while True:
                try:
                    urllib.request.urlopen(f"{url}/_stcore/health", timeout=5).close()
                    break
                except OSError:
                    said = (home / "server.log").read_text()[-2000:]
                    assert process.poll() is None, said
                    assert time.monotonic() < deadline, said
                    time.sleep(0.3)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=20)
        said = (home / "server.log").read_text()
        assert "Traceback" not in said, said[-4000:]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium."""
    with sync_playwright() as play:
        one = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield one
        finally:
            one.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A tab of 1440 x 900 that fails the test on any console error."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    one = context.new_page()
    faults: list[str] = []
    one.on("console", lambda heard: faults.append(heard.text) if heard.type == "error" else None)
    one.on("pageerror", lambda error: faults.append(str(error)))
    yield one
    context.close()
    assert faults == []
