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
BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
READS = ("kv_usage", "running", "waiting", "generation_tokens", "ttft_s.p99")


def lines(start_s: int, end_s: int) -> Iterator[str]:
    """OpenMetrics text of the made-up pool, family by family."""
    times = range(start_s, end_s, STEP_S)
    for name, kind in (
        ("kv_cache_usage_perc", "gauge"),
        ("num_requests_running", "gauge"),
        ("num_requests_waiting", "gauge"),
        ("generation_tokens", "counter"),
    ):
        yield f"# TYPE vllm:{name} {kind}\n"
        suffix = "_total" if kind == "counter" else ""
        for engine in range(ENGINES):
            labels = f'instance="gpu-{engine}:8000",job="vllm",engine="0",model_name="m"'
            for i, when in enumerate(times):
                wave = 0.5 + 0.4 * math.sin(i / 400 + engine)
                value = 15 * i * 100 if suffix else wave if "usage" in name else int(40 * wave)
                yield f"vllm:{name}{suffix}{{{labels}}} {value} {when}\n"
    yield "# TYPE vllm:time_to_first_token_seconds histogram\n"
    for engine in range(ENGINES):
        labels = f'instance="gpu-{engine}:8000",job="vllm",engine="0",model_name="m"'
        for number, bound in enumerate((*BOUNDS, math.inf), start=1):
            le = "+Inf" if math.isinf(bound) else repr(bound)
            for i, when in enumerate(times):
                yield f'vllm:time_to_first_token_seconds_bucket{{{labels},le="{le}"}} {i * number} {when}\n'
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


def main() -> None:
    """Print one row per signal: points read and seconds."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        print("prometheus is not installed: nothing measured")
        return
    end_s = int(time.time()) // 7200 * 7200 - 7200
    start_s = end_s - HOURS * 3600
    with tempfile.TemporaryDirectory() as name, prometheus(Path(name), start_s, end_s) as url:
        target = Target(name="bench", url=url, kind="prometheus", selector='{job="vllm"}')
        client = PrometheusClient(target)
        print(f"{'signal':<20} {'series':>6} {'points':>8} {'seconds':>8}")
        total = 0.0
        for signal in READS:
            started = time.perf_counter()
            found = history(target, signal, start_s=start_s, end_s=end_s - STEP_S, client=client)
            took = time.perf_counter() - started
            total += took
            points = sum(len(s.points) for s in found.series)
            print(f"{signal:<20} {len(found.series):>6} {points:>8} {took:>8.2f}")
        print(f"{'all':<20} {'':>6} {'':>8} {total:>8.2f}")


if __name__ == "__main__":
    main()
