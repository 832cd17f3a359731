"""The headline's rates say what happens now: the last minute, whatever number of scrapes is kept in memory."""

from __future__ import annotations

from capacity.telemetry import TargetSnapshot
from connectors.live_view import RATE_SCRAPES, RATE_WINDOW_S, last


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
