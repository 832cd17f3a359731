"""Time to full: the published case, exact ramps, and everything that must be refused with a reason."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.errors import CapacityError
from capacity.forecast import time_to_full

C131 = ([0, 10, 20, 30, 40, 50], [0.912, 0.916, 0.919, 0.924, 0.928, 0.932])


def test_c131_creep_from_91_percent() -> None:
    found = time_to_full(*C131, inflow_tokens_per_s=240)
    assert found.expected_s == pytest.approx(170, rel=0.05)
    assert found.low_s < 170 < found.high_s
    assert found.pool_tokens == pytest.approx(600_000, rel=0.03)


@given(st.floats(0.05, 0.8), st.floats(0.0005, 0.004), st.integers(6, 40))
def test_a_straight_ramp_is_forecast_exactly(start: float, slope: float, points: int) -> None:
    times = [2.0 * i for i in range(points)]
    usage = [start + slope * t for t in times]
    if usage[-1] >= 0.99:
        return
    found = time_to_full(times, usage)
    assert found.expected_s == pytest.approx((1 - usage[-1]) / slope, rel=1e-3)
    assert found.low_s <= found.expected_s <= found.high_s


@pytest.mark.parametrize("seed", range(8))
def test_the_interval_usually_holds_the_truth(seed: int) -> None:
    rng = random.Random(seed)
    held = 0
    for _ in range(50):
        times = [5.0 * i for i in range(20)]
        usage = [0.5 + 0.002 * t + rng.gauss(0, 0.01) for t in times]
        truth = (1 - (0.5 + 0.002 * times[-1])) / 0.002
        found = time_to_full(times, usage)
        held += found.low_s is not None and found.low_s * 0.9 <= truth <= found.high_s * 1.1
    assert held >= 42


@pytest.mark.parametrize(
    ("times", "usage", "words"),
    [
        ([0, 5], [0.5, 0.6], "too few"),
        ([], [], "too few"),
        ([0, 1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4, 0.5], "too few"),
        ([0, 5, 10, 15, 20, 25], [None] * 6, "too few"),
        ([0, 10, 20, 30, 40, 50], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], "falling"),
        ([0, 10, 20, 30, 40, 50], [0.5] * 6, "not rising"),
        ([0, 10, 20, 30, 40, 50], [0.2, 0.9, 0.1, 0.8, 0.3, 0.9], "noisy"),
        ([0, 10, 5, 30, 40, 50], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "order"),
        ([0, 10, 20, 30, 40, 50], [0.10001 + 0.0000001 * i for i in range(6)], "24 h"),
    ],
)
def test_refused_with_a_reason(times: list[float], usage: list[float | None], words: str) -> None:
    found = time_to_full(times, usage)
    assert found.expected_s is None and found.low_s is None and found.high_s is None
    assert words in found.reason


def test_full_is_full_now() -> None:
    found = time_to_full([0, 10, 20, 30, 40], [0.8, 0.9, 1.0, 1.0, 1.0])
    assert found.expected_s == 0.0 and found.reason == "full now"


def test_unknown_usages_are_left_out() -> None:
    times, usage = C131
    found = time_to_full([*times, 60], [*usage, math.nan])
    assert found.points == 6
    with pytest.raises(CapacityError):
        time_to_full([0, 1], [0.5])


def test_inflow_bounds_the_fast_end() -> None:
    times = [5.0 * i for i in range(10)]
    usage = [0.5 + 0.001 * t + (0.004 if i % 2 else -0.004) for i, t in enumerate(times)]
    free = time_to_full(times, usage)
    bound = time_to_full(times, usage, inflow_tokens_per_s=1_000, capacity_tokens=1_000_000)
    assert bound.low_s >= free.low_s
    assert bound.low_s <= bound.expected_s <= bound.high_s


def test_a_rise_that_has_just_begun_is_seen_once_the_pool_is_over_half_full() -> None:
    times = [2.0 * i for i in range(32)]
    wiggle = [0.02 * math.sin(1.7 * i) for i in range(32)]
    level = [0.2 + max(0.0, 0.03 * (t - 40.0)) for t in times]
    usage = [u + w for u, w in zip(level, wiggle, strict=True)]
    found = time_to_full(times, usage)
    truth = (1 - level[-1]) / 0.03
    assert found.low_s is not None and found.low_s <= truth <= found.high_s
    assert found.points < 20
    low = time_to_full(times, [u - 0.4 * (u > 0.45) for u in usage])
    assert low.expected_s is None


def test_a_level_pool_over_half_full_gives_no_forecast() -> None:
    rng = random.Random(3)
    told = 0
    for _ in range(300):
        usage = [0.75 + rng.gauss(0, 0.03) for _ in range(32)]
        told += time_to_full([2.0 * i for i in range(32)], usage).expected_s is not None
    assert told <= 10


def test_a_wandering_pool_far_from_full_is_not_forecast() -> None:
    """KV usage that walks at random has slopes by chance; none of them reaches to the top."""
    rng = random.Random(11)
    told = 0
    for _ in range(300):
        usage = [0.25]
        for _ in range(31):
            usage.append(min(0.45, max(0.05, usage[-1] + rng.gauss(0, 0.03))))
        told += time_to_full([2.0 * i for i in range(32)], usage).expected_s is not None
    assert told <= 30
