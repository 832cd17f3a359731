"""Counters and histograms of which a part cannot be read now and then: no false zero, no false jump."""

from __future__ import annotations

import math

import pytest

from capacity.interval_steps import between
from capacity.telemetry import (
    Breakdown,
    EngineSnapshot,
    Histogram,
    State,
    Value,
    engine_signals,
    open_window,
    quantile,
)
from tests.capacity.test_telemetry import hist, snap


def finished(*, unread: str = "", **parts: float) -> Breakdown:
    """Finished requests by reason; ``unread`` names a part that was NaN."""
    state, reason = (State.PARTIAL, f"the engine reported {unread} = NaN") if unread else (State.OK, None)
    return Breakdown(parts=parts, label="finished_reason", metric="f", state=state, reason=reason)


def series(*readings: Breakdown | Histogram, name: str = "finished") -> list[EngineSnapshot]:
    return [snap(10.0 * i, **{name: one}) for i, one in enumerate(readings)]


def test_a_part_that_is_no_number_makes_the_total_unknown_not_zero() -> None:
    window = open_window(series(finished(stop=100, length=3), finished(length=3, unread="stop")))
    signals = engine_signals(window)
    assert signals["requests_per_s"].value is None
    assert signals["requests_per_s"].state is State.PARTIAL
    found = signals["finished_by_reason"]
    assert (found.value, found.state) == ({"length": 0.0}, State.PARTIAL)
    assert "stop = NaN" in found.reason


def test_a_part_lost_for_a_scrape_is_a_gap_and_no_restart() -> None:
    for lost in (finished(length=3, unread="stop"), finished(length=3)):
        window = open_window(series(finished(stop=100, length=3), lost, finished(stop=104, length=5)))
        assert {k: v.amount for k, v in window.parts["finished"].items()} == {"stop": 4.0, "length": 2.0}
        assert window.restarts == 0
    assert window.parts["finished"]["stop"].state is State.OK


def test_the_total_passes_over_a_scrape_that_could_not_be_read() -> None:
    unread = finished(length=3, unread="stop")
    window = open_window(series(finished(stop=100, length=3), unread, finished(stop=104, length=5)))
    assert window.increase("finished").amount == 6.0
    assert window.increase("finished").seconds == 20.0


def test_a_part_counts_from_zero_where_it_is_new_and_after_a_restart() -> None:
    new = open_window(series(finished(stop=5), finished(stop=5, abort=2)))
    assert new.parts["finished"]["abort"].amount == 2.0
    shots = [snap(10.0 * i, finished=one, started=s) for i, (one, s) in enumerate(
        [(finished(stop=100, abort=7), 1.0), (finished(stop=1), 500.0), (finished(stop=2, abort=1), 500.0)]
    )]  # fmt: skip
    restarted = open_window(shots)
    assert {k: v.amount for k, v in restarted.parts["finished"].items()} == {"stop": 2.0, "abort": 1.0}


def test_history_counts_no_part_that_was_not_read_before() -> None:
    def interval(before: Breakdown, after: Breakdown) -> dict[str, float | None]:
        old, new = series(before, after)
        return dict(between(old, new, target="x", seconds=10).increments)

    lost, back = finished(length=3, unread="stop"), finished(stop=104, length=5)
    assert interval(lost, back) == {"finished_length": 2.0}
    assert interval(finished(stop=100, length=3), back) == {"finished_stop": 4.0, "finished_length": 2.0}


def test_history_takes_rejections_that_name_no_engine() -> None:
    unknown = Value(state=State.MISSING, reason="it counts for the pool", metric="r")
    old, new = snap(0, rejections=unknown, running=1), snap(10, rejections=unknown, running=1)
    shared = [{"rejections": Breakdown(parts={"q": n}, label="reason", metric="r")} for n in (5.0, 9.0)]
    found = between(old, new, target="x", seconds=10, previous_shared=shared[0], current_shared=shared[1])
    assert found.increments["rejections"] == 4.0


def test_buckets_torn_between_two_scrapes_stay_cumulative() -> None:
    """4 below the first bound and 1 in all cannot be: Prometheus lifts the later ones as well."""
    window = open_window(series(hist(5, 8, 10), hist(9, 9, 11), name="ttft_s"))
    found = window.histograms["ttft_s"]
    assert isinstance(found, Histogram) and found.counts == (4.0, 4.0, 4.0)
    assert engine_signals(window)["ttft_s.p50"].value == pytest.approx(0.05)


def test_a_sum_that_falls_gives_no_mean() -> None:
    window = open_window(series(hist(1, 1, 1, total=900.0), hist(2, 2, 2, total=100.0), name="step_tokens"))
    found = window.histograms["step_tokens"]
    assert isinstance(found, Histogram) and (found.count, found.sum) == (1.0, None)
    assert engine_signals(window)["tokens_per_step"].value is None


def test_a_count_too_small_to_divide_by_gives_no_mean_and_no_percentile() -> None:
    least = math.ulp(0.0)
    assert hist(0, 0, least, total=1e30).mean is None
    for counts in ((0, 0, least), (least, least, least)):
        assert quantile(0.5, hist(*counts)).value is None
