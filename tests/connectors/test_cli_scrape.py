"""``python -m connectors scrape``: the keys that others rely on, files and addresses, and bad input in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from connectors.__main__ import main
from tests.connectors import metrics_files
from tests.connectors.fault_server import http, serving, text

SIGNALS = {
    "running", "waiting", "waiting_by_reason", "kv_usage", "kv_capacity_tokens", "num_blocks", "block_size",
    "max_concurrency", "prompt_tokens_per_s", "generation_tokens_per_s", "requests_per_s",
    "finished_by_reason", "preemptions_per_s", "rejections_per_s", "prefix_cache_hit_rate",
    "tokens_per_step", "ttft_s", "itl_s", "tpot_s", "e2e_s", "queue_s", "prefill_s", "decode_s",
    "sleep_state", "lora", "spec_decode_acceptance",
}  # fmt: skip
FAMILIES = {name for name in SIGNALS if name.endswith("_s") and "per_s" not in name}
STATES = {
    "ok", "not exported by this release", "missing", "stale", "reset", "partial", "below lowest bucket",
    "above highest bucket", "down",
}  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict, str]:
    status = main(["scrape", *words, "--json"])
    captured = capsys.readouterr()
    return status, json.loads(captured.out) if captured.out else {}, captured.err


def check_shape(found: dict) -> None:
    assert {"target", "engines", "pool"} <= set(found)
    parts = [*found["engines"], found["pool"]]
    for engine in found["engines"]:
        assert {"engine", "model_name", "release", "signals", "verdict"} <= set(engine)
    for part in parts:
        assert set(part["signals"]) == SIGNALS
        assert {"name", "severity", "confidence", "evidence", "actions"} <= set(part["verdict"])
        for name, signal in part["signals"].items():
            if name in FAMILIES:
                assert set(signal) == {"p50", "p90", "p99"}
                for value in signal.values():
                    assert {"value", "state", "metric", "low", "high", "count"} <= set(value)
                    assert value["state"] in STATES
            else:
                assert {"value", "state", "metric"} <= set(signal)
                assert signal["state"] in STATES
                assert signal["value"] is not None or signal["reason"]


@pytest.mark.parametrize(
    "name",
    [
        "vllm-0.32.0-heavy-waiting.prom",
        "legacy_names_v0.prom",
        "dp4_balanced.prom",
        "promapi_ha_duplicates.json",
        "truncated_no_newline.prom",
        "nan_inf_values.prom",
    ],
)
def test_keys_of_one_file(capsys: pytest.CaptureFixture[str], name: str) -> None:
    status, found, errors = run(capsys, str(metrics_files.path(name)))
    assert (status, errors) == (0, "")
    check_shape(found)
    for rate in ("prompt_tokens_per_s", "generation_tokens_per_s", "requests_per_s", "preemptions_per_s"):
        signal = found["pool"]["signals"][rate]
        assert signal["value"] is None and signal["reason"]


def test_two_files_give_rates(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(metrics_files.path(f"counter_reset_t{i}.prom")) for i in (0, 1)]
    status, found, _ = run(capsys, *files, "--interval", "15")
    assert status == 0
    check_shape(found)
    signal = found["pool"]["signals"]["prompt_tokens_per_s"]
    assert signal["value"] == pytest.approx(200 / 15) and signal["state"] == "reset"
    assert found["window_s"] == 15


def test_an_address_and_two_scrapes(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(text(metrics_files.page("v1_single_busy.prom"))) as server:
        status, found, _ = run(capsys, server.url, "--interval", "0.1")
        assert len(server.requests) == 2
    assert status == 0
    check_shape(found)
    assert found["pool"]["signals"]["generation_tokens_per_s"]["value"] == 0


def test_a_bare_host_and_port(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(text(metrics_files.page("v1_single_busy.prom"))) as server:
        status, found, _ = run(capsys, f"127.0.0.1:{server.port}")
        assert server.requests[0].startswith("GET /metrics ")
    assert status == 0 and found["target"] == server.url


def test_a_target_that_is_down_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(http("500 Internal Server Error", b"")) as server:
        status, found, errors = run(capsys, server.url)
    assert status == 1
    check_shape(found)
    assert found["engines"] == []
    assert found["pool"]["verdict"]["name"] == "down"
    assert errors.count("\n") == 1 and "status 500" in errors


BAD = [
    [],
    ["/no/such/file.prom"],
    ["http://user:hunter2@host/metrics"],
    ["ftp://host/metrics"],
    ["2001:db8::5:8000"],
    ["http://"],
    ["a.prom", "b.prom", "--interval", "-3"],
    ["a.prom", "--interval", "nan"],
    ["a.prom", "b.prom", "--interval", "1e12"],
    ["http://127.0.0.1:1/metrics", "--interval", "1e-7"],
    ["http://127.0.0.1:1/metrics", "--interval", "90000"],
    ["--prometheus", "http://127.0.0.1:1", "--interval", "1e-7"],
    ["a.prom", "--max-model-len", "1e3"],
    ["a.prom", "--max-model-len", "99999999999999"],
    ["a.prom", "--max-num-seqs", "0"],
    ["a.prom", "--nonsense"],
    ["--selector", '{job="x"}', "http://host"],
    ["--selector", '{job="x"}', str(metrics_files.path("v1_single_busy.prom"))],
    [str(metrics_files.path("vllm-0.32.0-timeline.csv"))],
    [str(metrics_files.path("python_only.prom"))],
    [str(metrics_files.path("promapi_11k_error.json"))],
    [str(metrics_files.path("v1_single_busy.prom")), str(metrics_files.path("legacy_names_v0.prom"))],
    [str(metrics_files.FOLDER)],
]


@pytest.mark.parametrize("words", BAD, ids=lambda words: " ".join(words)[-40:] or "nothing")
def test_bad_input_ends_with_two_and_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["scrape", *words, "--json"])
    except SystemExit as stopped:
        status = stopped.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.startswith("waterline: ")
    assert "hunter2" not in captured.err


def test_html_and_noise_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i, body in enumerate(
        (b"<html>login</html>", b"", b"\x00\x01\x02" * 99, b'{"a": 1}', b"\x1f\x8b broken")
    ):
        path = tmp_path / f"{i}.prom"
        path.write_bytes(body)
        assert main(["scrape", str(path), "--json"]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1


def test_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scrape", str(metrics_files.path("vllm-0.32.0-heavy-waiting.prom"))]) == 0
    shown = capsys.readouterr().out
    assert "KV-bound" in shown and "--gpu-memory-utilization" in shown and "100.0 %" in shown
    assert "a rate needs two scrapes" in shown and "nan" not in shown.lower().replace("nan_", "")


def test_watch_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(text(metrics_files.page("v1_single_busy.prom"))) as server:
        assert main(["watch", server.url, "--interval", "0.05", "--count", "3"]) == 0
        assert len(server.requests) == 3
    assert capsys.readouterr().out.count("[ok]") >= 3


def test_as_a_process() -> None:
    path = str(metrics_files.path("dp4_balanced.prom"))
    done = subprocess.run(
        [sys.executable, "-m", "connectors", "scrape", path, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0 and done.stderr == ""
    assert [e["engine"] for e in json.loads(done.stdout)["engines"]] == ["0", "1", "2", "3"]


def test_tables_of_samples(capsys: pytest.CaptureFixture[str]) -> None:
    status, found, _ = run(capsys, str(metrics_files.path("samples_scrape_gap.csv")))
    assert status == 0
    rate = found["pool"]["signals"]["generation_tokens_per_s"]
    assert rate["value"] == pytest.approx(100) and rate["metric"] == "vllm:generation_tokens_total"
    status, found, _ = run(capsys, str(metrics_files.path("samples_kv_growth.csv")))
    assert status == 0
    assert found["pool"]["signals"]["kv_usage"]["value"] == 0.932
    assert found["pool"]["signals"]["running"]["value"] == 8
    assert found["pool"]["verdict"]["name"] == "KV-bound"
    full = found["engines"][0]["time_to_full_s"]  # 0.0004 a second, 0.068 to go
    assert full["expected_s"] == pytest.approx(170, abs=3) and full["low_s"] < 170 < full["high_s"]
    status, found, _ = run(capsys, str(metrics_files.path("v1_single_busy.prom")))
    assert found["engines"][0]["time_to_full_s"]["expected_s"] is None
    assert found["engines"][0]["time_to_full_s"]["reason"].startswith("too few scrapes: 1 over 0 s")


def test_a_pipe_is_read_up_to_the_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # a pipe or a device has a size of 0 bytes whatever it holds
    monkeypatch.setattr("connectors.scrape.FILE_CAP_BYTES", 1_000_000)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def fill() -> None:
        with suppress(BrokenPipeError), pipe.open("wb") as end:
            end.write(b"#" * 3_000_000)

    writer = threading.Thread(target=fill)
    writer.start()
    assert main(["scrape", str(pipe)]) == 2
    writer.join(timeout=10)
    assert not writer.is_alive()
    assert capsys.readouterr().err == "waterline: pipe is larger than 1 MB\n"
