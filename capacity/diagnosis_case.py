"""What the rules of a diagnosis look at: an engine's window, its last three scrapes and its last half minute.

Left out: the rules (``diagnosis``, ``queue_rules``).
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.telemetry import EngineWindow, Signals, open_window
from capacity.telemetry.window import elapsed_s
from capacity.verdicts import Evidence, evidence, thresholds

SHOWN = (("running", "running {:.0f}"), ("waiting", "waiting {:.0f}"), ("kv_usage", "KV {:.1%}"))
RECENT_S = 30.0
LAST_SCRAPES = 3
CLOCK_SKEW_S = 5.0
LOAD = ("running", "waiting", "generation_tokens", "prompt_tokens", "step_tokens", "preemptions", "kv_usage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the rules look at: the window's signals, the last three scrapes and the last half minute."""

    window: EngineWindow
    signals: Signals
    last: EngineWindow
    recent: EngineWindow
    deferred: float
    age_s: float | None
    interval_s: float | None

    def number(self, name: str) -> float | None:
        return self.signals.number(name)

    def line(self, name: str) -> float:
        return thresholds()[name].value

    @property
    def started_s_ago(self) -> float | None:
        """Age of an engine whose start time says that it has just started; None for an older or unknown one.

        A start time a little in the future is a clock that is ahead.
        """
        latest = self.window.latest
        if latest.started_at_s is None or latest.started_at_s <= 0:
            return None
        age = latest.time_s - latest.started_at_s
        young = max(self.line("restart_recent_s"), self.line("restart_scrapes") * (self.interval_s or 0.0))
        return max(0.0, age) if -CLOCK_SKEW_S <= age <= young else None


def recent(window: EngineWindow) -> EngineWindow:
    snapshots = window.snapshots
    newest = snapshots[-1]
    start = next(i for i, s in enumerate(snapshots) if elapsed_s(s, newest) <= RECENT_S)
    start = min(start, max(0, len(snapshots) - LAST_SCRAPES))
    return open_window(snapshots[start:], only=LOAD)


def load(case: Case) -> tuple[Evidence, ...]:
    out = []
    for name, text in (
        ("running", "running {:.0f}"),
        ("waiting", "waiting {:.0f}"),
        ("kv_usage", "KV {:.1%}"),
    ):
        value = case.signals[name]
        if value.number is not None:
            out.append(evidence(name, value, text.format(value.number)))
    return tuple(out)
