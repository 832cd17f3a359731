"""The poller: increments add up, failures are named, slow targets hold nobody up, memory is bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from capacity.interval_steps import between
from capacity.intervals import Interval
from capacity.telemetry import (
    Breakdown,
    EngineConfig,
    EngineSnapshot,
    Histogram,
    TargetSnapshot,
    Value,
    down,
)
from connectors.errors import Unreachable
from connectors.poller import MAX_BACKOFF_S, Poller, PollTarget
from connectors.ring import Ring

NAME = "http://a:8000/metrics"
NONE = EngineConfig(
    block_size=Value(value=16.0),
    num_blocks=Value(value=101.0),
    kv_capacity_tokens=Value(),
    max_concurrency=Value(),
)


def engine(at_s: float, tokens: float, *, started_s: float | None = 1.0, label: str = "0") -> EngineSnapshot:
    observed = tokens / 10
    return EngineSnapshot(
        engine=label,
        kind="vllm",
        model_name="m",
        release="0.32",
        time_s=1000 + at_s,
        monotonic_s=at_s,
        started_at_s=started_s,
        config=NONE,
        readings={
            "running": Value(value=3.0),
            "waiting": Value(value=1.0),
            "kv_usage": Value(value=0.5),
            "generation_tokens": Value(value=tokens),
            "finished": Breakdown(parts={"stop": tokens / 100, "repetition": 1.0}, label="finished_reason"),
            "ttft_s": Histogram(bounds=(0.1, 1.0), counts=(0.0, observed, observed), sum=observed / 2),
        },
    )


def snapshot(at_s: float, *engines: EngineSnapshot, rejected: float = 0.0) -> TargetSnapshot:
    return TargetSnapshot(
        target=NAME,
        time_s=1000 + at_s,
        monotonic_s=at_s,
        engines=engines,
        scrape_s=0.01,
        payload_bytes=1000,
        shared={"rejections": Breakdown(parts={"queue": rejected}, label="reason")},
    )


def never() -> TargetSnapshot:
    raise Unreachable("refused")


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def poller(clock: Clock) -> Poller:
    return Poller([PollTarget(name=NAME, scrape=never)], interval_s=5.0, now=clock, steady=clock)


def feed(poller: Poller, clock: Clock, snap: TargetSnapshot) -> Interval:
    assert snap.monotonic_s is not None
    clock.at = snap.monotonic_s
    poller.accept(NAME, snap, took_s=0.01)
    return poller.intervals(0.0)[-1]


def test_first_scrape_has_gauges_and_no_rates(poller: Poller, clock: Clock) -> None:
    first = feed(poller, clock, snapshot(0, engine(0, 1e6)))
    assert first.value("kv_usage") == 0.5 and first.increments == {} and first.histograms == {}
    assert first.rate("generation_tokens") is None


def test_rises_are_counted_between_scrapes(poller: Poller, clock: Clock) -> None:
    feed(poller, clock, snapshot(0, engine(0, 1000), rejected=2))
    later = feed(poller, clock, snapshot(5, engine(5, 1600), rejected=5))
    assert later.rate("generation_tokens") == pytest.approx(120)
    assert later.increments["finished_stop"] == pytest.approx(6)
    assert later.increments["finished_other"] == 0.0
    assert later.increments["rejections"] == 3
    assert later.histograms["ttft_s"].counts == (0, 60, 0)


def test_a_restart_gives_no_negative_rate(poller: Poller, clock: Clock) -> None:
    feed(poller, clock, snapshot(0, engine(0, 50_000)))
    reset = feed(poller, clock, snapshot(5, engine(5, 100)))
    assert reset.increments == {} and reset.counted_s == 0.0
    moved = feed(poller, clock, snapshot(10, engine(10, 90_000, started_s=9.0)))
    assert moved.increments == {} and moved.counted_s == 0.0
    after = feed(poller, clock, snapshot(15, engine(15, 90_500, started_s=9.0)))
    assert after.rate("generation_tokens") == pytest.approx(100)


def test_a_gap_is_neither_lost_nor_counted_twice(poller: Poller, clock: Clock) -> None:
    feed(poller, clock, snapshot(0, engine(0, 0)))
    gap = feed(poller, clock, down(NAME, time_s=1005, monotonic_s=5, reason="connection refused"))
    assert gap.state == "down: connection refused" and gap.values == {} and gap.engine == "0"
    back = feed(poller, clock, snapshot(10, engine(10, 1000)))
    assert (back.seconds, back.counted_s) == (5.0, 10.0)
    assert back.rate("generation_tokens") == pytest.approx(100)


def test_several_engines_share_a_target_and_its_rejections_count_once(poller: Poller, clock: Clock) -> None:
    feed(poller, clock, snapshot(0, engine(0, 0), engine(0, 0, label="1")))
    feed(poller, clock, snapshot(5, engine(5, 100), engine(5, 300, label="1"), rejected=4))
    newest = [i for i in poller.intervals(0) if i.end_s == 1005]
    assert [i.engine for i in newest] == ["0", "1"]
    assert sum(i.increments.get("rejections") or 0 for i in newest) == 4


def test_changed_bucket_bounds_give_no_histogram() -> None:
    new = engine(5, 100)
    old = replace(
        engine(0, 0),
        readings={**engine(0, 0).readings, "ttft_s": Histogram(bounds=(9.0,), counts=(0.0, 0.0), sum=0.0)},
    )
    found = between(old, new, target=NAME, seconds=5)
    assert "ttft_s" not in found.histograms and found.rate("generation_tokens") == 20


def test_backing_off_grows_to_a_minute_and_ends_at_once(poller: Poller, clock: Clock) -> None:
    pauses = [poller.pause_s(failures, 0.0) for failures in range(9)]
    assert pauses[:4] == [5.0, 5.0, 5.0, 10.0] and pauses == sorted(pauses) and pauses[-1] == MAX_BACKOFF_S
    assert poller.pause_s(0, 3.0) == pytest.approx(15.0)
    for i in range(5):
        feed(poller, clock, down(NAME, time_s=1000 + i, monotonic_s=float(i), reason="no"))
    view = poller.views()[0]
    assert view.failures == 5 and view.slowed is not None and "5 failures" in view.slowed
    feed(poller, clock, snapshot(9, engine(9, 0)))
    assert poller.views()[0].slowed is None


def test_own_load_is_shown(poller: Poller, clock: Clock) -> None:
    for i in range(4):
        clock.at = 5.0 * i
        poller.accept(NAME, snapshot(clock.at, engine(clock.at, 0)), took_s=0.1)
    load = poller.views()[0].load
    assert load.scrapes == 4
    assert load.scrapes_per_s == pytest.approx(0.2)
    assert load.busy_share == pytest.approx(0.02)
    assert load.bytes_per_s == pytest.approx(200)


def test_a_ring_is_bounded_and_conserves_tokens() -> None:
    ring = Ring(50)
    template = between(engine(0, 0), engine(5, 50), target=NAME, seconds=5)
    for i in range(400):
        ring.append(replace(template, end_s=1000 + 5.0 * i))
    assert len(ring.items) <= 50
    assert sum(i.increments["generation_tokens"] or 0 for i in ring.items) == 400 * 50
    assert ring.items[-1].seconds == 5 and ring.items[0].seconds > 20
    assert [i.end_s for i in ring.items] == sorted(i.end_s for i in ring.items)


def counting(answers: list[float], wait_s: float, label: str) -> Callable[[], TargetSnapshot]:
    def scrape() -> TargetSnapshot:
        time.sleep(wait_s)
        answers.append(time.monotonic())
        return replace(snapshot(time.monotonic(), engine(time.monotonic(), 0)), target=label)

    return scrape


@pytest.fixture
def running() -> Iterator[list[Poller]]:
    started: list[Poller] = []
    yield started
    for poller in started:
        poller.stop()


def test_slow_targets_hold_nobody_up(running: list[Poller]) -> None:
    fast: list[float] = []
    slow: list[float] = []
    targets = [PollTarget(name=f"slow{i}", scrape=counting(slow, 2.0, f"slow{i}")) for i in range(20)]
    targets.append(PollTarget(name="fast", scrape=counting(fast, 0.0, "fast")))
    poller = Poller(targets, interval_s=0.1)
    running.append(poller)
    poller.start()
    poller.start()
    deadline = time.monotonic() + 10
    while len(fast) < 10 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(fast) >= 10 and len(slow) < 20


def test_stop_ends_every_thread_and_keeps_what_was_read(running: list[Poller]) -> None:
    kept: list[Interval] = []
    answers: list[float] = []
    before = set(threading.enumerate())
    poller = Poller(
        [PollTarget(name="a", scrape=counting(answers, 0.0, "a"))], interval_s=0.05, keep=kept.extend
    )
    poller.start()
    deadline = time.monotonic() + 10
    while len(answers) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    poller.stop()
    assert set(threading.enumerate()) <= before
    assert len(kept) == len(answers) >= 5


def test_what_keeping_raises_is_reported_and_polling_goes_on(running: list[Poller]) -> None:
    def broken(_: list[Interval]) -> None:
        raise OSError("disk on fire")

    answers: list[float] = []
    poller = Poller([PollTarget(name="a", scrape=counting(answers, 0.0, "a"))], interval_s=0.05, keep=broken)
    running.append(poller)
    poller.start()
    deadline = time.monotonic() + 10
    while (len(answers) < 6 or poller.problem is None) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(answers) >= 6 and "disk on fire" in (poller.problem or "")


def test_targets_can_change_while_it_runs(running: list[Poller]) -> None:
    first: list[float] = []
    second: list[float] = []
    poller = Poller([PollTarget(name="a", scrape=counting(first, 0.0, "a"))], interval_s=0.05)
    running.append(poller)
    poller.start()
    poller.set_targets([PollTarget(name="b", scrape=counting(second, 0.0, "b"))])
    deadline = time.monotonic() + 10
    while len(second) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [v.name for v in poller.views()] == ["b"] and len(second) >= 3


def test_an_error_inside_a_scrape_is_a_reason_not_a_crash(running: list[Poller]) -> None:
    def broken() -> TargetSnapshot:
        raise ZeroDivisionError("secret detail")

    poller = Poller([PollTarget(name="a", scrape=broken)], interval_s=0.05)
    running.append(poller)
    poller.start()
    deadline = time.monotonic() + 10
    while not poller.views()[0].snapshots and time.monotonic() < deadline:
        time.sleep(0.01)
    reason = poller.views()[0].snapshots[0].reason
    assert reason == "scraping failed inside Waterline: ZeroDivisionError"


def test_pauses_between_tries_do_not_make_memory_coarse() -> None:
    """A target that is down is asked less often; what was read before is still the finest there is."""
    poller = Poller([PollTarget(name=NAME, scrape=lambda: pytest.fail("not asked"))], interval_s=2.0)
    for i in range(10):
        poller.accept(NAME, snapshot(2.0 * i, engine(2.0 * i, 10.0 * i)), took_s=0.01)
    fine_s = poller.fine_since_s(5.0)
    for wait_s in (2.0, 6.0, 14.0, 30.0):
        gone = down(NAME, time_s=1018.0 + wait_s, monotonic_s=18.0 + wait_s, reason="refused")
        poller.accept(NAME, gone, took_s=0.01)
    assert fine_s is not None and poller.fine_since_s(5.0) == fine_s


def test_a_server_that_repeats_a_stored_sample_adds_no_interval() -> None:
    """Prometheus scrapes every 15 s and is asked every 5: three answers, one new sample."""
    poller = Poller([PollTarget(name=NAME, scrape=lambda: pytest.fail("not asked"))], interval_s=5.0)
    for i in range(13):
        stored = 15.0 * (i // 3)
        one = replace(engine(stored, stored), monotonic_s=None)
        poller.accept(NAME, replace(snapshot(5.0 * i, one), monotonic_s=None), took_s=0.01)
    found = poller.intervals(0.0)
    assert [i.end_s for i in found] == [1000.0, 1015.0, 1030.0, 1045.0, 1060.0]
    assert [i.rate("generation_tokens") for i in found] == [None, 1.0, 1.0, 1.0, 1.0]
    assert [i.seconds for i in found[1:]] == [15.0] * 4
