"""Windows, percentiles and pools: restarts, missing points, merged buckets, and properties that always hold."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.errors import CapacityError
from capacity.telemetry import (
    SIGNALS,
    Breakdown,
    EngineConfig,
    EngineSnapshot,
    Histogram,
    Reading,
    State,
    Value,
    engine_signals,
    merge,
    open_window,
    pool_signals,
    quantile,
    unknown,
)

NONE = unknown(State.MISSING, "not given")


def config(**numbers: float) -> EngineConfig:
    values = {name: NONE for name in ("block_size", "num_blocks", "kv_capacity_tokens", "max_concurrency")}
    return EngineConfig(**(values | {name: Value(value=number) for name, number in numbers.items()}))


def snap(
    t: float,
    *,
    engine: str = "0",
    mono: float | None = None,
    started: float | None = None,
    capacity: float | None = None,
    **readings: float | Reading | None,
) -> EngineSnapshot:
    kept = {
        name: reading if isinstance(reading, Value | Breakdown | Histogram) else Value(value=float(reading), metric=name)
        for name, reading in readings.items()
        if reading is not None
    }  # fmt: skip
    return EngineSnapshot(
        engine=engine,
        kind="vllm",
        model_name="m",
        release=None,
        time_s=t,
        monotonic_s=mono,
        started_at_s=started,
        readings=kept,
        config=config(**({"kv_capacity_tokens": capacity} if capacity else {})),
    )


def hist(*counts: float, bounds: tuple[float, ...] = (0.1, 1.0), total: float | None = None) -> Histogram:
    return Histogram(bounds=bounds, counts=counts, sum=total, metric="h")


def prometheus_quantile(q: float, bounds: list[float], counts: list[float]) -> float:
    """histogram_quantile as Prometheus 2.42 computes it (bucketQuantile), written out again."""
    rank = q * counts[-1]
    b = next((i for i in range(len(counts) - 1) if counts[i] >= rank), len(counts) - 1)
    if b == len(counts) - 1:
        return bounds[-1]
    start, count = 0.0, counts[b]
    if b > 0:
        start = bounds[b - 1]
        count -= counts[b - 1]
        rank -= counts[b - 1]
    return start + (bounds[b] - start) * (rank / count)


buckets = st.lists(st.integers(0, 500), min_size=2, max_size=24).filter(lambda found: sum(found) > 0)


@given(buckets, st.floats(0.001, 0.999))
def test_quantiles_are_those_of_prometheus_and_lie_in_their_bucket(found: list[int], q: float) -> None:
    bounds = [0.001 * 2**i for i in range(len(found) - 1)]
    counts = [float(sum(found[: i + 1])) for i in range(len(found))]
    value = quantile(q, Histogram(bounds=tuple(bounds), counts=tuple(counts), sum=None))
    assert value.value == pytest.approx(prometheus_quantile(q, bounds, counts), rel=1e-9)
    assert value.count == counts[-1]
    if value.state is State.ABOVE_HIGHEST:
        assert value.low == bounds[-1] and value.high is None
    else:
        assert value.low <= value.value <= value.high
        assert value.low == 0.0 or value.low in bounds
        assert (value.state is State.BELOW_LOWEST) == (value.low == 0.0)


def test_quantile_without_observations_is_unknown() -> None:
    value = quantile(0.5, hist(0, 0, 0))
    assert value.value is None and value.state is State.MISSING and "no observations" in value.reason
    with pytest.raises(CapacityError):
        quantile(1.0, hist(1, 1, 1))


@given(buckets, buckets)
def test_merging_equal_buckets_adds_counts(one: list[int], two: list[int]) -> None:
    size = min(len(one), len(two))
    bounds = tuple(float(i + 1) for i in range(size - 1))

    def of(found: list[int]) -> Histogram:
        return Histogram(
            bounds=bounds, counts=tuple(float(sum(found[: i + 1])) for i in range(size)), sum=None
        )

    merged = merge([of(one), of(two)])
    assert isinstance(merged, Histogram)
    assert merged.counts == tuple(a + b for a, b in zip(of(one).counts, of(two).counts, strict=True))


def test_merging_different_buckets_is_exact_on_shared_bounds_or_refused() -> None:
    merged = merge([hist(1, 2, 3, bounds=(0.1, 1.0)), hist(4, 5, 6, 7, bounds=(0.2, 1.0, 5.0))])
    assert isinstance(merged, Histogram)
    assert merged.bounds == (1.0,) and merged.counts == (7, 10)
    assert "share" in merged.reason
    refused = merge([hist(1, 2, bounds=(0.1,)), hist(1, 2, bounds=(0.2,))])
    assert isinstance(refused, Value) and refused.value is None and "share no bound" in refused.reason


def test_rate_is_the_difference_over_elapsed_time() -> None:
    window = open_window([snap(t, generation_tokens=n) for t, n in ((0, 100), (5, 150), (10, 700))])
    assert engine_signals(window)["generation_tokens_per_s"].value == 60.0
    assert window.seconds == 10


def test_the_steady_clock_wins_over_the_wall_clock() -> None:
    window = open_window(
        [snap(1000, mono=0, generation_tokens=0), snap(-2600, mono=5, generation_tokens=500)]
    )
    assert engine_signals(window)["generation_tokens_per_s"].value == 100.0


def test_a_wall_clock_set_back_gives_no_rate() -> None:
    window = open_window([snap(1000, generation_tokens=0), snap(400, generation_tokens=500)])
    value = engine_signals(window)["generation_tokens_per_s"]
    assert value.value is None and "one scrape" in value.reason


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=12))
def test_no_sequence_of_counter_values_gives_a_negative_rate(values: list[int]) -> None:
    window = open_window([snap(5.0 * i, generation_tokens=v) for i, v in enumerate(values)])
    value = engine_signals(window)["generation_tokens_per_s"]
    expected = sum(b - a if b >= a else b for a, b in pairwise(values)) / (5 * (len(values) - 1))
    assert value.value == pytest.approx(expected) and value.value >= 0
    fell = any(b < a for a, b in pairwise(values))
    assert value.state is (State.RESET if fell else State.OK)
    assert window.restarts == sum(b < a for a, b in pairwise(values))


def test_a_restart_is_seen_by_its_start_time_even_when_counters_rose() -> None:
    window = open_window(
        [snap(0, started=100.0, generation_tokens=50), snap(60, started=150.0, generation_tokens=80)]
    )
    value = engine_signals(window)["generation_tokens_per_s"]
    assert value.value == pytest.approx(80 / 60) and value.state is State.RESET
    assert window.last_restart == 0


def test_a_restart_makes_histograms_count_from_zero() -> None:
    window = open_window(
        [
            snap(0, generation_tokens=50, ttft_s=hist(5, 9, 9, total=4.0)),
            snap(5, generation_tokens=10, ttft_s=hist(1, 2, 2, total=0.5)),
        ]
    )
    found = window.histograms["ttft_s"]
    assert isinstance(found, Histogram)
    assert found.counts == (1, 2, 2) and found.sum == 0.5 and found.state is State.RESET


def test_one_snapshot_gives_no_rate_and_says_so() -> None:
    one = snap(0, generation_tokens=50, ttft_s=hist(5, 9, 9, total=4.0))
    live = engine_signals(open_window([one]))
    assert live["generation_tokens_per_s"].value is None
    assert live["ttft_s.p50"].value is None and "two" in live["ttft_s.p50"].reason
    file = engine_signals(open_window([one], single="since start"))
    assert file["generation_tokens_per_s"].reason == "a rate needs two scrapes"
    assert file["ttft_s.p50"].value is not None
    assert "since the engine started" in file["ttft_s.p50"].reason


def test_blank_latency_in_a_stall_is_not_filled_from_the_lifetime() -> None:
    same = {"generation_tokens": 50, "ttft_s": hist(5, 9, 9, total=4.0)}
    signals = engine_signals(open_window([snap(0, **same), snap(5, **same)]))
    assert signals["ttft_s.p99"].value is None
    assert signals["generation_tokens_per_s"].value == 0


def test_counters_missing_for_a_scrape_leave_a_right_rate() -> None:
    window = open_window(
        [
            snap(0, generation_tokens=0, running=1),
            snap(5, running=1),
            snap(10, generation_tokens=100, running=1),
        ]
    )
    assert engine_signals(window)["generation_tokens_per_s"].value == 10


def test_buckets_that_change_in_the_window() -> None:
    window = open_window(
        [
            snap(0, ttft_s=hist(5, 9, 9)),
            snap(5, ttft_s=hist(1, 2, bounds=(0.5,))),
            snap(10, ttft_s=hist(3, 6, bounds=(0.5,))),
        ]
    )
    found = window.histograms["ttft_s"]
    assert isinstance(found, Histogram) and found.counts == (2, 4) and found.state is State.RESET


def test_a_finish_reason_that_appears_counts_from_zero() -> None:
    before = Breakdown(parts={"stop": 10}, label="finished_reason", metric="f")
    after = Breakdown(parts={"stop": 15, "abort": 5}, label="finished_reason", metric="f")
    signals = engine_signals(open_window([snap(0, finished=before), snap(10, finished=after)]))
    assert signals["finished_by_reason"].value == {"stop": 5, "abort": 5}
    assert signals["requests_per_s"].value == 1.0
    assert signals["abort_share"].value == 0.5


def test_every_named_signal_is_there_and_unknown_ones_say_why() -> None:
    signals = engine_signals(open_window([snap(0, running=1)]))
    for name in SIGNALS:
        value = signals[name]
        assert value.known or value.reason, name
        assert value.value != 0 or name == "running"


def test_values_are_never_nan() -> None:
    with pytest.raises(CapacityError):
        Value(value=math.nan)
    with pytest.raises(CapacityError):
        Value(value=math.inf)


def pool_of(*engines: dict[str, float | Reading | None]) -> list:
    return [open_window([snap(0, engine=str(i), **one)], target="t") for i, one in enumerate(engines)]


def test_pool_shows_worst_and_spread_of_kv_and_totals_of_counts() -> None:
    signals = pool_signals(
        pool_of(
            {"running": 3, "kv_usage": 0.1}, {"running": 9, "kv_usage": 0.9}, {"running": 0, "kv_usage": 0.2}
        )
    )
    assert signals["running"].value == 12
    assert signals["kv_usage"].value == 0.9
    assert signals["kv_usage"].by_engine == {"0": 0.1, "1": 0.9, "2": 0.2}


def test_an_unknown_engine_makes_a_total_partial() -> None:
    signals = pool_signals(pool_of({"running": 3}, {"running": unknown(State.MISSING, "NaN")}))
    assert signals["running"].value == 3
    assert signals["running"].state is State.PARTIAL
    assert "without 1" in signals["running"].reason


def test_a_pool_that_is_down_has_no_number() -> None:
    signals = pool_signals([], down={"a": "refused"})
    assert all(v.value is None and v.state is State.DOWN for v in signals.values.values())
    assert set(SIGNALS) <= set(signals.values)


def test_pool_percentiles_are_of_all_observations() -> None:
    windows = [
        open_window([snap(0, engine=e, itl_s=hist(0, 0, 0)), snap(5, engine=e, itl_s=hist(*c))], target="t")
        for e, c in (("0", (90, 90, 90)), ("1", (0, 10, 10)))
    ]
    value = pool_signals(windows)["itl_s.p99"]
    assert value.value == pytest.approx(0.1 + 0.9 * (99 - 90) / 10)
    assert value.count == 100


def test_hit_rate_of_a_pool_weighs_by_lookups() -> None:
    windows = [
        open_window(
            [
                snap(0, engine=e, prefix_hits=0, prefix_queries=0),
                snap(5, engine=e, prefix_hits=h, prefix_queries=q),
            ],
            target="t",
        )
        for e, h, q in (("0", 90, 100), ("1", 0, 900))
    ]
    assert pool_signals(windows)["prefix_cache_hit_rate"].value == pytest.approx(0.09)


def test_preemptions_are_priced_in_tokens() -> None:
    signals = engine_signals(
        open_window(
            [
                snap(0, preemptions=0, running=10, kv_usage=0.9, capacity=100_000),
                snap(10, preemptions=20, running=10, kv_usage=0.9, capacity=100_000),
            ]
        )
    )
    assert signals["recomputed_tokens_per_s"].value == pytest.approx(2 * 9_000)


@given(st.lists(st.integers(0, 50), min_size=3, max_size=20))
def test_a_window_counts_what_its_parts_count(steps: list[int]) -> None:
    """Whatever the scrapes in between, the window's increase is the sum of its intervals' increases."""
    totals = [sum(steps[: i + 1]) for i in range(len(steps))]
    shots = [snap(5.0 * i, generation_tokens=v, itl_s=hist(v, v, v)) for i, v in enumerate(totals)]
    whole = open_window(shots)
    parts = [open_window(pair) for pair in pairwise(shots)]
    assert whole.increase("generation_tokens").amount == sum(
        p.increase("generation_tokens").amount for p in parts
    )
    assert whole.histograms["itl_s"].count == sum(p.histograms["itl_s"].count for p in parts)
