"""Verdicts: each limit told apart from the others within three scrapes, with evidence, action and price."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.diagnosis import diagnose, down_verdict
from capacity.pool_diagnosis import diagnose_pool
from capacity.telemetry import (
    Breakdown,
    EngineSnapshot,
    EngineWindow,
    State,
    engine_signals,
    open_window,
    pool_signals,
    unknown,
)
from capacity.verdicts import NAMES, SEVERITIES, Severity, Verdict, actions, thresholds, verdict
from tests.capacity.test_telemetry import hist, snap

GOOD = {"running": 8, "waiting": 0, "kv_usage": 0.4}


def series(
    count: int = 3, *, step_s: float = 2.0, engine: str = "0", **readings: object
) -> list[EngineSnapshot]:
    """Scrapes ``step_s`` apart; a callable reading is called with the scrape's number."""
    return [
        snap(step_s * i, engine=engine, **{k: v(i) if callable(v) else v for k, v in readings.items()})
        for i in range(count)
    ]


def judge(snapshots: list[EngineSnapshot], **kwargs: float) -> Verdict:
    window = open_window(snapshots, target="t")
    return diagnose(window, engine_signals(window), **kwargs)


def flow(i: int) -> float:
    return 1000.0 + 500 * i


def steps(i: int, *, tokens: float = 100.0) -> object:
    n = 10.0 * (i + 1)
    return hist(0, n, n, bounds=(1.0, 8192.0), total=n * tokens)


def reasons(capacity: float, deferred: float) -> Breakdown:
    parts = {"capacity": capacity, "deferred": deferred}
    return Breakdown(parts=parts, label="reason", metric="vllm:num_requests_waiting_by_reason")


def sleeping(state: str) -> Breakdown:
    parts = {name: float(name == state) for name in ("awake", "weights_offloaded", "discard_all")}
    return Breakdown(parts=parts, label="sleep_state", metric="vllm:engine_sleep_state")


