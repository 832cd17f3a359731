"""The history file: nothing committed is lost, any window adds up, a bad disk never stops live readings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from capacity.intervals import HistogramDelta, Interval, merge, thin
from connectors.history import History, HistoryError, HistoryLocked, HistoryStopped
from connectors.history.schema import TIERS, default_path

ROOT = Path(__file__).parents[2]
START = 1_700_000_000.0 // 900 * 900
BOUNDS = (0.1, 0.5, 1.0)


def interval(i: int, *, target: str = "http://a:8000/metrics", step_s: float = 5.0) -> Interval:
    return Interval(
        target=target,
        engine="0",
        model_name="m",
        release="0.32",
        end_s=START + (i + 1) * step_s,
        seconds=step_s,
        counted_s=step_s,
        values={"running": float(i % 7), "kv_usage": 0.9 if i == 30 else 0.25, "num_blocks": 100.0},
        increments={"generation_tokens": 10.0 + i % 3, "preemptions": 0.0},
        histograms={
            "ttft_s": HistogramDelta(bounds=BOUNDS, counts=(1, 2, i % 2, 0), sum=0.5),
            "itl_s": HistogramDelta(bounds=(0.05,), counts=(9, 1), sum=0.3),
        },
    )


@pytest.fixture
def history() -> Iterator[History]:
    with History(":memory:") as opened:
        yield opened


def test_what_was_written_is_read_back(history: History) -> None:
    written = [interval(i) for i in range(20)]
    assert history.record(written)
    read = history.window(START, START + 100, points=20)
    assert len(read) == 20
    assert [i.end_s for i in read] == [i.end_s for i in written]
    assert read[3].histograms == written[3].histograms
    assert read[3].increments == written[3].increments
    assert read[3].value("kv_usage") == pytest.approx(0.25)
    assert (read[3].target, read[3].model_name, read[3].release) == ("http://a:8000/metrics", "m", "0.32")


@pytest.mark.parametrize("points", [300, 60, 12, 2])
def test_any_resolution_conserves_tokens_and_observations(history: History, points: int) -> None:
    for start in range(0, 720, 12):
        history.record(
            [interval(i, target=t) for i in range(start, start + 12) for t in ("http://a/m", "http://b/m")]
        )
    read = history.window(START, START + 3600, points=points)
    expected = [interval(i) for i in range(720)]
    for target in ("http://a/m", "http://b/m"):
        mine = [i for i in read if i.target == target]
        assert len(mine) <= points + 1
        assert sum(i.increments["generation_tokens"] or 0 for i in mine) == sum(
            i.increments["generation_tokens"] or 0 for i in expected
        )
        assert sum(i.histograms["ttft_s"].count for i in mine) == sum(
            i.histograms["ttft_s"].count for i in expected
        )
        assert sum(i.seconds for i in mine) == pytest.approx(3600)
        assert max(i.value("kv_usage_peak") or 0 for i in mine) == pytest.approx(0.9)


def test_summing_in_the_file_equals_merging_in_the_core(history: History) -> None:
    written = [interval(i) for i in range(12)]
    history.record(written)
    (read,) = history.window(START, START + 60, points=1)
    expected = merge(written)
    assert read.histograms == expected.histograms
    assert read.increments == pytest.approx(expected.increments)
    assert read.value("running") == pytest.approx(expected.value("running"))
    assert thin(written, step_s=60.0) == [expected]


def test_unknown_stays_unknown(history: History) -> None:
    gone = replace(interval(0), state="down: refused", counted_s=0.0, values={}, increments={}, histograms={})
    history.record([gone, interval(1)])
    down, up = history.window(START, START + 10, points=2)
    assert (
        down.state == "down: refused"
        and down.values == {}
        and down.increments == {}
        and down.rate("x") is None
    )
    assert down.histograms == {} and up.state == "ok"
    (both,) = history.window(START, START + 10, points=1)
    assert (
        both.state == "partial"
        and both.counted_s == 5.0
        and both.rate("generation_tokens") == pytest.approx(2.2)
    )


def test_changed_bounds_are_never_added_together(history: History) -> None:
    other = replace(interval(1), histograms={"ttft_s": HistogramDelta(bounds=(9.0,), counts=(4, 0), sum=1.0)})
    history.record([interval(0), other])
    (read,) = history.window(START, START + 10, points=1)
    assert read.histograms["ttft_s"].bounds == (9.0,) and read.histograms["ttft_s"].counts == (4, 0)


def test_old_rows_go_and_coarser_ones_stay() -> None:
    tiers = (replace(TIERS[0], keep_s=600.0), TIERS[1], TIERS[2])
    with History(":memory:", tiers=tiers) as history:
        for start in range(0, 720, 60):
            history.record([interval(i) for i in range(start, start + 60)])
        history.forget(START + 3600)
        read = history.window(START, START + 3600, points=720)
    assert sum(i.seconds for i in read) == pytest.approx(3600)
    assert {round(i.seconds) for i in read} == {5, 60}
    tokens = sum(i.increments["generation_tokens"] or 0 for i in read)
    assert tokens == sum(10 + i % 3 for i in range(720))


def test_targets_and_demo_are_told_apart(history: History) -> None:
    history.record([interval(0), replace(interval(0, target="http://demo/m"), demo=True)])
    assert [i.target for i in history.window(START, START + 5, demo=False)] == ["http://a:8000/metrics"]
    assert [i.demo for i in history.window(START, START + 5, demo=True)] == [True]
    assert history.window(START, START + 5, targets=["http://nobody/m"]) == []


def test_markers(history: History) -> None:
    history.mark(START + 3, "lowered max_num_seqs")
    assert history.markers(START, START + 5) == [(START + 3, "lowered max_num_seqs")]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_export(history: History, tmp_path: Path, suffix: str) -> None:
    history.record([interval(i) for i in range(10)])
    path = tmp_path / f"it's{suffix}"
    assert history.export(str(path), start_s=START, end_s=START + 25) == 5
    quoted = str(path).replace("'", "''")
    rows = duckdb.sql(f"SELECT target, generation_tokens, counts_layout FROM '{quoted}'").fetchall()
    assert len(rows) == 5 and rows[0][0] == "http://a:8000/metrics" and '"ttft_s"' in rows[0][2]
    with pytest.raises(HistoryError, match=r"valid: \.parquet, \.csv"):
        history.export(str(tmp_path / "x.xlsx"), start_s=0, end_s=1)


def test_a_second_process_gets_a_sentence(tmp_path: Path) -> None:
    path = str(tmp_path / "history.duckdb")
    code = (
        f"from connectors.history import History\nh = History({path!r})\nprint('open', flush=True)\ninput()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "open\n"
        with pytest.raises(HistoryLocked, match="open in another Waterline process") as caught:
            History(path)
        assert "\n" not in str(caught.value)
    finally:
        holder.communicate("\n", timeout=10)
    with History(path) as free:
        assert free.problem is None


def test_kill_during_writes_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    path = str(tmp_path / "history.duckdb")
    code = textwrap.dedent(
        f"""
        from connectors.history import History
        from tests.connectors.test_history import interval
        history = History({path!r})
        for i in range(100_000):
            assert history.record([interval(i, target=f"http://{{t}}/m") for t in range(10)])
            print(i, flush=True)
        """
    )
    writer = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    committed = -1
    while committed < 40:
        committed = int(writer.stdout.readline())
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().splitlines()
    writer.wait(timeout=10)
    committed = int(rest[-1]) if rest and rest[-1].isdigit() else committed
    with History(path) as again:
        read = again.window(START, START + 1e6, points=1_000_000)
        per_target = {t: sum(1 for i in read if i.target == t) for t in {i.target for i in read}}
        assert len(per_target) == 10 and set(per_target.values()) <= {committed + 1, committed + 2}
        assert len(set(per_target.values())) == 1
        assert again.record([interval(100_001)])
        tokens = sum(
            i.increments["generation_tokens"] or 0 for i in again.window(START, START + 900, points=15)
        )
    assert tokens > 0


def test_a_foreign_file_is_named_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "history.duckdb"
    path.write_text("this is not a database\n" * 500)
    with pytest.raises(HistoryError, match="cannot be opened as DuckDB"):
        History(str(path))
    assert path.read_text().startswith("this is not a database")


def test_a_nearly_full_disk_stops_writing_and_says_so(tmp_path: Path) -> None:
    history = History(str(tmp_path / "h.duckdb"), min_free_bytes=1 << 60)
    assert history.record([interval(0)]) is False
    assert history.problem is not None and "MiB free" in history.problem
    assert history.record([interval(1)]) is False
    assert history.window(START, START + 10) == []
    history._min_free_bytes = 0
    history._retry_at = 0.0
    assert history.record([interval(2)]) is True
    assert history.problem is None
    history.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = tmp_path / "tiny"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(mounted)], check=True)
    yield mounted
    subprocess.run(["umount", "-l", str(mounted)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_fills_up_stops_writing_and_reading_goes_on(tiny_disk: Path) -> None:
    history = History(str(tiny_disk / "h.duckdb"), min_free_bytes=0)
    assert history.record([interval(0)])
    room = os.statvfs(tiny_disk)
    (tiny_disk / "filler").write_bytes(b"x" * max(0, room.f_bavail * room.f_frsize - 200_000))
    stopped = False
    for i in range(1, 400):
        if not history.record([interval(i, target=f"http://{t}/m") for t in range(50)]):
            stopped = True
            break
    assert stopped and history.problem is not None
    assert "No space" in history.problem or "space" in history.problem
    assert len(history.window(START, START + 5)) >= 1
    (tiny_disk / "filler").unlink()
    history._retry_at = 0.0
    assert history.record([interval(500)])
    assert len(history.window(START + 500 * 5, START + 502 * 5, points=2)) == 1
    history.close()


def test_closed_history_refuses_with_a_reason(history: History) -> None:
    history.close()
    history.close()
    assert history.record([interval(0)]) is False
    with pytest.raises(HistoryStopped, match="is closed"):
        history.window(0, 1)


def test_the_path_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WATERLINE_HISTORY", ":memory:")
    assert default_path() == ":memory:"
    monkeypatch.delenv("WATERLINE_HISTORY")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path() == str(tmp_path / "waterline" / "history.duckdb")


def test_a_week_is_summed_up_in_steps(history: History) -> None:
    began = time.perf_counter()
    for hour in range(24):
        history.record([interval(hour * 60 + m, step_s=60.0) for m in range(60)])
    read = history.window(START, START + 86_400, points=96)
    assert len(read) in (96, 97) and time.perf_counter() - began < 60
    assert sum(i.increments["generation_tokens"] or 0 for i in read) == sum(10 + i % 3 for i in range(1440))
