"""The pool as it stands: every engine's signals and verdict, the pool's, and how old each reading is.

What it answers: what the Live page, /api/pool and the wall show. Built from the poller's newest snapshots;
the same view serves all browsers. Left out: lines over time (live_series).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from capacity.diagnosis import diagnose, down_verdict
from capacity.forecast import Forecast
from capacity.pool_diagnosis import diagnose_pool
from capacity.telemetry import (
    EngineSnapshot,
    EngineWindow,
    Signals,
    TargetSnapshot,
    engine_signals,
    open_window,
    pool_signals,
)
from capacity.telemetry.pool import label
from capacity.verdicts import Verdict
from connectors.poller import Load, TargetView
from connectors.report import forecast_of

RATE_WINDOW_S = 60.0
RATE_SCRAPES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """One engine. ``signals`` None: its target does not answer, ``verdict`` says why."""

    name: str
    target: str
    engine: str
    demo: bool
    model_name: str | None
    release: str | None
    verdict: Verdict
    signals: Signals | None
    forecast: Forecast | None
    age_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatus:
    """One target: whether it answers, since when not, and what asking it costs."""

    name: str
    demo: bool
    state: str
    reason: str | None
    age_s: float | None
    scrape_s: float | None
    slowed: str | None
    load: Load
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """The whole pool at ``at_s``. ``waiting_for`` are targets that have not been asked yet."""

    at_s: float
    engines: tuple[EngineView, ...]
    targets: tuple[TargetStatus, ...]
    pool: Signals | None
    verdict: Verdict | None
    waiting_for: tuple[str, ...]

    @property
    def demo(self) -> bool:
        return any(target.demo for target in self.targets)

    @property
    def answering(self) -> int:
        return sum(1 for target in self.targets if target.state != "down")


def build(views: Sequence[TargetView], *, now_s: float) -> LiveView:
    """The view of everything the poller knows at ``now_s`` (wall clock)."""
    windows, owners = _windows(views, within_s=RATE_WINDOW_S)
    occupancy = {(w.target, w.engine): w for w in _windows(views)[0]}
    down = {v.name: _reason(v) for v in views if v.latest is not None and not v.latest.up}
    verdicts: dict[str, Verdict] = {}
    engines: list[EngineView] = []
    for window in windows:
        owner = owners[window.target]
        name = label(window, windows)
        signals = engine_signals(window)
        verdicts[name] = diagnose(window, signals, now_s=now_s, interval_s=owner.interval_s)
        engines.append(
            EngineView(
                name=name,
                target=window.target,
                engine=window.engine,
                demo=owner.demo,
                model_name=window.latest.model_name,
                release=window.latest.release,
                verdict=verdicts[name],
                signals=signals,
                forecast=forecast_of(occupancy[window.target, window.engine], signals, verdicts[name].name),
                age_s=max(0.0, now_s - window.latest.time_s),
            )
        )
    engines += [
        _gone(owner, reason, now_s) for owner in views if (reason := down.get(owner.name)) is not None
    ]
    asked = [v for v in views if v.latest is not None]
    pool = pool_signals(windows, shared=_shared(views), down=down) if asked else None
    return LiveView(
        at_s=now_s,
        engines=tuple(sorted(engines, key=lambda e: e.name)),
        targets=tuple(_status(v, now_s) for v in views),
        pool=pool,
        verdict=diagnose_pool(verdicts, pool, down=down) if pool is not None else None,
        waiting_for=tuple(v.name for v in views if v.latest is None),
    )


def _windows(
    views: Sequence[TargetView], *, within_s: float | None = None
) -> tuple[list[EngineWindow], dict[str, TargetView]]:
    """A window per engine of the targets whose newest scrape answered: all scrapes in memory, or the last ones."""
    found: list[EngineWindow] = []
    owners: dict[str, TargetView] = {}
    for view in views:
        latest = view.latest
        if latest is None or not latest.up:
            continue
        owners[view.name] = view
        history: dict[str, list[EngineSnapshot]] = defaultdict(list)
        for snapshot in last(view.snapshots, within_s):
            for engine in snapshot.engines:
                history[engine.engine].append(engine)
        found += [open_window(history[engine.engine], target=view.name) for engine in latest.engines]
    return found, owners


def last(snapshots: Sequence[TargetSnapshot], within_s: float | None) -> Sequence[TargetSnapshot]:
    """The snapshots of the last ``within_s`` seconds, and at least RATE_SCRAPES of them. None: all.

    Rates and percentiles say what happens now, whatever number of scrapes is kept in memory.
    """
    if within_s is None or not snapshots:
        return snapshots
    since = snapshots[-1].time_s - within_s
    return [s for i, s in enumerate(snapshots) if s.time_s >= since or i >= len(snapshots) - RATE_SCRAPES]


def _shared(views: Sequence[TargetView]) -> list[EngineWindow]:
    """Windows over readings without an engine label, where a target has several engines."""
    found = []
    for view in views:
        snapshots = [
            s for s in last(view.snapshots, RATE_WINDOW_S) if s.up and len(s.engines) > 1 and s.shared
        ]
        if snapshots and view.latest is not None and view.latest.up:
            found.append(open_window([_as_engine(s) for s in snapshots], target=view.name))
    return found


def _as_engine(snapshot: TargetSnapshot) -> EngineSnapshot:
    return replace(snapshot.engines[0], engine="", readings=snapshot.shared)


def _reason(view: TargetView) -> str:
    latest = view.latest
    return (latest.reason if latest is not None else None) or "no answer"


def _gone(view: TargetView, reason: str, now_s: float) -> EngineView:
    last = view.last_ok
    known = last.engines[0] if last is not None and last.engines else None
    return EngineView(
        name=view.name,
        target=view.name,
        engine=known.engine if known else "",
        demo=view.demo,
        model_name=known.model_name if known else None,
        release=known.release if known else None,
        verdict=down_verdict(reason),
        signals=None,
        forecast=None,
        age_s=max(0.0, now_s - last.time_s) if last is not None else None,
    )


def _status(view: TargetView, now_s: float) -> TargetStatus:
    latest, last = view.latest, view.last_ok
    return TargetStatus(
        name=view.name,
        demo=view.demo,
        state="not asked yet" if latest is None else latest.state.value,
        reason=None if latest is None else latest.reason,
        age_s=None if last is None else max(0.0, now_s - last.time_s),
        scrape_s=None if last is None else last.scrape_s,
        slowed=view.slowed,
        load=view.load,
        notes=() if latest is None else latest.notes,
    )


def as_json(view: LiveView) -> dict[str, Any]:
    """Plain data for /api/pool: the shape of ``python -m connectors scrape --json``, for all targets."""
    return {
        "at_s": view.at_s,
        "demo": view.demo,
        "engines": [
            {
                "name": engine.name,
                "target": engine.target,
                "engine": engine.engine,
                "model_name": engine.model_name,
                "release": engine.release,
                "demo": engine.demo,
                "age_s": engine.age_s,
                "signals": None if engine.signals is None else engine.signals.as_json(),
                "verdict": engine.verdict.as_json(),
                "time_to_full_s": None if engine.forecast is None else asdict(engine.forecast),
            }
            for engine in view.engines
        ],
        "pool": {
            "signals": None if view.pool is None else view.pool.as_json(),
            "verdict": None if view.verdict is None else view.verdict.as_json(),
        },
        "waiting_for": list(view.waiting_for),
    }


def targets_json(view: LiveView) -> list[dict[str, Any]]:
    """Plain data for /api/targets: state, age and what asking costs. Names only, never an access detail."""
    return [
        {
            "name": target.name,
            "demo": target.demo,
            "state": target.state,
            "reason": target.reason,
            "age_s": target.age_s,
            "scrape_s": target.scrape_s,
            "slowed": target.slowed,
            "notes": list(target.notes),
            "load": {
                "scrapes": target.load.scrapes,
                "scrapes_per_s": target.load.scrapes_per_s,
                "busy_share": target.load.busy_share,
                "bytes_per_s": target.load.bytes_per_s,
            },
        }
        for target in view.targets
    ]
