"""The demonstration pool's incidents, scraped every two seconds: each gets its name, on new and old releases."""

from __future__ import annotations

import pytest

from capacity.telemetry import TargetSnapshot
from connectors.demo_engine import DemoPool
from connectors.report import pool_report
from connectors.scrape import snapshot_of

# incident, seconds to watch, a verdict that must be seen, verdicts that must not
INCIDENTS = [
    ("calm", 60, "healthy", {"stalled", "preempting", "KV-bound", "imbalanced", "seat-bound"}),
    ("idle", 60, "idle", {"stalled", "preempting", "KV-bound", "seat-bound", "prefill-bound"}),
    ("ramp", 120, "KV-bound", {"stalled", "seat-bound"}),
    ("preemption-storm", 60, "preempting", {"stalled", "seat-bound"}),
    ("prefill-bound", 80, "prefill-bound", {"stalled"}),
    ("seat-bound", 60, "seat-bound", {"stalled", "preempting", "KV-bound"}),
    ("stall", 40, "stalled", {"idle"}),
    ("hot-replica", 80, "imbalanced", {"stalled", "seat-bound"}),
]


@pytest.mark.parametrize("release", ["0.32.0", "0.5.0"])
@pytest.mark.parametrize("row", INCIDENTS, ids=lambda row: row[0])
def test_incidents_are_named(row: tuple, release: str) -> None:
    name, seconds, expected, never = row
    demo = DemoPool(replicas=3, incident_name=name, release=release)
    snapshots: dict[str, list[TargetSnapshot]] = {f"r{i}": [] for i in range(3)}
    seen = []
    for i, (_, pages) in enumerate(demo.rehearse(seconds, step_s=2)):
        for (target, kept), page in zip(snapshots.items(), pages, strict=True):
            kept.append(snapshot_of(page.encode(), target=target, time_s=2.0 * i, monotonic_s=2.0 * i))
            del kept[:-15]
        seen.append(pool_report("pool", snapshots).verdict.name)
    assert expected in seen
    assert not never & set(seen[3:])
