"""The demonstration engine: blocks are conserved, incidents do what they say, each release has its names."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from capacity.errors import CapacityError
from connectors.demo.block_pool import BlockPool
from connectors.demo.engine import DemoEngine, EngineConfig
from connectors.demo.incidents import incident, incidents
from connectors.demo.metrics_text import exported, parse_release, render
from connectors.demo_engine import DemoPool, main

RECORDED = Path(__file__).parents[3] / "shared" / "metrics"


def run(name: str, seconds: float, *, seed: int = 1, release: str = "0.32.0") -> DemoEngine:
    engine = DemoEngine(
        config=EngineConfig(release=parse_release(release)), seed=seed, incident=incident(name)
    )
    engine.advance(seconds)
    return engine


@pytest.mark.parametrize("name", list(incidents()))
def test_blocks_are_conserved_through_every_incident(name: str) -> None:
    engine = DemoEngine(config=EngineConfig(), seed=3, incident=incident(name))
    for t in range(5, 200, 5):
        engine.advance(t)
        prefixes = {r.prefix for r in engine.running}
        held = sum(r.blocks for r in engine.running) + 16 * len(prefixes)
        assert held == engine.pool.used
        assert 0 <= engine.pool.used <= engine.pool.usable
        assert len(engine.running) <= engine.max_num_seqs
        assert all(r.blocks == 0 for r in engine.waiting)


def test_every_histogram_agrees_with_its_counter() -> None:
    record = run("ramp", 400).recorder
    finished = sum(record.finished.values())
    assert finished > 100
    for name in ("e2e_s", "queue_s", "prefill_s", "decode_s", "request_prompt_tokens"):
        assert record.histogram[name].count == finished
    tokens = record.count["generation_tokens"]
    assert record.histogram["ttft_s"].count + record.histogram["itl_s"].count == tokens
    parts = sum(record.histogram[name].sum for name in ("queue_s", "prefill_s", "decode_s"))
    assert parts == pytest.approx(record.histogram["e2e_s"].sum)


def test_same_seed_same_run_however_time_is_cut() -> None:
    whole, pieces = run("preemption-storm", 90), run("preemption-storm", 0.1)
    for tenth in range(1, 901):
        pieces.advance(tenth / 10)
    assert render([whole]) == render([pieces])
    assert render([run("calm", 60, seed=2)]) != render([run("calm", 60, seed=3)])


def test_incidents_show_what_they_are_called() -> None:
    calm = run("calm", 200)
    assert calm.gauges["waiting"] == 0 and 0.02 < calm.gauges["kv_usage"] < 0.5
    full = run("ramp", 260)
    assert full.gauges["kv_usage"] > 0.9 and full.gauges["waiting"] > 50
    storm = run("preemption-storm", 200)
    assert storm.recorder.count["preemptions"] > 50
    seats = run("seat-bound", 200)
    assert seats.gauges["running"] == 12 and seats.gauges["waiting"] > 20 and seats.gauges["kv_usage"] < 0.4
    prefill = run("prefill-bound", 200)
    assert prefill.gauges["waiting"] > 20 and prefill.recorder.count["preemptions"] == 0
    assert run("idle", 100).recorder.count["prompt_tokens"] == 0


def test_stall_freezes_gauges_and_counters_with_requests_waiting() -> None:
    engine = run("stall", 10)
    before = render([engine])
    engine.advance(60)
    assert engine.gauges["waiting"] > 0

    def body(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith("process_cpu")]

    assert body(render([engine])) == body(before)


def test_restart_sets_counters_back_and_moves_the_start_time() -> None:
    engine = DemoEngine(config=EngineConfig(), seed=1, incident=incident("calm"))
    engine.advance(60)
    tokens = engine.recorder.count["generation_tokens"]
    engine.set_incident(incident("restart"), at_s=60)
    engine.advance(70)
    assert engine.is_down
    engine.advance(77)
    assert not engine.is_down and engine.restarts == 1
    assert engine.recorder.count["generation_tokens"] < tokens
    assert engine.recorder.started_s == pytest.approx(75, abs=0.3)


def test_a_shared_prefix_is_paid_once_and_stays_warm() -> None:
    pool = BlockPool(num_blocks=101, block_size=16)
    assert pool.join_prefix(1, 16) == (True, False)
    pool.fill_prefix(1)
    assert pool.join_prefix(1, 16) == (True, True)
    assert pool.used == 16
    pool.leave_prefix(1, 16)
    pool.leave_prefix(1, 16)
    assert pool.used == 0 and pool.join_prefix(1, 16) == (True, True)


@pytest.mark.parametrize(
    "release", ["0.4.3", "0.6.0", "0.8.0", "0.9.2", "0.10.2", "0.12.0", "0.16.0", "0.32.0"]
)
def test_every_release_parses_and_has_one_type_line_per_family(release: str) -> None:
    text = render([run("calm", 60, release=release), run("calm", 60, seed=2, release=release)])
    names = [f.name for f in text_string_to_metric_families(text)]
    assert len(names) == len(set(names))
    shown = {f.name for f in exported(parse_release(release))}
    assert ("kv_cache_usage_perc" in shown) == (parse_release(release) >= (0, 9, 2))
    assert ("gpu_cache_usage_perc" in shown) == (parse_release(release) < (0, 11))
    assert ('engine="1"' in text) == (parse_release(release) >= (0, 8, 5))


@pytest.mark.skipif(not RECORDED.exists(), reason="recorded payloads lie outside the repository")
@pytest.mark.parametrize(
    ("release", "opt_in"), [("0.16.0", {"vllm:prompt_tokens_recomputed"}), ("0.32.0", set())]
)
def test_names_types_and_bounds_equal_a_recorded_server(release: str, opt_in: set[str]) -> None:
    def shape(text: str) -> dict[str, tuple[str, tuple[str, ...]]]:
        found = {}
        for family in text_string_to_metric_families(text):
            if family.name.startswith("vllm:"):
                bounds = {s.labels["le"] for s in family.samples if "le" in s.labels}
                if "request" in family.name and "time" not in family.name and "latency" not in family.name:
                    bounds = set()
                found[family.name] = (family.type, tuple(sorted(bounds)))
        return found

    recorded = shape((RECORDED / f"vllm-{release}-heavy-waiting.prom").read_text())
    ours = shape(render([run("calm", 60, release=release)]))
    missing = {n for n in recorded if n not in ours and n.removesuffix("_created") not in opt_in}
    assert missing == set()
    assert {n: ours[n] for n in ours} == {n: recorded[n] for n in ours}


def test_unknown_names_are_refused_with_the_valid_ones() -> None:
    with pytest.raises(CapacityError, match="valid: calm, idle, ramp"):
        incident("fire")
    with pytest.raises(CapacityError, match=r"0\.4\.0 to 0\.33\.0"):
        parse_release("0.3")
    with pytest.raises(CapacityError, match="1 or more"):
        DemoPool(replicas=0)
    assert main(["--incident", "fire", "--port", "0"]) == 2


@pytest.fixture
def pool() -> Iterator[DemoPool]:
    with DemoPool(replicas=2, speed=20.0, warm_up_s=10.0) as running:
        yield running


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def post(url: str, body: bytes) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=5) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_replicas_answer_on_ports_of_their_own(pool: DemoPool) -> None:
    texts = [get(url) for url in pool.urls]
    assert len(set(pool.urls)) == 2 and texts[0] != texts[1]
    assert all("vllm:kv_cache_usage_perc{" in text for text in texts)


def test_the_incident_is_switched_over_http(pool: DemoPool) -> None:
    control = pool.urls[0].replace("/metrics", "/demo/incident")
    assert json.loads(get(control))["incident"] == "calm"
    assert post(control, b'{"incident": "ramp"}')[1]["incident"] == "ramp"
    assert pool.incident_name == "ramp"
    assert post(control, b'{"incident": "fire"}')[0] == 422
    assert post(control, b"[]")[0] == 400
    assert pool.incident_name == "ramp"


def test_a_replica_that_is_down_refuses_and_comes_back(pool: DemoPool) -> None:
    pool.set_incident("down")
    pool._servers[1].follow()
    with pytest.raises(urllib.error.URLError, match="refused"):
        get(pool.urls[1])
    assert "vllm:num_requests_running" in get(pool.urls[0])
    pool.set_incident("calm")
    pool._servers[1].follow()
    assert "vllm:num_requests_running" in get(pool.urls[1])


def test_engines_of_one_url_have_labels(pool: DemoPool) -> None:
    with DemoPool(replicas=3, layout="engines", warm_up_s=10.0) as parallel:
        text = get(parallel.urls[0])
    assert len(parallel.urls) == 1
    assert all(f'vllm:num_requests_running{{engine="{i}"' in text for i in range(3))
    assert text.count("vllm:admission_rejections_total{") == 2  # one per reason, not per engine


@pytest.mark.parametrize(
    ("flag", "text", "valid"),
    [
        ("--port", "-1", "a whole number from 0 to 65,535"),
        ("--port", "99999", "a whole number from 0 to 65,535"),
        ("--port", "x", "a whole number from 0 to 65,535"),
        ("--replicas", "0", "a whole number from 1 to 64"),
        ("--replicas", "1000000", "a whole number from 1 to 64"),
        ("--seed", "9" * 50, "a whole number from 0 to 1,000,000,000"),
        ("--speed", "nan", "a number from 0.01 to 1,000"),
        ("--speed", "1e400", "a number from 0.01 to 1,000"),
        ("--seconds", "nan", "a number from 0 to 1,000,000"),
        ("--seconds", "1e300", "a number from 0 to 1,000,000"),
    ],
)
def test_a_number_out_of_range_is_one_line(
    flag: str, text: str, valid: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([flag, text])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == f"waterline: argument {flag}: {text[:40]} is not valid; valid: {valid}\n"


def test_ports_of_all_replicas_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", "65535", "--replicas", "3"]) == 2
    assert capsys.readouterr().err == (
        "waterline: port 65535 and 3 replicas end at port 65537; valid: at most 65535\n"
    )
