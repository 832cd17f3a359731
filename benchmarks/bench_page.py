"""Speed of the Plan page in a real Chromium: first answer of a warm server, and a changed widget to the new number.

Starts its own server on a free loopback port and stops it by its id. Left out: a cold server, the network.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[1]
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-sync",
    "--no-first-run",
]
VERDICT = '[data-testid="stAlert"]'
VALUE = '[data-testid="stMetricValue"]'
VISITS, CHANGES = 5, 12
FIRST_BAR_S, CHANGE_BAR_S = 3.0, 0.3
WAIT_MS = 60_000
# Counts from the key that commits a value to the frame in which the first figure reads differently.
WATCH = """() => new Promise(done => {
    const find = () => document.querySelector('[data-testid="stMetricValue"]')?.innerText;
    const before = find();
    window.__started = null;
    document.addEventListener('keydown', e => { if (e.key === 'Enter') window.__started = performance.now(); },
        {once: true, capture: true});
    const look = () => {
        const now = find();
        if (window.__started !== null && now !== undefined && now !== before)
            done(performance.now() - window.__started);
        else requestAnimationFrame(look);
    };
    look();
})"""


def main() -> int:
    """Measure and print a table; 1 when a bar is missed."""
    with tempfile.TemporaryDirectory() as home, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        probe.close()
        environ = os.environ | {"HOME": home, "WATERLINE_HISTORY": f"{home}/history.duckdb"}
        server = subprocess.Popen(
            [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url)
            with sync_playwright() as play:
                chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
                first, figures, changed, faults = _measure(chromium, url)
                chromium.close()
        finally:
            server.terminate()
            server.wait(timeout=20)
    print("Plan page (1440 x 900, warm server)    median     worst       bar")
    print(f"answer in words, new browser context  {_line(first, FIRST_BAR_S)}")
    print(f"the five figures, new context         {_line(figures, FIRST_BAR_S)}")
    print(f"changed length to the new number      {_line(changed, CHANGE_BAR_S)}")
    print(f"console errors                        {faults:>8}                 0")
    bars = ((first, FIRST_BAR_S), (figures, FIRST_BAR_S), (changed, CHANGE_BAR_S))
    return int(faults > 0 or any(statistics.median(values) > bar for values, bar in bars))


def _line(values: list[float], bar: float) -> str:
    return f"{statistics.median(values):>6.2f} s  {max(values):>6.2f} s  {bar:>6.2f} s"


def _wait(url: str) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            urllib.request.urlopen(f"{url}/_stcore/health", timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def _measure(chromium: Browser, url: str) -> tuple[list[float], list[float], list[float], int]:
    faults: list[str] = []

    def visit() -> tuple[Page, float, float]:
        page = chromium.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        start = time.perf_counter()
        page.goto(url)
        page.wait_for_selector(VERDICT, timeout=WAIT_MS)
        answered = time.perf_counter() - start
        page.wait_for_selector(VALUE, timeout=WAIT_MS)
        return page, answered, time.perf_counter() - start

    visit()[0].context.close()
    first, figures = [], []
    for _ in range(VISITS):
        page, answered, drawn = visit()
        first.append(answered)
        figures.append(drawn)
        page.context.close()
    page, _, _ = visit()
    page.locator(".st-key-plan_fold_engine summary").click()
    field = page.locator(".st-key-plan_max_model_len input")
    changed = []
    for index in range(CHANGES):
        page.wait_for_timeout(400)
        field.fill(str(4000 + 300 * index))
        watch = page.evaluate_handle(f"() => {{ window.__result = ({WATCH})(); }}")
        field.press("Enter")
        changed.append(float(page.evaluate("() => window.__result")) / 1000)
        watch.dispose()
    page.context.close()
    return first, figures, changed[1:], len(faults)


if __name__ == "__main__":
    raise SystemExit(main())
