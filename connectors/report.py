"""Snapshots of one or several targets as the report that page, API and command line share: signals and
verdicts.

Left out: taking snapshots (``scrape``, ``poller``) and printing (``__main__``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from capacity.diagnosis import diagnose
from capacity.forecast import Forecast, time_to_full
from capacity.pool_diagnosis import diagnose_pool
from capacity.telemetry import (
    EngineConfig,
    EngineSnapshot,
    EngineWindow,
    Signals,
    State,
    TargetSnapshot,
    engine_signals,
    open_window,
    pool_signals,
    unknown,
)
from capacity.telemetry.pool import label
from capacity.verdicts import Verdict

NONE = unknown(State.MISSING, "readings without an engine")
# Verdicts under which the KV gauge does not move, or is old: its trend says nothing about what comes.
STANDING = ("stalled", "stale", "asleep", "down", "unknown")
NO_CONFIG = EngineConfig(block_size=NONE, num_blocks=NONE, kv_capacity_tokens=NONE, max_concurrency=NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """One engine: its window, signals, verdict and time to full. ``label`` is unique in the pool."""

    label: str
    window: EngineWindow
    signals: Signals
    verdict: Verdict
    forecast: Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReport:
    """All engines of one or several targets, the pool's signals and verdict, and what should be said."""

    target: str
    engines: tuple[EngineReport, ...]
    signals: Signals
    verdict: Verdict
    seconds: float | None
    notes: tuple[str, ...] = ()
    down: Mapping[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """``{target, engines: [{engine, model_name, release, signals, verdict, time_to_full_s}], pool:
        {signals, verdict}}``.
        """
        return {
            "target": self.target,
            "engines": [
                {
                    "engine": one.label,
                    "model_name": one.window.latest.model_name,
                    "release": one.window.latest.release,
                    "signals": one.signals.as_json(),
                    "verdict": one.verdict.as_json(),
                    "time_to_full_s": asdict(one.forecast),
                }
                for one in self.engines
            ],
            "pool": {"signals": self.signals.as_json(), "verdict": self.verdict.as_json()},
            "window_s": self.seconds,
            "notes": list(self.notes),
        }


def forecast_of(window: EngineWindow, signals: Signals, verdict_name: str) -> Forecast:
    """When this engine's pool is full, from the scrapes of ``window``; refused where its gauge stands still."""
    if verdict_name in STANDING:
        return Forecast(reason=f"{verdict_name}: its KV usage says nothing about what comes")
    parts = (signals.number("prompt_tokens_per_s"), signals.number("generation_tokens_per_s"))
    return time_to_full(
        [s.time_s for s in window.snapshots],
        [s.value("kv_usage").number for s in window.snapshots],
        inflow_tokens_per_s=None if None in parts else sum(p or 0.0 for p in parts),
        capacity_tokens=signals.number("kv_capacity_tokens"),
    )


def shared_windows(target: str, snapshots: Sequence[TargetSnapshot]) -> list[EngineWindow]:
    """A window over the readings of a target that carry no engine label, as an engine without a name."""
    kept = [
        EngineSnapshot(
            engine="",
            kind="shared",
            model_name=None,
            release=None,
            time_s=s.time_s,
            monotonic_s=s.monotonic_s,
            started_at_s=s.engines[0].started_at_s if s.engines else None,
            readings=s.shared,
            config=NO_CONFIG,
        )
        for s in snapshots
        if s.up and s.shared
    ]
    return [open_window(kept, target=target)] if kept else []


def windows_of(
    target: str,
    snapshots: Sequence[TargetSnapshot],
    *,
    single: Literal["since start", "unknown"] = "unknown",
) -> list[EngineWindow]:
    """A window per engine that the newest answer of a target shows."""
    answered = [s for s in snapshots if s.up]
    if not answered:
        return []
    out = []
    for engine in answered[-1].engines:
        seen = [e for s in answered for e in s.engines if e.engine == engine.engine]
        out.append(open_window(seen, target=target, single=single))
    return out


def pool_report(
    name: str,
    targets: Mapping[str, Sequence[TargetSnapshot]],
    *,
    single: Literal["since start", "unknown"] = "unknown",
    now_s: float | None = None,
    interval_s: float | None = None,
) -> PoolReport:
    """The report on ``targets``: name -> its snapshots, oldest first. A target whose newest snapshot is
    down is down.
    """
    windows: list[EngineWindow] = []
    shared: list[EngineWindow] = []
    down: dict[str, str] = {}
    notes: list[str] = []
    for target, snapshots in targets.items():
        if not snapshots:
            down[target] = "not scraped yet"
            continue
        newest = snapshots[-1]
        if not newest.up:
            down[target] = newest.reason or "no answer"
            continue
        notes += newest.notes
        windows += windows_of(target, snapshots, single=single)
        shared += shared_windows(target, snapshots)
    reports = []
    for window in windows:
        signals = engine_signals(window)
        verdict = diagnose(window, signals, now_s=now_s, interval_s=interval_s)
        reports.append(
            EngineReport(
                label=label(window, windows),
                window=window,
                signals=signals,
                verdict=verdict,
                forecast=forecast_of(window, signals, verdict.name),
            )
        )
        notes += signals.notes
    pool = pool_signals(windows, shared=shared, down=down)
    return PoolReport(
        target=name,
        engines=tuple(reports),
        signals=pool,
        verdict=diagnose_pool({one.label: one.verdict for one in reports}, pool, down=down),
        seconds=pool.seconds,
        notes=tuple(dict.fromkeys(notes)),
        down=down,
    )
