"""Lines over a window: totals add up, gaps stay gaps, percentiles come from summed buckets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.errors import CapacityError
from capacity.intervals import HistogramDelta, Interval, merge, merge_histograms, thin
from capacity.live_series import latency_series, merged, percentile, pool_series
from capacity.telemetry import Histogram, quantile


def interval(end_s: float, *, target: str = "a", tokens: float = 10.0, kv: float | None = 0.5) -> Interval:
    return Interval(
        target=target,
        engine="0",
        model_name="m",
        end_s=end_s,
        seconds=5.0,
        counted_s=5.0,
        values={} if kv is None else {"kv_usage": kv, "running": 2.0, "waiting": 1.0},
        increments={"generation_tokens": tokens, "prefix_queries": 100.0, "prefix_hits": 25.0},
        histograms={
            "ttft_s": HistogramDelta(bounds=(0.1, 1.0), counts=(1, 2, 0), sum=1.0),
            "step_tokens": HistogramDelta(bounds=(8.0, 64.0), counts=(3, 1, 0), sum=40.0),
        },
    )


def test_totals_are_sums_over_engines_of_rates() -> None:
    found = pool_series(
        [
            interval(t + shift, target=target)
            for target, shift in (("a", 0.0), ("b", 1.7))
            for t in range(5, 61, 5)
        ],
        step_s=5.0,
    )
    assert found.engines == 2
    assert found.rates["generation_tokens"][2:-1] == pytest.approx([4.0] * len(found.times_s[2:-1]))
    assert found.totals["running"][2] == 4.0 and found.totals["waiting"][2] == 2.0
    assert found.prefix_hit_rate[2] == 0.25 and found.tokens_per_step[2] == 10.0
    assert set(found.known[1:]) == {2}


def test_a_gap_is_a_gap() -> None:
    down = replace(
        interval(30), state="down: refused", values={}, increments={}, histograms={}, counted_s=0.0
    )
    found = pool_series([interval(20), interval(25), down, interval(60)], step_s=5.0)
    line = dict(zip(found.times_s, found.kv_usage["a", "0"], strict=True))
    assert line[25.0] == 0.5 and line[30.0] is None and line[45.0] is None and line[60.0] == 0.5
    assert dict(zip(found.times_s, found.known, strict=True))[30.0] == 0


def test_nothing_gives_nothing() -> None:
    assert pool_series([], step_s=5.0).times_s == ()
    assert latency_series([], "ttft_s", step_s=5.0).reason is not None
    with pytest.raises(CapacityError, match="no interval"):
        merge([])


def test_percentiles_of_a_pool_are_those_of_the_summed_buckets() -> None:
    slow = replace(
        interval(5, target="b"),
        histograms={"ttft_s": HistogramDelta(bounds=(0.1, 1.0), counts=(0, 0, 9), sum=90.0)},
    )
    found = latency_series([interval(5), slow], "ttft_s", step_s=5.0)
    assert found.counts == (12,) and found.lines[0.5] == (1.0,)
    other = replace(slow, histograms={"ttft_s": HistogramDelta(bounds=(7.0,), counts=(1, 0), sum=1.0)})
    mixed = latency_series([interval(5), other], "ttft_s", step_s=5.0)
    assert mixed.lines[0.5] == (None,) and mixed.reason is not None and "share none" in mixed.reason


deltas = st.lists(st.integers(0, 50), min_size=4, max_size=4).map(
    lambda counts: HistogramDelta(bounds=(0.1, 0.5, 2.0), counts=tuple(counts), sum=float(sum(counts)))
)


@given(deltas, st.sampled_from([0.01, 0.5, 0.9, 0.99]))
def test_percentile_equals_the_window_quantile(delta: HistogramDelta, q: float) -> None:
    mine = percentile(q, delta)
    cumulative = tuple(count for _, count in delta.cumulative())
    theirs = quantile(q, Histogram(bounds=delta.bounds, counts=cumulative, sum=delta.sum))
    if mine is None:
        assert theirs.number is None
        return
    assert theirs.number == pytest.approx(mine.value, rel=1e-9)
    assert mine.low <= mine.value and (mine.high is None or mine.value <= mine.high)


@given(st.lists(deltas, min_size=1, max_size=6))
def test_merging_conserves_observations(found: list[HistogramDelta]) -> None:
    total = merge_histograms(found)
    assert total is not None
    assert total.count == sum(d.count for d in found)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.sampled_from([5.0, 20.0, 300.0]))
def test_thinning_conserves_tokens_and_keeps_the_peak(usage: list[float], step_s: float) -> None:
    found = [interval(5.0 * (i + 1), kv=kv) for i, kv in enumerate(usage)]
    thinned = thin(found, step_s=step_s)
    assert sum(i.increments["generation_tokens"] or 0 for i in thinned) == pytest.approx(10.0 * len(usage))
    assert max(i.value("kv_usage_peak") or 0 for i in thinned) == pytest.approx(max(usage))
    assert sum(i.seconds for i in thinned) == pytest.approx(5.0 * len(usage))


def test_different_buckets_are_merged_on_the_bounds_that_all_share() -> None:
    fine = HistogramDelta(bounds=(0.1, 0.25, 0.5, 1.0), counts=(10, 20, 30, 40, 0), sum=60.0)
    coarse = HistogramDelta(bounds=(0.25, 1.0, 4.0), counts=(50, 25, 20, 5), sum=90.0)
    intervals = [
        Interval(
            target=name,
            engine="0",
            model_name="m",
            end_s=1000.0,
            seconds=5.0,
            counted_s=5.0,
            histograms={"ttft_s": delta},
        )
        for name, delta in (("a", fine), ("b", coarse))
    ]
    found = latency_series(intervals, "ttft_s", step_s=10.0, quantiles=(0.4, 0.8, 0.99))
    # Up to 0.25 s: 30 + 50 of 200; up to 1.0 s: 100 + 75; the rest is above the highest shared bound.
    assert found.lines == {0.4: (0.25,), 0.8: (pytest.approx(0.25 + 0.75 * 80 / 95),), 0.99: (1.0,)}
    assert found.counts == (200,) and found.reason is None
    assert found.note == "engines have different buckets: merged on the 2 bounds that all share"
    total = merged(intervals, "ttft_s")
    assert total is not None and total.counts == (80, 95, 25) and total.sum == 150.0
    alone = latency_series(intervals[:1], "ttft_s", step_s=10.0)
    assert alone.note is None


@pytest.mark.parametrize("step_s", [5.0, 60.0, 2520.0])
def test_the_newest_reading_is_on_the_chart_however_wide_the_step(step_s: float) -> None:
    found = [interval(1000.0 + 5.0 * i, kv=0.5 if i < 19 else 0.9) for i in range(20)]
    series = pool_series(found, step_s=step_s)
    assert series.times_s[-1] == 1095.0
    assert series.kv_usage["a", "0"][-1] == 0.9
    assert series.totals["running"][-1] == 2.0


def test_histograms_read_less_often_than_gauges_make_a_line_without_gaps() -> None:
    found = [
        replace(one, histograms=one.histograms if i % 3 == 0 else {})
        for i, one in enumerate(interval(1200.0 + 60.0 * i) for i in range(30))
    ]
    series = latency_series(found, "ttft_s", step_s=60.0)
    assert len(series.times_s) == 10 and all(v is not None for v in series.lines[0.5])
    assert series.counts == (3,) * 10
