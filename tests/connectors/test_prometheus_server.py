"""A real Prometheus on loopback that scrapes recorded pages from a local server: read back, nothing differs."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from capacity.telemetry import State
from connectors.__main__ import main
from connectors.alert_rules import rules
from connectors.grafana import panels
from connectors.prometheus_api import PrometheusClient
from connectors.prometheus_history import history, scrape_interval
from connectors.prometheus_snapshots import recent
from connectors.promql import NAMINGS, VLLM
from connectors.report import pool_report
from connectors.scrape import scrape, snapshot_of
from connectors.targets import Target
from tests.connectors import metrics_files
from tests.connectors.fault_server import FaultServer, text

BINARY = shutil.which("prometheus") or "/usr/bin/prometheus"
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(not Path(BINARY).exists(), reason="Debian's prometheus package is not installed"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Replay:
    """Serves the pages of a recorded run one after the other, each scrape the next."""

    def __init__(self) -> None:
        pages = [body for _, body in metrics_files.sequence("vllm-0.32.0")]
        self.pages = pages[12:40]
        self.served = 0
        self.server = FaultServer(self.answer)

    def answer(self, connection: socket.socket, _: str) -> None:
        page = self.pages[min(self.served, len(self.pages) - 1)]
        self.served += 1
        connection.sendall(text(page))


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Target, Replay]]:
    folder = tmp_path_factory.mktemp("prometheus")
    replay = Replay()
    old = FaultServer(lambda c, _: c.sendall(text(metrics_files.page("legacy_names_v0.prom"))))
    dead = free_port()
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {"job_name": "vllm", "static_configs": [{"targets": [f"127.0.0.1:{replay.server.port}"]}]},
            {"job_name": "old", "static_configs": [{"targets": [f"127.0.0.1:{old.port}"]}]},
            {"job_name": "dead", "static_configs": [{"targets": [f"127.0.0.1:{dead}"]}]},
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    port = free_port()
    command = [
        BINARY,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.route-prefix=/prometheus",
        "--log.level=error",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    target = Target(name="prom", url=f"http://127.0.0.1:{port}/prometheus", kind="prometheus")
    try:
        wait_until_scraped(target, replay)
        yield target, replay
    finally:
        process.terminate()
        process.wait(10)
        replay.server.close()
        old.close()


def wait_until_scraped(target: Target, replay: Replay) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end and replay.served < 8:
        time.sleep(0.2)
    assert replay.served >= 8, "Prometheus did not scrape in 30 s"
    client = PrometheusClient(target)
    assert client.query("up").series


def selected(target: Target, selector: str) -> Target:
    return Target(name=target.name, url=target.url, kind=target.kind, selector=selector)


def test_snapshots_are_the_scraped_pages(prometheus: tuple[Target, Replay]) -> None:
    target, replay = prometheus
    lines, _ = recent(selected(target, '{job="vllm"}'))
    ((place, snapshots),) = lines.items()
    assert place == f"127.0.0.1:{replay.server.port}"

    pages = [snapshot_of(page, target="x", time_s=0).engines[0] for page in replay.pages]
    seen = [s.engines[0].value("generation_tokens").value for s in snapshots]
    expected = [p.value("generation_tokens").value for p in pages]
    assert len(seen) >= 6
    first = expected.index(seen[0])
    assert seen == expected[first : first + len(seen)]
    direct = pages[first + len(seen) - 1]
    newest = snapshots[-1].engines[0]
    for signal in ("running", "waiting", "kv_usage", "prompt_tokens", "preemptions"):
        assert newest.value(signal).value == direct.value(signal).value
    assert newest.histogram("ttft_s").counts == direct.histogram("ttft_s").counts
    assert newest.config.kv_capacity_tokens.value == direct.config.kv_capacity_tokens.value
    assert newest.model_name == "tiny-llama"


def test_percentiles_equal_histogram_quantile(prometheus: tuple[Target, Replay]) -> None:
    """Ours from the increases of the raw samples; Prometheus from the same increases, without extrapolation."""
    target, _ = prometheus
    only = selected(target, '{job="vllm"}')
    lines, _ = recent(only)
    (snapshots,) = lines.values()
    first, last = snapshots[0], snapshots[-1]
    report = pool_report("x", {"x": snapshots})
    client = PrometheusClient(target)
    compared = 0
    for family, name in (
        ("itl_s", "vllm:inter_token_latency_seconds"),
        ("ttft_s", "vllm:time_to_first_token_seconds"),
    ):
        bucket = f'{name}_bucket{{job="vllm"}}'
        delta = f"sum by (le) ({bucket} @ {last.time_s:.3f} - {bucket} @ {first.time_s:.3f})"
        for p, q in QUANTILES.items():
            found = client.query(f"histogram_quantile({q}, {delta})").series
            ours = report.signals[f"{family}.{p}"]
            if ours.value is None:
                assert not found or not found[0].points
                continue
            assert ours.value == pytest.approx(found[0].points[-1][1], rel=1e-9)
            compared += 1
    assert compared >= 3


def test_old_and_dead_targets(prometheus: tuple[Target, Replay]) -> None:
    target, _ = prometheus
    lines, _ = recent(target)
    report = pool_report("x", lines)
    assert len(report.engines) == 2
    assert report.down and len(report.down) == 1
    assert "up is 0" in next(iter(report.down.values()))
    assert report.signals["running"].state is State.PARTIAL
    old = next(e for e in report.engines if e.window.latest.model_name == "org/demo-8b")
    assert old.signals["kv_usage"].value == 0.37
    assert old.signals["kv_usage"].metric == "vllm:gpu_cache_usage_perc"


def test_one_snapshot_for_the_poller(prometheus: tuple[Target, Replay]) -> None:
    target, _ = prometheus
    snapshot = scrape(target)
    assert len(snapshot.engines) == 2
    assert snapshot.state is State.PARTIAL and "up is 0" in snapshot.reason


def test_history_of_gauges_rates_and_percentiles(prometheus: tuple[Target, Replay]) -> None:
    target, replay = prometheus
    only = selected(target, '{job="vllm"}')
    client = PrometheusClient(only)
    now = time.time()
    assert scrape_interval(client, only, at_s=now) == pytest.approx(1.0, abs=0.05)
    usage = history(only, "kv_usage", start_s=now - 60, end_s=now)
    (series,) = usage.series
    assert series.labels["instance"] == f"127.0.0.1:{replay.server.port}"
    assert len(series.points) >= 6 and all(0 <= v <= 1 for _, v in series.points)
    rate = history(only, "generation_tokens", start_s=now - 60, end_s=now)
    (tokens,) = rate.series
    assert tokens.points and all(v >= 0 for _, v in tokens.points)
    finished = history(only, "finished", start_s=now - 60, end_s=now)
    assert {s.labels["finished_reason"] for s in finished.series} >= {"length", "stop"}
    itl = history(only, "itl_s.p99", start_s=now - 60, end_s=now)
    assert itl.window_s == pytest.approx(4, abs=0.2)
    assert all(p[1] > 0 for s in itl.series for p in s.points)


def test_command_line(prometheus: tuple[Target, Replay], capsys: pytest.CaptureFixture[str]) -> None:
    target, _ = prometheus
    assert main(["scrape", "--prometheus", target.url, "--selector", '{job="vllm"}', "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["engines"][0]["model_name"] == "tiny-llama"
    assert found["pool"]["signals"]["generation_tokens_per_s"]["value"] >= 0
    assert main(["scrape", "--prometheus", target.url, "--selector", "{job=}", "--json"]) == 2
    assert "selector" in capsys.readouterr().err
    assert main(["scrape", "--prometheus", target.url, "--selector", '{job="none"}', "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["pool"]["verdict"]["name"] == "down"
    assert "no recent sample" in captured.err


def test_panels_and_alerts_are_evaluated_and_say_what_the_page_says(
    prometheus: tuple[Target, Replay],
) -> None:
    target, _ = prometheus
    client, selector = PrometheusClient(target), "{job='vllm'}"
    lines, _ = recent(selected(target, "{job=`vllm`}"), client=client)
    newest = next(iter(lines.values()))[-1]
    (engine,) = newest.engines
    at = newest.time_s
    drawn = {
        (panel.title, legend): client.query(query.replace("$__rate_interval", "5s"), time_s=at).series
        for panel in panels(selector)
        for legend, query in panel.queries.items()
    }
    shown = {
        ("Waterline: share of KV blocks in use", "{{instance}} {{engine}}"): "kv_usage",
        ("Queue", "running"): "running",
        ("Queue", "waiting"): "waiting",
    }
    for place, signal in shown.items():
        ((_, value),) = drawn[place][0].points
        assert value == engine.value(signal).value, signal
    standing = {}
    for naming in NAMINGS:
        for rule in rules(selector, naming=naming):
            found = client.query(rule.expression, time_s=at).series
            assert naming is VLLM or not found, rule.alert
            standing[rule.alert] = standing.get(rule.alert) or found
    usage, waiting = engine.value("kv_usage").number, engine.value("waiting").number
    assert bool(standing["KVCacheHigh"]) is (usage >= 0.80)
    assert bool(standing["KVCacheFull"]) is (usage >= 0.95 and waiting > 0)
    assert not standing["EngineDown"] and not standing["EngineNotAdmitting"]


def test_a_stopped_target_ages(prometheus: tuple[Target, Replay]) -> None:
    target, _ = prometheus
    lines, _ = recent(selected(target, '{job="vllm"}'), now_s=time.time() + 90)
    report = pool_report("x", lines)
    assert report.signals["kv_usage"].state is State.STALE
    assert "s old" in report.signals["kv_usage"].reason
    assert report.verdict.name == "stale"