CASES: list[tuple[str, str, Severity, dict[str, object]]] = [
    ("served with room", "healthy", Severity.OK, {**GOOD, "generation_tokens": flow}),
    ("nothing to do", "idle", Severity.OK, {"running": 0, "waiting": 0, "kv_usage": 0.0, "generation_tokens": 5}),
    ("full and queueing", "KV-bound", Severity.CRITICAL,
     {"running": 60, "waiting": 9, "kv_usage": 0.97, "generation_tokens": flow}),
    ("above the act line", "KV-bound", Severity.WARNING,
     {"running": 60, "waiting": 0, "kv_usage": 0.86, "generation_tokens": flow}),
    ("running stands still below a queue", "seat-bound", Severity.WARNING,
     {"running": 64, "waiting": 30, "kv_usage": 0.3, "generation_tokens": flow, "step_tokens": steps}),
    ("steps full of prompts", "prefill-bound", Severity.WARNING,
     {"running": lambda i: 6 + i % 2, "waiting": 40, "kv_usage": 0.12, "generation_tokens": flow,
      "step_tokens": lambda i: steps(i, tokens=2000)}),
    ("few preemptions", "preempting", Severity.WARNING,
     {"running": 60, "waiting": 9, "kv_usage": 0.97, "generation_tokens": flow, "preemptions": lambda i: i // 2}),
    ("preemption storm", "preempting", Severity.CRITICAL,
     {"running": 60, "waiting": 9, "kv_usage": 0.97, "generation_tokens": flow, "preemptions": lambda i: 9 * i}),
    ("one lifetime preemption", "healthy", Severity.OK, {**GOOD, "generation_tokens": flow, "preemptions": 1}),
    ("waiting for adapters", "deferred", Severity.WARNING,
     {"running": 4, "waiting": 10, "kv_usage": 0.3, "generation_tokens": flow,
      "waiting_by_reason": reasons(1, 9)}),
    ("frozen", "stalled", Severity.CRITICAL,
     {"running": 20, "waiting": 30, "kv_usage": 0.97, "generation_tokens": 900, "prompt_tokens": 10,
      "step_tokens": steps(3)}),
    ("admits nothing", "stalled", Severity.CRITICAL,
     {"running": 0, "waiting": 6, "kv_usage": 0.0, "generation_tokens": 900}),
    ("put to sleep", "asleep", Severity.INFO,
     {"running": 0, "waiting": 0, "kv_usage": 0.0, "generation_tokens": 900,
      "sleep_state": sleeping("weights_offloaded")}),
    ("started anew", "restarting", Severity.WARNING,
     {**GOOD, "generation_tokens": lambda i: 900 if i < 2 else 20}),
    ("reports no load", "unknown", Severity.INFO,
     {"running": unknown(State.MISSING, "the engine reported NaN"), "waiting": 0, "kv_usage": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_three_scrapes_tell_it(case: tuple) -> None:
    _, name, severity, readings = case
    found = judge(series(**readings))
    assert (found.name, found.severity) == (name, severity)
    assert found.evidence and found.actions
    assert found.summary.lower().startswith((name.lower(), f"{name.lower()} as far"))
    shown = found.as_json()
    assert set(shown) >= {"name", "severity", "confidence", "evidence", "actions"}
    assert all("cost" in line for line in shown["actions"])


def young(age_s: float, **readings: object) -> list[EngineSnapshot]:
    """A series that begins after the engine's start: three scrapes, the newest ``age_s`` after it."""
    shots = series(**readings)
    return [
        replace(one, started_at_s=shots[-1].time_s + 1e9 - age_s, time_s=one.time_s + 1e9) for one in shots
    ]


@pytest.mark.parametrize(
    ("age_s", "name"), [(-3, "restarting"), (8, "restarting"), (31, "healthy"), (-60, "healthy")]
)
def test_a_series_that_begins_after_a_restart_says_so_where_the_start_time_shows_it(
    age_s: float, name: str
) -> None:
    found = judge(young(age_s, **GOOD, generation_tokens=lambda i: 20 + 5 * i))
    assert found.name == name
    if name == "restarting":
        assert f"it started {max(0, age_s)} s ago" in found.summary
    assert judge(young(40, **GOOD, generation_tokens=flow), interval_s=30).name == "restarting"


def test_after_three_scrapes_a_young_engine_is_healthy_and_says_its_age() -> None:
    shots = young(8, **GOOD, generation_tokens=flow)
    later = judge([replace(shots[0], time_s=shots[0].time_s - 1), *shots])
    assert later.name == "healthy"
    assert later.summary.endswith("it started 8 s ago")


def test_a_young_engine_keeps_its_own_verdict_and_an_idle_one_says_its_age() -> None:
    full = {"running": 60, "waiting": 9, "kv_usage": 0.97, "generation_tokens": flow}
    assert judge(young(8, **full)).name == "KV-bound"
    idle = judge(young(8, running=0, waiting=0, kv_usage=0.0, generation_tokens=0))
    assert (idle.name, idle.summary) == ("idle", "idle: no request is running or waiting; it started 8 s ago")


def test_an_engine_seen_from_its_first_request_on_is_healthy_and_says_its_age() -> None:
    grown = {"running": lambda i: min(i, 1), "generation_tokens": lambda i: 5.0 * i}
    found = judge(young(8, **(GOOD | grown)))
    assert found.name == "healthy"
    assert found.summary.endswith("it started 8 s ago")


def test_long_prefill_is_no_stall() -> None:
    """No token for a while, but steps go on: a long prompt is being read."""
    found = judge(series(running=1, waiting=0, kv_usage=0.2, generation_tokens=50, step_tokens=steps))
    assert found.name == "healthy"


def test_a_stall_without_a_step_counter_needs_longer() -> None:
    same = {"running": 20, "waiting": 30, "kv_usage": 0.6, "generation_tokens": 900, "prompt_tokens": 10}
    assert judge(series(3, **same)).name != "stalled"
    assert judge(series(6, **same)).name == "stalled"


def test_stall_at_all_deferred_is_deferred() -> None:
    found = judge(
        series(running=0, waiting=5, kv_usage=0.0, generation_tokens=9, waiting_by_reason=reasons(0, 5))
    )
    assert found.name == "deferred"


def test_a_single_waiting_request_is_no_verdict() -> None:
    found = judge(series(running=12, waiting=lambda i: i % 2, kv_usage=0.3, generation_tokens=flow))
    assert found.name == "healthy"


def test_known_seats_decide() -> None:
    def with_limits(seats: float) -> Verdict:
        snapshots = series(running=16, waiting=40, kv_usage=0.2, generation_tokens=flow)
        limited = [replace(s, config=replace(s.config, max_num_seqs=seats)) for s in snapshots]
        return judge(limited)

    assert with_limits(16).name == "seat-bound" and with_limits(16).confidence == "high"
    assert with_limits(64).name == "prefill-bound"


def test_old_values_are_stale() -> None:
    snapshots = series(**GOOD, generation_tokens=flow)
    assert judge(snapshots, now_s=5.0, interval_s=2.0).name == "healthy"
    found = judge(snapshots, now_s=64.0, interval_s=2.0)
    assert found.name == "stale" and "60 s old" in found.summary


def test_rejections_raise_a_quiet_verdict() -> None:
    def rejected(i: int) -> Breakdown:
        return Breakdown(parts={"max_num_queued_reqs": 10.0 * i}, label="reason", metric="r")

    found = judge(series(**GOOD, generation_tokens=flow, rejections=rejected))
    assert found.severity is Severity.WARNING
    assert any("rejected" in e.text for e in found.evidence)


def pool(**engines: list[EngineSnapshot]) -> tuple[dict[str, Verdict], list[EngineWindow]]:
    windows = [open_window(shots, target="t") for shots in engines.values()]
    return {name: judge(shots) for name, shots in engines.items()}, windows


def test_one_hot_replica_is_imbalance() -> None:
    hot = series(engine="a", running=60, waiting=12, kv_usage=0.95, generation_tokens=flow)
    calm = {e: series(engine=e, running=8, waiting=0, kv_usage=0.2, generation_tokens=flow) for e in "bc"}
    verdicts, windows = pool(a=hot, **calm)
    found = diagnose_pool(verdicts, pool_signals(windows))
    assert found.name == "imbalanced"
    assert found.severity is Severity.CRITICAL
    assert "a is loaded" in found.summary


def test_small_differences_are_no_imbalance() -> None:
    verdicts, windows = pool(
        a=series(engine="a", running=9, waiting=0, kv_usage=0.45, generation_tokens=flow),
        b=series(engine="b", running=2, waiting=0, kv_usage=0.10, generation_tokens=flow),
    )
    assert diagnose_pool(verdicts, pool_signals(windows)).name == "healthy"


def test_a_pool_takes_its_worst_verdict_and_names_who() -> None:
    verdicts, windows = pool(
        a=series(engine="a", **GOOD, generation_tokens=flow),
        b=series(engine="b", running=20, waiting=9, kv_usage=0.5, generation_tokens=9, step_tokens=steps(1)),
    )
    found = diagnose_pool(verdicts, pool_signals(windows))
    assert found.name == "stalled" and "1 of 2 engines (b)" in found.summary


def test_part_of_a_pool_down_is_a_warning_all_of_it_critical() -> None:
    verdicts, windows = pool(a=series(engine="a", **GOOD, generation_tokens=flow))
    down = {"gpu-2": "connection refused"}
    part = diagnose_pool(verdicts, pool_signals(windows, down=down), down=down)
    assert (part.name, part.severity) == ("down", Severity.WARNING)
    assert any("gpu-2: connection refused" in e.text for e in part.evidence)
    whole = diagnose_pool({}, pool_signals([], down=down), down=down)
    assert (whole.name, whole.severity) == ("down", Severity.CRITICAL)
    assert down_verdict("x").severity is Severity.CRITICAL


def test_tables_are_whole() -> None:
    for name in NAMES:
        assert actions(name), name
        assert all(one.cost and one.action for one in actions(name))
    lines = thresholds()
    assert lines["kv_act"].value == 0.80 and lines["kv_reject"].value == 0.85
    assert lines["kv_critical"].value == 0.95
    assert all(line.source and line.meaning and line.unit for line in lines.values())
    with pytest.raises(ValueError, match="not known"):
        verdict("great", SEVERITIES[0], judge(series(**GOOD)).confidence, "great")


def test_a_lull_between_two_bursts_is_no_recovery() -> None:
    """Every fifth second the queue is empty for a moment; blocks are lost all the same."""
    burst = series(
        7,
        step_s=5.0,
        running=lambda i: 30 * (i % 2),
        waiting=lambda i: 9 * (i % 2),
        kv_usage=lambda i: 0.99 * (i % 2),
        generation_tokens=flow,
        preemptions=lambda i: 15 * i,
    )
    for count in (4, 5, 6, 7):
        found = judge(burst[:count])
        assert (found.name, found.severity) == ("preempting", Severity.CRITICAL), count
        assert found.summary.endswith("no request at this moment") == (count % 2 == 1)


def test_an_empty_engine_after_preemptions_is_idle_after_three_scrapes_without_a_token() -> None:
    def at(i: int) -> float:
        return float(min(i, 2))

    readings = {"running": 0, "waiting": 0, "kv_usage": 0.0}
    quiet = series(6, generation_tokens=lambda i: 900 * at(i), preemptions=lambda i: 9 * at(i), **readings)
    assert [judge(quiet[:n]).name for n in (2, 3, 4, 5, 6)] == [
        "healthy", "preempting", "preempting", "idle", "idle"
    ]  # fmt: skip
