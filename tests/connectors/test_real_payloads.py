"""Pages and whole runs recorded from a real vLLM 0.16.0 and 0.32.0: right readings, no false number."""

from __future__ import annotations

import csv
import json
import math

import pytest

from capacity.telemetry import LATENCIES, State, TargetSnapshot
from connectors.report import PoolReport, pool_report
from connectors.scrape import snapshot_of
from tests.connectors import metrics_files

# page, running, waiting, KV usage, prompt and generation tokens, finished by length, verdict from one scrape
PAGES = [
    ("vllm-0.16.0-idle-fresh", 0, 0, 0.0, 0, 0, 0, "idle"),
    ("vllm-0.16.0-light-load", 2, 0, 0.06274509803921569, 200, None, 0, "healthy"),
    ("vllm-0.16.0-heavy-waiting", 17, 23, 1.0, 7784, None, 5, "KV-bound"),
    ("vllm-0.16.0-preempting", 16, 14, 0.9647058823529412, 7784, None, 15, "KV-bound"),
    ("vllm-0.16.0-after-load", 0, 0, 0.0, 8360, None, 45, "idle"),
    ("vllm-0.32.0-idle-fresh", 0, 0, 0.0, 0, 0, 0, "idle"),
    ("vllm-0.32.0-light-load", 2, 0, 0.10196078431372546, 200, None, 0, "healthy"),
    ("vllm-0.32.0-heavy-waiting", 15, 25, 1.0, 7784, 8684, 5, "KV-bound"),
    ("vllm-0.32.0-preempting", 16, 14, 0.9647058823529412, 7784, None, 15, "KV-bound"),
    ("vllm-0.32.0-after-load", 0, 0, 0.0, 8360, None, 45, "idle"),
    ("vllm-0.32.0-gemma3-maxseqs4-idle-fresh", 0, 0, 0.0, 0, 0, 0, "idle"),
    ("vllm-0.32.0-gemma3-maxseqs4-light-load", 1, 0, 0.03522504892367906, 520, None, 3, "healthy"),
    ("vllm-0.32.0-gemma3-maxseqs4-heavy-waiting", 4, 8, 0.1487279843444227, 1448, None, 9, "seat-bound"),
    ("vllm-0.32.0-gemma3-maxseqs4-after-load", 0, 0, 0.0, 2216, None, 21, "idle"),
]


@pytest.mark.parametrize("row", PAGES, ids=lambda row: row[0])
def test_a_page_gives_the_right_readings(row: tuple) -> None:
    name, running, waiting, usage, prompt, generated, finished, expected = row
    snapshot = metrics_files.snapshot(f"{name}.prom")
    (engine,) = snapshot.engines
    assert snapshot.state is State.OK
    assert engine.value("running").value == running
    assert engine.value("waiting").value == waiting
    assert engine.value("kv_usage").value == usage
    assert engine.value("kv_usage").metric == "vllm:kv_cache_usage_perc"
    assert engine.value("prompt_tokens").value == prompt
    if generated is not None:
        assert engine.value("generation_tokens").value == generated
    assert engine.breakdown("finished").parts["length"] == finished
    report = pool_report(name, {name: [snapshot]}, single="since start")
    assert report.engines[0].verdict.name == expected
    assert report.verdict.name == expected


@pytest.mark.parametrize(
    ("name", "blocks", "size", "tokens", "concurrency", "release"),
    [
        ("vllm-0.16.0-heavy-waiting", 256, 32, 8192, None, "0.16 to before 0.20.2"),
        ("vllm-0.32.0-heavy-waiting", 256, 32, 8192, 4.0, "0.32 or later"),
        ("vllm-0.32.0-gemma3-maxseqs4-heavy-waiting", 512, 32, 5405, 2.6391752577319587, "0.32 or later"),
    ],
)
def test_capacity_comes_from_the_engine(
    name: str, blocks: int, size: int, tokens: int, concurrency: float | None, release: str
) -> None:
    (engine,) = metrics_files.snapshot(f"{name}.prom").engines
    config = engine.config
    assert config.num_blocks.value == blocks
    assert config.block_size.value == size
    assert config.kv_capacity_tokens.value == tokens
    assert config.max_concurrency.value == concurrency
    assert engine.release == release


