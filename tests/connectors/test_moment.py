"""A past moment is judged by the rules of the live page: same verdict from kept readings as from scrapes."""

from __future__ import annotations

import time

import pytest

from connectors.demo_engine import DemoPool
from connectors.moment import metrics_of, moment_of, view_at
from connectors.poller import PollTarget
from connectors.scrape import snapshot_of
from connectors.service import LiveService

STEP_S = 5.0


def watched(incident: str, *, seconds: float) -> LiveService:
    """A service that saw ``seconds`` of an incident of the demonstration pool, without sockets or waiting."""
    pool = DemoPool(replicas=3, warm_up_s=60.0)
    names = [f"demo-{i}" for i in range(3)]
    service = LiveService(history_path=":memory:", interval_s=STEP_S, demo=False)
    service.set_targets(
        [PollTarget(name=n, scrape=lambda: pytest.fail("not asked"), demo=True) for n in names]
    )
    past = list(pool.rehearse(60.0, step_s=STEP_S))
    pool.set_incident(incident)
    past += list(pool.rehearse(seconds, step_s=STEP_S))
    wall, steady = time.time(), time.monotonic()
    for index, name in enumerate(names):
        service.poller.backfill(
            name,
            (
                snapshot_of(
                    texts[index].encode(),
                    target=name,
                    time_s=wall - (len(past) - 1 - i) * STEP_S,
                    monotonic_s=steady - (len(past) - 1 - i) * STEP_S,
                )
                for i, (_, texts) in enumerate(past)
            ),
        )
    return service


@pytest.mark.parametrize(
    ("incident", "seconds"),
    [("calm", 60.0), ("ramp", 240.0), ("preemption-storm", 90.0), ("stall", 60.0), ("hot-replica", 120.0)],
)
def test_kept_readings_give_the_verdict_of_the_moment(incident: str, seconds: float) -> None:
    service = watched(incident, seconds=seconds)
    live = service.view()
    past = service.view_at(live.at_s)
    assert live.verdict is not None and past.verdict is not None
    assert past.verdict.name == live.verdict.name
    assert past.verdict.severity is live.verdict.severity
    assert past.verdict.actions == live.verdict.actions
    assert {e.name: e.verdict.name for e in past.engines} == {e.name: e.verdict.name for e in live.engines}
    assert {e.metric for e in past.verdict.evidence} == {e.metric for e in live.verdict.evidence}
    for name in ("running", "waiting", "kv_usage"):
        assert past.pool is not None and live.pool is not None
        assert past.pool.number(name) == pytest.approx(live.pool.number(name))


def test_an_earlier_moment_is_judged_by_what_was_known_then() -> None:
    service = watched("ramp", seconds=240.0)
    now = service.view()
    before = service.view_at(now.at_s - 260.0)
    assert before.verdict is not None and before.verdict.severity.value == "ok"
    assert now.verdict is not None and now.verdict.severity.value != "ok"


def test_nothing_kept_is_no_verdict() -> None:
    found = view_at([], at_s=1000.0)
    assert found.verdict is None and found.engines == ()
    assert moment_of(found).verdict is None
    assert metrics_of([]) == {}
