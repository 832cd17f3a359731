"""The past of a pool from a real Prometheus: exact increments, peaks, gaps, resets, and the page's window."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from capacity.live_series import latency_series, percentile, pool_series
from connectors.past import Past
from connectors.prometheus_api import PrometheusClient
from connectors.prometheus_history import scrape_interval
from connectors.prometheus_past import past_intervals
from connectors.service import LiveService, poll_target
from connectors.targets import Target
from tests.connectors.test_prometheus_server import free_port

STEP_S, SCRAPES = 15, 480
END_S = int(time.time()) // 7200 * 7200 - 7200
START_S = END_S - STEP_S * SCRAPES
RESTART, GAP = 240, range(300, 320)
SPIKE = 101
pytestmark = pytest.mark.prometheus


def value(name: str, engine: int, i: int) -> float:
    """What engine ``engine`` exports at scrape ``i``; engine 1 restarts at RESTART."""
    since = i - RESTART if engine == 1 and i >= RESTART else i
    return {
        "vllm:num_requests_running": 4 + engine,
        "vllm:num_requests_waiting": 30 if (engine == 0 and i == SPIKE) else 0,
        "vllm:kv_cache_usage_perc": 0.97 if (engine == 0 and i == SPIKE) else 0.25 + 0.25 * engine,
        "vllm:generation_tokens_total": 1000 + 300 * since,
        "vllm:prompt_tokens_total": 50 + 90 * since,
        "vllm:num_preemptions_total": 0,
        "vllm:request_success_total": 3 * since,
        "vllm:time_to_first_token_seconds_sum": 0.3 * since,
    }[name]


def openmetrics() -> Iterator[str]:
    kinds = {"kv_cache_usage_perc": "gauge", "num_requests_running": "gauge", "num_requests_waiting": "gauge"}
    for name in (
        *kinds,
        "generation_tokens_total",
        "prompt_tokens_total",
        "num_preemptions_total",
        "request_success_total",
    ):
        yield f"# TYPE vllm:{name.removesuffix('_total')} {kinds.get(name, 'counter')}\n"
        for engine in (0, 1):
            labels = f'instance="gpu-{engine}:8000",job="vllm",engine="0",model_name="m"'
            labels += ',finished_reason="stop"' if "success" in name else ""
            for i in range(SCRAPES + 1):
                if not (engine == 1 and i in GAP):
                    yield f"vllm:{name}{{{labels}}} {value('vllm:' + name, engine, i)} {START_S + i * STEP_S}\n"
    yield "# TYPE vllm:time_to_first_token_seconds histogram\n"
    for engine in (0, 1):
        for bound, share in (("0.1", 1), ("0.25", 3), ("1.0", 4), ("+Inf", 4)):
            labels = f'instance="gpu-{engine}:8000",job="vllm",engine="0",model_name="m",le="{bound}"'
            for i in range(SCRAPES + 1):
                since = i - RESTART if engine == 1 and i >= RESTART else i
                if not (engine == 1 and i in GAP):
                    yield (
                        f"vllm:time_to_first_token_seconds_bucket{{{labels}}} {share * since} "
                        f"{START_S + i * STEP_S}\n"
                    )
    yield "# EOF\n"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("past")
    (folder / "pool.om").write_text("".join(openmetrics()), encoding="utf-8")
    promtool, prometheus = shutil.which("promtool"), shutil.which("prometheus")
    assert promtool and prometheus, "Debian's prometheus package is not installed"
    data = str(folder / "data")
    subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", str(folder / "pool.om"), data],
        check=True,
        capture_output=True,
    )
    (folder / "prometheus.yml").write_text(json.dumps({"global": {"scrape_interval": "15s"}}))
    port = free_port()
    process = subprocess.Popen(
        [
            prometheus,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={data}",
            "--storage.tsdb.retention.time=10y",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    found = Target(name="prom", url=f"http://127.0.0.1:{port}", kind="prometheus", selector='{job="vllm"}')
    try:
        deadline = time.monotonic() + 30
        while Past(found).window(END_S - 60.0, float(END_S), step_s=15.0) is None:
            assert time.monotonic() < deadline, "Prometheus did not start in 30 s"
            time.sleep(0.2)
        yield found
    finally:
        process.terminate()
        process.wait(20)


def read(target: Target, step_s: float) -> dict[str, list]:
    found = past_intervals(
        target, start_s=float(START_S), end_s=float(END_S), step_s=step_s, interval_s=float(STEP_S)
    )
    return {name: [i for i in found if i.engine == name] for name in ("gpu-0:8000", "gpu-1:8000")}


@pytest.mark.parametrize("step_s", [15.0, 60.0, 300.0])
def test_increments_are_the_differences_of_the_stored_samples(target: Target, step_s: float) -> None:
    steady = read(target, step_s)["gpu-0:8000"]
    assert len(steady) == STEP_S * SCRAPES / step_s
    scrapes = step_s / STEP_S
    for one in steady:
        assert one.increments["generation_tokens"] == 300 * scrapes
        assert one.increments["prompt_tokens"] == 90 * scrapes
        assert one.increments["preemptions"] == 0
        assert one.increments["finished_stop"] == 3 * scrapes
        assert one.histograms["ttft_s"].counts == (scrapes, 2 * scrapes, scrapes, 0)
        assert one.rate("generation_tokens") == 20.0
    half = percentile(0.5, steady[0].histograms["ttft_s"])
    assert half is not None and half.value == pytest.approx(0.1 + 0.15 / 2)


@pytest.mark.parametrize("step_s", [15.0, 60.0, 300.0])
def test_a_spike_of_one_scrape_is_the_peak_of_its_step(target: Target, step_s: float) -> None:
    steady = read(target, step_s)["gpu-0:8000"]
    assert max(one.value("kv_usage_peak") or 0 for one in steady) == 0.97
    assert max(one.value("waiting_peak") or 0 for one in steady) == 30
    spiked = [one for one in steady if one.value("kv_usage_peak") == 0.97]
    assert len(spiked) == 1 and spiked[0].end_s - step_s < START_S + SPIKE * STEP_S <= spiked[0].end_s


@pytest.mark.parametrize("step_s", [15.0, 60.0, 300.0])
def test_a_restart_gives_no_increment_and_a_gap_no_value(target: Target, step_s: float) -> None:
    other = read(target, step_s)["gpu-1:8000"]
    at_s = START_S + RESTART * STEP_S
    (restart,) = [one for one in other if one.end_s - step_s < at_s <= one.end_s]
    assert "generation_tokens" not in restart.increments and "ttft_s" not in restart.histograms
    assert restart.counted_s == 0 and restart.value("running") == 5
    assert all(v >= 0 for one in other for v in one.increments.values() if v is not None)
    assert all(one.rate("generation_tokens") in (None, 20.0) for one in other)
    if step_s == 15.0:
        last = START_S + (GAP.stop - 1) * STEP_S
        (gone,) = [one for one in other if one.end_s == last]
        assert gone.state.startswith("down") and gone.increments == {} and gone.value("running") is None


def test_the_page_reads_it_straight_after_a_start(target: Target) -> None:
    service = LiveService(history_path=":memory:", demo=False)
    service.set_targets([poll_target(target)])
    found = service.window(float(START_S), float(END_S), points=240)
    series = pool_series(found, step_s=30.0)
    assert set(series.kv_usage) == {("prom", "gpu-0:8000"), ("prom", "gpu-1:8000")}
    assert max(v for v in series.kv_usage["prom", "gpu-0:8000"] if v is not None) == 0.97
    assert series.rates["generation_tokens"][10] == 40.0
    latencies = latency_series(found, "ttft_s", step_s=30.0)
    assert latencies.reason is None and latencies.lines[0.5][10] == pytest.approx(0.175)
    assert service.past_problems == []


def test_the_interval_is_measured_also_where_up_is_not_selected(target: Target) -> None:
    """The stored blocks hold no ``up`` at all."""
    client = PrometheusClient(target)
    assert client.query("up", time_s=float(END_S)).series == ()
    assert scrape_interval(client, target, at_s=float(END_S)) == 15.0


def test_what_was_read_is_not_asked_again(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past(target)
    whole = past.window(float(START_S), END_S - 600.0, step_s=60.0)
    asked: list[float] = []
    original = past_intervals

    def counted(*args: object, **named: float) -> list:
        asked.append(named["end_s"] - named["start_s"])
        return original(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("connectors.past.past_intervals", counted)
    assert past.window(float(START_S), END_S - 600.0, step_s=60.0) == whole
    assert asked == []
    longer = past.window(START_S + 120.0, END_S - 300.0, step_s=60.0)
    assert asked == [300.0]
    assert longer is not None and len(longer) == 2 * (SCRAPES * STEP_S - 420) / 60


def test_a_server_that_is_gone_is_said_and_asked_again_later() -> None:
    now = [0.0]
    gone = Target(name="prom", url=f"http://127.0.0.1:{free_port()}", kind="prometheus")
    past = Past(gone, steady=lambda: now[0])
    assert past.window(0.0, 3600.0, step_s=15.0) is None
    assert past.problem is not None and "refused" in past.problem
    service = LiveService(history_path=":memory:", demo=False)
    service.set_targets([poll_target(gone)])
    assert service.window(0.0, 3600.0) == []
    assert "prom: its past cannot be read" in service.past_problems[0]