def test_signals_of_newer_releases_are_named_as_such_on_an_older_page() -> None:
    (engine,) = metrics_files.snapshot("vllm-0.16.0-heavy-waiting.prom").engines
    for signal in ("waiting_by_reason", "rejections", "request_preemptions"):
        assert engine.value(signal).state is State.NOT_EXPORTED
        assert engine.value(signal).value is None


def test_two_pages_tell_preempting_and_its_price() -> None:
    before = metrics_files.snapshot("vllm-0.32.0-preempting-before.prom", time_s=0.0)
    after = metrics_files.snapshot("vllm-0.32.0-preempting.prom", time_s=5.0)
    report = pool_report("x", {"x": [before, after]})
    assert report.verdict.name == "preempting"
    assert report.signals["preemptions_per_s"].value == pytest.approx(3.2)
    tokens_held = 0.9647058823529412 * 8192 / 16
    assert report.signals["recomputed_tokens_per_s"].value == pytest.approx(3.2 * tokens_held)


def numbers(report: PoolReport) -> list[float]:
    """Every number anywhere in the JSON of a report."""
    found: list[float] = []

    def walk(node: object) -> None:
        if isinstance(node, bool):
            return
        if isinstance(node, int | float):
            found.append(float(node))
        elif isinstance(node, dict):
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(json.loads(json.dumps(report.as_json(), allow_nan=False)))
    return found


@pytest.mark.parametrize("name", metrics_files.SEQUENCES)
def test_a_whole_run_is_read_without_a_false_number(name: str) -> None:
    seen: list[str] = []
    snapshots: list[TargetSnapshot] = []
    rows = []
    for i, (when, body) in enumerate(metrics_files.sequence(name)):
        snapshots = [*snapshots, snapshot_of(body, target=name, time_s=when)][-12:]
        (engine,) = snapshots[-1].engines
        rows.append(
            (
                engine.value("running").value,
                engine.value("waiting").value,
                engine.value("kv_usage").value,
                engine.value("preemptions").value,
                engine.value("prompt_tokens").value,
                engine.value("generation_tokens").value,
            )
        )
        report = pool_report(name, {name: snapshots})
        seen.append(report.verdict.name)
        if i % 5 == 0:
            assert all(math.isfinite(n) and n >= 0 for n in numbers(report))
    assert rows == _timeline(name, len(rows))
    assert "stalled" not in seen and "restarting" not in seen and "unknown" not in seen
    busy = "seat-bound" if "maxseqs4" in name else "KV-bound"
    assert busy in seen
    assert ("preempting" in seen) == ("maxseqs4" not in name)


def _timeline(name: str, count: int) -> list[tuple[float, ...]]:
    """What the recorder noted beside each scrape."""
    table = list(csv.DictReader(metrics_files.page(f"{name}-timeline.csv").decode().splitlines()))
    assert len(table) == count
    names = ("running", "waiting", "kv_usage", "preemptions", "prompt_tokens", "generation_tokens")
    return [tuple(float(row[n]) for n in names) for row in table]


def test_percentiles_lie_in_their_bucket() -> None:
    snapshots = [
        snapshot_of(body, target="x", time_s=when) for when, body in metrics_files.sequence("vllm-0.32.0")
    ]
    signals = pool_report("x", {"x": snapshots}).signals
    for family in LATENCIES:
        for p in ("p50", "p90", "p99"):
            value = signals[f"{family}.{p}"]
            assert value.count and value.low is not None and value.high is not None
            assert value.low <= value.value <= value.high
