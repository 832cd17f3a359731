"""The headline's rates say what happens now: the last minute, whatever number of scrapes is kept in memory."""

from __future__ import annotations

from capacity.telemetry import TargetSnapshot
from connectors.live_view import RATE_SCRAPES, RATE_WINDOW_S, build, last
from connectors.poller import Poller, PollTarget
from connectors.scrape import snapshot_of


def snapshots(count: int, every_s: float) -> list[TargetSnapshot]:
    return [TargetSnapshot(target="gpu-1", time_s=1000.0 + i * every_s) for i in range(count)]


def test_a_minute_of_scrapes_is_taken() -> None:
    found = last(snapshots(32, 5.0), RATE_WINDOW_S)
    assert found[-1].time_s - found[0].time_s == 60.0 and len(found) == 13


def test_slow_scrapes_still_give_three_intervals() -> None:
    assert len(last(snapshots(32, 30.0), RATE_WINDOW_S)) == RATE_SCRAPES == 4


def test_a_forecast_takes_all() -> None:
    assert len(last(snapshots(32, 5.0), None)) == 32
    assert last([], RATE_WINDOW_S) == []


def test_a_stalled_engine_has_no_time_to_full() -> None:
    """Its gauge rose before it stood still: a line through that says nothing."""
    rising = [min(0.5 + 0.02 * i, 0.8) for i in range(40)]
    tokens = [500.0 * min(i, 15) for i in range(40)]
    page = "vllm:num_requests_running 8\nvllm:num_requests_waiting 4\n"
    found: list[TargetSnapshot] = []
    for i, (usage, done) in enumerate(zip(rising, tokens, strict=True)):
        text = f"{page}vllm:kv_cache_usage_perc {usage}\nvllm:generation_tokens_total {done}\n"
        found.append(snapshot_of(text.encode(), target="gpu-1", time_s=1000.0 + 2.0 * i))
    poller = Poller([PollTarget(name="gpu-1", scrape=lambda: found[-1])], interval_s=2.0)
    said = {}
    for count, one in enumerate(found, start=1):
        poller.accept("gpu-1", one, took_s=0.1)
        if count in (14, 40):
            engine = build(poller.views(), now_s=one.time_s).engines[0]
            assert engine.forecast is not None
            said[engine.verdict.name] = engine.forecast
    assert set(said) == {"seat-bound", "stalled"}
    assert 10 < (said["seat-bound"].expected_s or 0) < 30
    assert said["stalled"].expected_s is None
    assert said["stalled"].reason == "stalled: its KV usage says nothing about what comes"
