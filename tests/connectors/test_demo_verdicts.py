"""From a scripted incident to the verdict on screen: demonstration engine, pages, poller, view, without a
clock.
"""

from __future__ import annotations

import pytest

from capacity.telemetry import TargetSnapshot, down
from connectors.demo.metrics_text import render
from connectors.demo_engine import DemoPool
from connectors.errors import Unreachable
from connectors.live_view import LiveView, build
from connectors.poller import Poller, PollTarget
from connectors.scrape import snapshot_of

STEP_S = 2.0
WARM_UP_S = 120.0
START_S = 1_800_000_000.0


class Rehearsal:
    """A pool and a poller that share a clock which only the test moves."""

    def __init__(self, *, replicas: int = 3, release: str = "0.32.0") -> None:
        self.pool = DemoPool(replicas=replicas, release=release, warm_up_s=WARM_UP_S)
        self.at_s = 0.0
        names = [f"demo-{i}" for i in range(replicas)]
        self.poller = Poller(
            [PollTarget(name=name, scrape=self.never, demo=True) for name in names],
            interval_s=STEP_S,
            now=lambda: START_S + self.at_s,
            steady=lambda: self.at_s,
        )
        self.names = names

    @staticmethod
    def never() -> TargetSnapshot:
        raise Unreachable("not used")

    def step(self) -> LiveView:
        self.at_s += STEP_S
        for name, engine in zip(self.names, self.pool.engines, strict=True):
            engine.advance(WARM_UP_S + self.at_s)
            now_s = START_S + self.at_s
            if engine.is_down:
                snapshot = down(name, time_s=now_s, monotonic_s=self.at_s, reason="connection refused")
            else:
                snapshot = snapshot_of(
                    render([engine], wall_offset_s=START_S - WARM_UP_S).encode(),
                    target=name,
                    time_s=now_s,
                    monotonic_s=self.at_s,
                )
            self.poller.accept(name, snapshot, took_s=0.005)
        return build(self.poller.views(), now_s=START_S + self.at_s)

    def verdicts(self, seconds: float, *, until: frozenset[str] = frozenset()) -> list[str]:
        """Verdict names per step, up to the first one in ``until``."""
        found: list[str] = []
        while len(found) < seconds / STEP_S and not until & set(found):
            view = self.step()
            assert view.verdict is not None
            found.append(view.verdict.name)
        return found


def test_calm_is_never_an_alarm() -> None:
    assert set(Rehearsal().verdicts(100)) == {"healthy"}


@pytest.mark.parametrize(
    ("incident", "expected", "within_s"),
    [
        ("idle", {"idle"}, 120),
        ("ramp", {"KV-bound", "preempting"}, 240),
        ("preemption-storm", {"preempting"}, 120),
        ("prefill-bound", {"prefill-bound"}, 120),
        ("seat-bound", {"seat-bound"}, 60),
        ("stall", {"stalled"}, 4 + 5 * STEP_S),
        ("restart", {"restarting"}, 3 + 12 + 3 * STEP_S),
        ("hot-replica", {"imbalanced"}, 90),
        ("down", {"down"}, 2 * STEP_S),
    ],
)
def test_incidents_are_named(incident: str, expected: set[str], within_s: float) -> None:
    rehearsal = Rehearsal()
    rehearsal.verdicts(20)
    rehearsal.pool.set_incident(incident)
    seen = rehearsal.verdicts(within_s, until=frozenset(expected))
    assert expected & set(seen), seen


@pytest.mark.parametrize(
    ("incident", "after_s", "expected"),
    [
        ("calm", 60, "healthy"),
        ("idle", 60, "idle"),
        ("ramp", 230, "preempting"),
        ("preemption-storm", 110, "preempting"),
        ("prefill-bound", 110, "prefill-bound"),
        ("seat-bound", 60, "seat-bound"),
        ("stall", 20, "stalled"),
        ("hot-replica", 100, "imbalanced"),
        ("slow-scrape", 20, "healthy"),
        ("restart", 3 + 12 + 1, "restarting"),
        ("restart", 3 + 12 + 40, "healthy"),
    ],
)
def test_who_comes_late_knows_within_three_scrapes(incident: str, after_s: float, expected: str) -> None:
    rehearsal = Rehearsal()
    rehearsal.pool.set_incident(incident)
    rehearsal.at_s += after_s
    for engine in rehearsal.pool.engines:
        engine.advance(WARM_UP_S + rehearsal.at_s)
    assert rehearsal.verdicts(3 * STEP_S)[-1] == expected


def test_an_old_release_reads_the_same() -> None:
    old, new = Rehearsal(release="0.6.0"), Rehearsal(release="0.32.0")
    for rehearsal in (old, new):
        rehearsal.verdicts(30)
    before, after = old.step(), new.step()
    for name in ("kv_usage", "running", "generation_tokens_per_s"):
        assert before.pool is not None and after.pool is not None
        assert before.pool.number(name) == pytest.approx(after.pool.number(name))
    assert before.pool is not None and before.pool["kv_usage"].metric == "vllm:gpu_cache_usage_perc"
