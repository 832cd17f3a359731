"""Verdicts near a boundary: what an on-call engineer would say where two limits or two readings disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.diagnosis import diagnose
from capacity.pool_diagnosis import diagnose_pool
from capacity.telemetry import EngineSnapshot, engine_signals, open_window, pool_signals
from capacity.verdicts import Verdict
from tests.capacity.test_diagnosis import flow, judge, reasons, series, sleeping, steps

FULL = {"running": 40, "waiting": 9, "kv_usage": 0.97, "generation_tokens": flow}
FROZEN = {"generation_tokens": 1000, "prompt_tokens": 50, "step_tokens": steps(3)}
SEATED = {"running": 16, "kv_usage": 0.2, "generation_tokens": flow}


def seated(seats: float, **readings: object) -> list[EngineSnapshot]:
    """Three scrapes of an engine whose max_num_seqs is known."""
    return [replace(s, config=replace(s.config, max_num_seqs=seats)) for s in series(**readings)]


# what is seen, name, severity, words of the summary
EDGES: list[tuple[str, list[EngineSnapshot], str, str, str]] = [
    ("all seats taken, nobody waits", seated(16, **SEATED, waiting=0), "healthy", "ok", "with room"),
    ("one waits at one scrape", seated(16, **SEATED, waiting=lambda i: i // 2), "healthy", "ok", ""),
    ("one waits at three scrapes", seated(16, **SEATED, waiting=1), "seat-bound", "warning", "all seats"),
    ("seats taken and KV over the act line", seated(16, **(SEATED | {"kv_usage": 0.85}), waiting=9),
     "seat-bound", "warning", "fills up as well (85.0%)"),
    ("seats taken and KV critical", seated(40, **FULL), "KV-bound", "critical", "9 requests wait for blocks"),
    ("KV critical, nobody waits", series(**(FULL | {"waiting": 0})), "KV-bound", "warning", "97 % full"),
    ("KV a hair below the act line", series(**(FULL | {"waiting": 0, "kv_usage": 0.799})), "healthy", "ok", ""),
    ("frozen at 99 % with nobody on it", series(running=0, waiting=0, kv_usage=0.99, **FROZEN),
     "idle", "info", "left from its last step"),
    ("99 % and prompts still come in",
     series(running=0, waiting=0, kv_usage=0.99, generation_tokens=1000, prompt_tokens=flow),
     "KV-bound", "warning", "99 % full"),
    ("frozen at 100 % with a queue", series(running=40, waiting=30, kv_usage=1.0, **FROZEN),
     "stalled", "critical", "no token for 4 s"),
    ("asleep with an empty queue",
     series(running=0, waiting=0, kv_usage=0.0, generation_tokens=9, sleep_state=sleeping("discard_all")),
     "asleep", "info", "not an outage"),
    ("asleep with requests sent to it",
     series(running=0, waiting=6, kv_usage=0.0, generation_tokens=9, sleep_state=sleeping("discard_all")),
     "asleep", "warning", "6 requests were sent"),
    ("most wait for adapters, the rest for a full pool",
     series(**FULL, waiting_by_reason=reasons(1, 8)), "KV-bound", "critical", "1 requests wait"),
    ("all wait for adapters, the pool is full",
     series(**FULL, waiting_by_reason=reasons(0, 9)), "deferred", "warning", "9 of 9"),
    ("adapters awaited while others are preempted",
     series(**FULL, waiting_by_reason=reasons(1, 8), preemptions=lambda i: 4 * i), "preempting", "critical", ""),
    ("half wait for adapters",
     series(running=4, waiting=8, kv_usage=0.3, generation_tokens=flow, waiting_by_reason=reasons(4, 4)),
     "seat-bound", "warning", ""),
    ("counters begin anew and stand still", series(
        3, running=8, waiting=5, kv_usage=0.4, prompt_tokens=5, step_tokens=steps(3),
        generation_tokens=lambda i: 10 if i else 90_000), "restarting", "warning", "started anew"),
    ("and stand still for ten scrapes", series(
        10, running=8, waiting=5, kv_usage=0.4, prompt_tokens=5, step_tokens=steps(3),
        generation_tokens=lambda i: 10 if i else 90_000), "stalled", "critical", "no token for"),
]  # fmt: skip


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge[0])
def test_an_edge_is_told_as_on_call_would(edge: tuple) -> None:
    _, snapshots, name, severity, words = edge
    found = judge(snapshots)
    assert (found.name, found.severity.value) == (name, severity), found.summary
    assert words in found.summary
    assert found.evidence and all(one.cost for one in found.actions)


def pool(*shots: list[EngineSnapshot]) -> Verdict:
    windows = [
        open_window([replace(s, engine=str(i)) for s in one], target="t") for i, one in enumerate(shots)
    ]
    verdicts = {w.engine: diagnose(w, engine_signals(w)) for w in windows}
    return diagnose_pool(verdicts, pool_signals(windows))


CALM = series(running=8, waiting=0, kv_usage=0.3, generation_tokens=flow)
IDLE = series(running=0, waiting=0, kv_usage=0.0, generation_tokens=9)
HALF = series(running=12, waiting=0, kv_usage=0.5, generation_tokens=flow)
HOT = series(**FULL)
STUCK = series(running=0, waiting=0, kv_usage=0.99, **FROZEN)
SLEEPS = series(running=0, waiting=0, kv_usage=0.0, generation_tokens=9, sleep_state=sleeping("discard_all"))


@pytest.mark.parametrize(
    ("shots", "name", "words"),
    [
        ((CALM, SLEEPS), "healthy", "1 of 2 engines (1) sleeps"),
        ((IDLE, SLEEPS, SLEEPS), "idle", "2 of 3 engines (1, 2) sleep"),
        ((HOT, SLEEPS), "KV-bound", "1 of 2 engines (1) sleeps"),
        ((SLEEPS, SLEEPS), "asleep", "not an outage"),
        ((HALF, SLEEPS), "healthy", "sleeps"),
        ((HALF, IDLE), "imbalanced", "0 is loaded while 1 has room"),
        ((HOT, CALM, IDLE), "imbalanced", "0 is loaded while 1, 2 have room"),
        ((CALM, STUCK), "healthy", "with room"),
        ((HOT, HOT, CALM), "KV-bound", "2 of 3 engines (0, 1)"),
    ],
)
def test_a_pool_of_different_engines(shots: tuple[list[EngineSnapshot], ...], name: str, words: str) -> None:
    found = pool(*shots)
    assert found.name == name, found.summary
    assert words in found.summary
