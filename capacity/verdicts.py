"""What a verdict is made of: name, severity, confidence, evidence with metric names, and actions with
their price.

Thresholds and actions are rows (``catalog/thresholds.csv``, ``catalog/verdict_actions.csv``) that page,
API and alert rules share. Left out: the rules that choose a verdict (``diagnosis``).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

from capacity.errors import CapacityError
from capacity.telemetry import Value

NAMES = (
    "down",
    "stalled",
    "restarting",
    "stale",
    "preempting",
    "KV-bound",
    "deferred",
    "seat-bound",
    "prefill-bound",
    "imbalanced",
    "asleep",
    "unknown",
    "healthy",
    "idle",
)


class Severity(StrEnum):
    """How soon somebody should look."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Confidence(StrEnum):
    """How well the evidence supports the name."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


SEVERITIES = tuple(Severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A line that a rule compares with; ``value`` is in ``unit``."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What to do, the setting to turn (empty: none), and what it costs."""

    action: str
    flag: str
    cost: str

    @property
    def text(self) -> str:
        """One line.

        >>> Action(action="add a replica", flag="", cost="more GPUs").text
        'add a replica; cost: more GPUs'
        """
        flag = f" ({self.flag})" if self.flag else ""
        return f"{self.action}{flag}; cost: {self.cost}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observation: a sentence, and the signal's value and metric name behind it."""

    text: str
    signal: str | None = None
    value: Any = None
    metric: str | None = None

    @property
    def line(self) -> str:
        """The sentence with the metric name that answered."""
        return f"{self.text} ({self.metric})" if self.metric else self.text


def evidence(signal: str, value: Value, text: str) -> Evidence:
    """Evidence from a signal's value."""
    return Evidence(text=text, signal=signal, value=value.value, metric=value.metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The finding about one engine or pool."""

    name: str
    severity: Severity
    confidence: Confidence
    summary: str
    evidence: tuple[Evidence, ...] = ()
    actions: tuple[Action, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise CapacityError(f"verdict {self.name!r} is not known; valid: {', '.join(NAMES)}")

    def as_json(self) -> dict[str, Any]:
        """``{name, severity, confidence, evidence[], actions[]}`` with one line per entry."""
        return {
            "name": self.name,
            "severity": self.severity.value,
            "confidence": self.confidence.value,
            "summary": self.summary,
            "evidence": [one.line for one in self.evidence],
            "actions": [one.text for one in self.actions],
        }


def _table(name: str) -> list[dict[str, str]]:
    text = resources.files("capacity.catalog").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def thresholds() -> Mapping[str, Threshold]:
    """Every line by name.

    >>> thresholds()["kv_act"].value, thresholds()["kv_critical"].value
    (0.8, 0.95)
    """
    return {
        row["name"]: Threshold(
            name=row["name"],
            value=float(row["value"]),
            unit=row["unit"],
            meaning=row["meaning"],
            source=row["source"],
        )
        for row in _table("thresholds.csv")
    }


@cache
def actions(verdict: str) -> tuple[Action, ...]:
    """Actions for a verdict, in the order to try them."""
    rows = [row for row in _table("verdict_actions.csv") if row["verdict"] == verdict]
    rows.sort(key=lambda row: int(row["order"]))
    return tuple(Action(action=row["action"], flag=row["flag"], cost=row["cost"]) for row in rows)


@cache
def _down_actions() -> tuple[tuple[str, Action], ...]:
    rows = _table("down_actions.csv")
    return tuple((row["says"], Action(action=row["action"], flag="", cost=row["cost"])) for row in rows)


def down_actions(reason: str) -> tuple[Action, ...]:
    """What to do about a target that cannot be read, by what its reason says; else what holds for any outage.

    >>> down_actions("the server asks for credentials (401)")[0].cost
    'none'
    """
    found = next((one for says, one in _down_actions() if says in reason), None)
    return actions("down") if found is None else (found,)


@cache
def _flags() -> Mapping[tuple[str, str], str]:
    return {(row["engine"], row["flag"]): row["name"] for row in _table("engine_flags.csv")}


def named_for(kind: str, found: Iterable[Action]) -> tuple[Action, ...]:
    """Actions with the settings named as this engine names them; one that it has not is not named.

    >>> named_for("sglang", actions("seat-bound"))[0].flag
    '--max-running-requests'
    """
    if kind == "vllm":
        return tuple(found)
    return tuple(replace(one, flag=_flags().get((kind, one.flag), "")) for one in found)


def verdict(
    name: str,
    severity: Severity,
    confidence: Confidence,
    summary: str,
    *found: Evidence,
    skip_flags: tuple[str, ...] = (),
) -> Verdict:
    """A verdict with the actions of its row; ``skip_flags`` leaves out actions that do not apply."""
    return Verdict(
        name=name,
        severity=severity,
        confidence=confidence,
        summary=summary,
        evidence=tuple(found),
        actions=tuple(one for one in actions(name) if one.flag not in skip_flags or not one.flag),
    )
