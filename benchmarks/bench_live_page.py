"""What ten people who watch cost the server: the Live page refreshed every 2 s by ten sessions.

``python -m benchmarks.bench_live_page [--sessions 10] [--seconds 40]``. Starts a server with the demonstration
pool of its own, opens sessions over the real websocket (the browser's protocol without the browser's drawing) and
measures the server's CPU, each refresh until the script has finished, and the scrapes per target. Bars: 50 % of one
core, p95 0.4 s, one scrape per interval. Then one Chromium watches an engine that counts its scrapes: the time from
a scrape to its number on the page, which is drawing, half a refresh on average, and the poller. ``--changes 0``
leaves that out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import connect

ROOT = Path(__file__).parents[1]
CPU_BAR, P95_BAR_S, SCRAPE_SLACK = 0.50, 0.4, 1.05
POLL_S = 2.0
SETTLE_S = 8.0


CHROMIUM = "/usr/bin/chromium"
PAYLOAD = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m",engine="0"}} {number}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="m",engine="0"}} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{model_name="m",engine="0"}} 0.1
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{model_name="m",engine="0"}} {tokens}
"""
WATCH = """() => {
    window.__seen = [];
    const value = () => document.querySelectorAll('[data-testid="stMetricValue"]')[1].innerText.trim();
    let last = value();
    new MutationObserver(() => {
        const now = value();
        if (now !== last) { last = now; window.__seen.push([now, Date.now()]); }
    }).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""


@dataclass(slots=True)
class Session:
    """One browser: what it keeps between messages, and how long its refreshes took."""

    hashes: set[str] = field(default_factory=set)
    refreshes_s: list[float] = field(default_factory=list)
    received_bytes: int = 0
    fragment: str = ""
    interval_s: float = POLL_S
    failures: list[str] = field(default_factory=list)


def rerun(session: Session, *, fragment: str) -> bytes:
    """The browser's request to run the page, or one fragment of it."""
    message = BackMsg()
    state = message.rerun_script
    state.page_name = "live"
    state.query_string = ""
    state.fragment_id = fragment
    state.is_auto_rerun = bool(fragment)
    state.cached_message_hashes.extend(session.hashes)
    state.context_info.timezone = "UTC"
    return message.SerializeToString()


async def finished(socket_: Any, session: Session) -> None:
    """Read messages until the script has run."""
    while True:
        data = await socket_.recv()
        session.received_bytes += len(data)
        message = ForwardMsg()
        message.ParseFromString(data)
        if message.metadata.cacheable and message.hash:
            session.hashes.add(message.hash)
        kind = message.WhichOneof("type")
        if kind == "auto_rerun":
            session.fragment, session.interval_s = message.auto_rerun.fragment_id, message.auto_rerun.interval
        elif kind == "delta" and message.delta.new_element.WhichOneof("type") == "exception":
            session.failures.append(message.delta.new_element.exception.message[:200])
        elif kind == "script_finished":
            return


