"""How long 24 hours at 15 s of 20 engines take to read from a real Prometheus: gauges, rates, percentiles.

Fills a Prometheus on loopback with made-up samples (promtool), reads them through the product's connector
and prints a table. Needs Debian's ``prometheus`` package. Left out: drawing.
"""

from __future__ import annotations

import math
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from connectors.prometheus_api import PrometheusClient
from connectors.prometheus_history import history
from connectors.targets import Target

ENGINES, STEP_S, HOURS = 20, 15, 24
TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
ITL = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
HISTOGRAMS = {"time_to_first_token_seconds": TTFT, "inter_token_latency_seconds": ITL}
BAR_S = 2.0
READS = ("kv_usage", "running", "waiting", "generation_tokens", "ttft_s.p99")


def lines(start_s: int, end_s: int) -> Iterator[str]:
    """OpenMetrics text of the made-up pool, family by family."""
    times = range(start_s, end_s, STEP_S)
    for name, kind in (
        ("kv_cache_usage_perc", "gauge"),
        ("num_requests_running", "gauge"),
        ("num_requests_waiting", "gauge"),
        ("prompt_tokens", "counter"),
        ("generation_tokens", "counter"),
        ("num_preemptions", "counter"),
    ):
        yield f"# TYPE vllm:{name} {kind}\n"
        suffix = "_total" if kind == "counter" else ""
        for engine in range(ENGINES):
            labels = f'instance="gpu-{engine}:8000",job="vllm",engine="0",model_name="m"'
            for i, when in enumerate(times):
                wave = 0.5 + 0.4 * math.sin(i / 400 + engine)
                value = 15 * i * 100 if suffix else wave if "usage" in name else int(40 * wave)
                yield f"vllm:{name}{suffix}{{{labels}}} {value} {when}\n"
    for name, bounds in HISTOGRAMS.items():
        yield f"# TYPE vllm:{name} histogram\n"
        for engine in range(ENGINES):
            labels = f'instance="gpu-{engine}:8000",job="vllm",engine="0",model_name="m"'
            for number, bound in enumerate((*bounds, math.inf), start=1):
                le = "+Inf" if math.isinf(bound) else repr(bound)
                for i, when in enumerate(times):
                    yield f'vllm:{name}_bucket{{{labels},le="{le}"}} {i * number} {when}\n'
    yield "# EOF\n"


@contextmanager
def prometheus(folder: Path, start_s: int, end_s: int) -> Iterator[str]:
    """A Prometheus with the made-up pool; its address."""
    text = folder / "pool.om"
    with text.open("w", encoding="utf-8") as out:
        out.writelines(lines(start_s, end_s))
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")],
        check=True,
        capture_output=True,
    )
    (folder / "prometheus.yml").write_text("global: {scrape_interval: 15s}\n", encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=10y",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        time.sleep(2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def drawn(url: str, *, end_s: float) -> tuple[float, float, int]:
    """(seconds to read, seconds to read and draw, intervals) of the Live page's 24 h straight after a start."""
    from capacity.live_series import latency_series, pool_series
    from connectors.service import LiveService, poll_target
    from pages.ui import live_charts

    target = Target(name="bench", url=url, kind="prometheus", selector='{job="vllm"}')
    service = LiveService(history_path=":memory:", demo=False)
    service.set_targets([poll_target(target)])
    seconds, points = HOURS * 3600.0, 240
    began = time.perf_counter()
    found = service.window(end_s - seconds, end_s, points=points)
    read_s = time.perf_counter() - began
    series = pool_series(found, step_s=seconds / points)
    frame = live_charts.Frame(start_s=end_s - seconds, end_s=end_s)
    live_charts.waterline(series, frame, act=0.8, critical=0.95, title="bench")
    for signal in ("ttft_s", "itl_s"):
        latencies = latency_series(found, signal, step_s=seconds / points)
        live_charts.latency("bench", frame, latencies, milliseconds=False)
    for problem in service.past_problems:
        print(problem)
    return read_s, time.perf_counter() - began, len(found)


def main() -> bool:
    """Print one row per signal, and the page's window against its bar; True where the bar is met."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        print("prometheus is not installed: nothing measured")
        return False
    end_s = int(time.time()) // 7200 * 7200 - 7200
    start_s = end_s - HOURS * 3600
    with tempfile.TemporaryDirectory() as name, prometheus(Path(name), start_s, end_s) as url:
        target = Target(name="bench", url=url, kind="prometheus", selector='{job="vllm"}')
        client = PrometheusClient(target)
        print(f"{'signal':<24} {'series':>6} {'points':>8} {'seconds':>8}")
        for signal in READS:
            started = time.perf_counter()
            found = history(target, signal, start_s=start_s, end_s=end_s - STEP_S, client=client)
            took = time.perf_counter() - started
            points = sum(len(s.points) for s in found.series)
            print(f"{signal:<24} {len(found.series):>6} {points:>8} {took:>8.2f}")
        good = True
        for run in ("first", "second", "third"):
            read_s, all_s, count = drawn(url, end_s=float(end_s - STEP_S))
            good &= all_s <= BAR_S and count >= ENGINES * 200
            print(f"{'24 h read, ' + run:<24} {ENGINES:>6} {count:>8} {read_s:>8.2f}")
            print(f"{'24 h read and drawn':<24} {'':>6} {'':>8} {all_s:>8.2f}   bar {BAR_S:.2f}")
    return good


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
