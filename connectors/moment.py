"""The verdict of a past moment: from kept readings by the same rules as live, and as part of a saved file.

What it answers: what the banner said, why, and what to do, when a link or file of an incident is opened
later or elsewhere. Left out: charts of the window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from capacity.interval_snapshots import engine_snapshots
from capacity.intervals import Interval
from capacity.telemetry import EngineSnapshot, TargetSnapshot, down
from capacity.verdicts import Action, Confidence, Evidence, Severity, Verdict
from connectors.live_view import LiveView, build
from connectors.poller import Load, TargetView

TAIL_S, TAIL_INTERVALS = 90.0, 8
NO_LOAD = Load(scrapes=0, scrapes_per_s=None, busy_share=None, bytes_per_s=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMoment:
    """What was found about one engine."""

    name: str
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The findings at ``at_s``: the pool's verdict (None: nothing was known) and each engine's."""

    at_s: float
    verdict: Verdict | None
    engines: tuple[EngineMoment, ...]


def moment_of(view: LiveView) -> Moment:
    """What a view finds."""
    return Moment(
        at_s=view.at_s,
        verdict=view.verdict,
        engines=tuple(EngineMoment(name=e.name, verdict=e.verdict) for e in view.engines),
    )


def view_at(
    intervals: Sequence[Interval],
    *,
    at_s: float,
    metrics: Mapping[str, Mapping[str, str | None]] | None = None,
) -> LiveView:
    """The pool as it stood at ``at_s``, from the intervals before it (a minute or two are enough).

    ``metrics``: target -> signal -> the metric name that answers.
    """
    by_target: dict[str, list[Interval]] = defaultdict(list)
    for interval in intervals:
        if interval.end_s <= at_s:
            by_target[interval.target].append(interval)
    names = metrics or {}
    views = [_target(name, mine, names.get(name, {})) for name, mine in sorted(by_target.items())]
    return build(views, now_s=at_s)


def _target(name: str, intervals: Sequence[Interval], metrics: Mapping[str, str | None]) -> TargetView:
    by_engine: dict[str, list[Interval]] = defaultdict(list)
    for interval in sorted(intervals, key=lambda i: i.end_s):
        by_engine[interval.engine].append(interval)
    seconds = median(i.seconds for i in intervals)
    engines: dict[float, list[EngineSnapshot]] = defaultdict(list)
    gone: dict[float, str] = {}
    for mine in by_engine.values():
        for snapshot in engine_snapshots(mine, metrics=metrics):
            engines[_slot(snapshot.time_s, seconds)].append(snapshot)
        for interval in mine:
            if interval.state.startswith("down"):
                gone[_slot(interval.end_s, seconds)] = interval.state.removeprefix("down").lstrip(": ")
    found: list[TargetSnapshot] = []
    for slot in sorted({*engines, *gone}):
        here = engines.get(slot)
        if here:
            newest = {e.engine: e for e in here}
            at_s = max(e.time_s for e in here)
            found.append(TargetSnapshot(target=name, time_s=at_s, engines=tuple(newest.values())))
        else:
            found.append(down(name, time_s=slot * seconds, reason=gone[slot] or "no answer"))
    up = [s for s in found if s.up]
    failures = next((i for i, s in enumerate(reversed(found)) if s.up), len(found))
    return TargetView(
        name=name,
        demo=any(i.demo for i in intervals),
        snapshots=tuple(found),
        last_ok=up[-1] if up else None,
        failures=failures,
        interval_s=seconds,
        slowed=None,
        load=NO_LOAD,
    )


def _slot(at_s: float, seconds: float) -> float:
    """Engines of one scrape share its time; a summed-up step shares its end."""
    return round(at_s / max(seconds, 1e-3), 3)


def metrics_of(views: Sequence[TargetView]) -> dict[str, dict[str, str | None]]:
    """Target -> signal -> metric name, from the newest scrapes that answered."""
    return {
        view.name: {
            signal: reading.metric
            for engine in view.last_ok.engines
            for signal, reading in engine.readings.items()
        }
        for view in views
        if view.last_ok is not None
    }


def as_json(moment: Moment) -> dict[str, Any]:
    """Plain data for a saved file."""
    return {
        "at_s": moment.at_s,
        "verdict": None if moment.verdict is None else _verdict_json(moment.verdict),
        "engines": [{"name": e.name, "verdict": _verdict_json(e.verdict)} for e in moment.engines],
    }


def _verdict_json(found: Verdict) -> dict[str, Any]:
    return {
        "name": found.name,
        "severity": found.severity.value,
        "confidence": found.confidence.value,
        "summary": found.summary,
        "evidence": [
            {"text": e.text, "signal": e.signal, "value": e.value, "metric": e.metric} for e in found.evidence
        ],
        "actions": [{"action": a.action, "flag": a.flag, "cost": a.cost} for a in found.actions],
    }


def from_json(body: Mapping[str, Any]) -> Moment:
    """Read back. KeyError, TypeError, ValueError or CapacityError where it is none."""
    found = body["verdict"]
    return Moment(
        at_s=float(body["at_s"]),
        verdict=None if found is None else _verdict(found),
        engines=tuple(
            EngineMoment(name=str(e["name"])[:200], verdict=_verdict(e["verdict"])) for e in body["engines"]
        ),
    )


def _verdict(body: Mapping[str, Any]) -> Verdict:
    return Verdict(
        name=str(body["name"]),
        severity=Severity(body["severity"]),
        confidence=Confidence(body["confidence"]),
        summary=str(body["summary"])[:1000],
        evidence=tuple(
            Evidence(
                text=str(e["text"])[:1000],
                signal=_text(e["signal"]),
                value=e["value"],
                metric=_text(e["metric"]),
            )
            for e in body["evidence"]
        ),
        actions=tuple(
            Action(action=str(a["action"])[:1000], flag=str(a["flag"])[:200], cost=str(a["cost"])[:1000])
            for a in body["actions"]
        ),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)[:200]