async def watch(port: int, session: Session, *, delay_s: float, until: float) -> None:
    """Open the page, then refresh its fragment as the browser does, until the steady clock says so."""
    await asyncio.sleep(delay_s)
    address = f"ws://127.0.0.1:{port}/_stcore/stream"
    origin: Any = f"http://127.0.0.1:{port}"
    async with connect(address, subprotocols=["streamlit"], origin=origin, max_size=None) as socket_:  # type: ignore[list-item]
        await socket_.send(rerun(session, fragment=""))
        await finished(socket_, session)
        due = time.monotonic()
        while time.monotonic() < until:
            assert session.fragment, "the page does not refresh itself"
            due = max(due + session.interval_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            began = time.monotonic()
            await socket_.send(rerun(session, fragment=session.fragment))
            await finished(socket_, session)
            session.refreshes_s.append(time.monotonic() - began)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(targets: str = "") -> Iterator[tuple[int, int]]:
    """(pid, port) of the app with its demonstration pool, or with ``targets`` ("name=url")."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as home:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("WATERLINE_")}
        environ |= {"HOME": home, "WATERLINE_HISTORY": f"{home}/history.duckdb"}
        environ |= {"WATERLINE_TARGETS": targets} if targets else {}
        process = subprocess.Popen(
            [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    ask(port, "health")
                    break
                except OSError:
                    assert process.poll() is None, "the server stopped at its start"
                    assert time.monotonic() < deadline, "the server did not start in a minute"
                    time.sleep(0.3)
            yield process.pid, port
        finally:
            process.terminate()
            process.wait(20)


def ask(port: int, route: str) -> Any:
    """An API route's JSON."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{route}", timeout=10) as answer:
        return json.loads(answer.read())


async def measured(pid: int, port: int, sessions: Sequence[Session], seconds: float) -> tuple[float, float]:
    """(share of one core, most scrapes per target and interval) while everybody watches."""
    until = time.monotonic() + SETTLE_S + seconds
    tasks = [
        asyncio.create_task(watch(port, one, delay_s=i * SETTLE_S / 2 / len(sessions), until=until))
        for i, one in enumerate(sessions)
    ]
    await asyncio.sleep(SETTLE_S)
    for one in sessions:
        one.refreshes_s.clear()
        one.received_bytes = 0
    before = {t["name"]: t["load"]["scrapes"] for t in await asyncio.to_thread(ask, port, "targets")}
    began, used = time.monotonic(), cpu_s(pid)
    await asyncio.sleep(seconds - 0.5)
    took = time.monotonic() - began
    share = (cpu_s(pid) - used) / took
    after = {t["name"]: t["load"]["scrapes"] for t in await asyncio.to_thread(ask, port, "targets")}
    await asyncio.gather(*tasks)
    return share, max(after[name] - before[name] - 1 for name in after) / (took / POLL_S)


@contextmanager
def counting_engine() -> Iterator[tuple[int, dict[int, float]]]:
    """(port, number of the scrape -> when it was answered) of an engine that reports that number as running."""
    answered: dict[int, float] = {}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = len(answered) + 1
            body = PAYLOAD.format(number=number, tokens=number * 1000).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            answered[number] = time.time()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as engine:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        yield engine.server_address[1], answered
        engine.shutdown()


def seen_after(changes: int) -> list[float]:
    """Seconds from a scrape to its number on the page in Chromium, for ``changes`` scrapes."""
    from playwright.sync_api import sync_playwright

    with (
        counting_engine() as (engine, answered),
        server(f"engine=http://127.0.0.1:{engine}/metrics") as (_, port),
        sync_playwright() as play,
    ):
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        tab = chromium.new_page(viewport={"width": 1440, "height": 900})
        tab.goto(f"http://127.0.0.1:{port}/live")
        tab.wait_for_selector('[data-testid="stMetricValue"]', timeout=60_000)
        tab.evaluate(WATCH)
        tab.wait_for_function("n => window.__seen.length > n", arg=changes, timeout=(changes + 5) * 6_000)
        seen: list[tuple[str, float]] = tab.evaluate("window.__seen")
        chromium.close()
    return [at_ms / 1000 - answered[int(text)] for text, at_ms in seen if text.isdigit()]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--changes", type=int, default=8 if Path(CHROMIUM).exists() else 0)
    args = parser.parse_args(argv)
    with server() as (pid, port):
        time.sleep(SETTLE_S)
        began, used = time.monotonic(), cpu_s(pid)
        time.sleep(10.0)
        alone = (cpu_s(pid) - used) / (time.monotonic() - began)
        sessions = [Session() for _ in range(args.sessions)]
        share, scrapes = asyncio.run(measured(pid, port, sessions, args.seconds))
    refreshes = sorted(t for one in sessions for t in one.refreshes_s)
    failures = [text for one in sessions for text in one.failures]
    p95 = quantiles(refreshes, n=20)[-1]
    size = sum(one.received_bytes for one in sessions) / max(1, len(refreshes))
    good = share < CPU_BAR and p95 <= P95_BAR_S and scrapes <= SCRAPE_SLACK and not failures
    print(
        "| sessions | refreshes | one core | without sessions | refresh p50 s | p95 s | kB each | scrapes per interval |"
    )
    print("|---|---|---|---|---|---|---|---|")
    print(
        f"| {args.sessions} | {len(refreshes)} | {share:.0%} (bar {CPU_BAR:.0%}) | {alone:.0%} "
        f"| {median(refreshes):.3f} | {p95:.3f} (bar {P95_BAR_S}) | {size / 1e3:.0f} | {scrapes:.2f} (bar 1) |"
    )
    for text in failures[:3]:
        print(f"failed: {text}")
    if args.changes:
        took = sorted(seen_after(args.changes))
        print("\n| scrapes seen in Chromium | from scrape to page p50 s | longest s |\n|---|---|---|")
        print(f"| {len(took)} | {median(took):.2f} | {took[-1]:.2f} |")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
