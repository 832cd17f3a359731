"""Prometheus alert rules with the lines and actions of the Live page: one table for page, API and alerts.

``alert_rules.csv`` holds the expressions; lines come from ``thresholds.csv``, actions and their cost from
``verdict_actions.csv``, metric names and their spellings from ``promql``: one group of rules per kind of exporter.
Left out: routing of alerts (Alertmanager).
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from capacity.verdicts import actions, named_for, thresholds
from connectors.promql import NAMINGS, VLLM, Naming, braces, known, series
from connectors.selectors import matchers

FIELD = re.compile(r"\{([a-z_0-9]+)\}")
WINDOWED = re.compile(r"(?P<signal>.+)_(?P<what>rate|resets|seen)_(?P<window>\d+[smh])$")
FUNCTIONS = {"rate": "rate", "resets": "resets", "seen": "last_over_time"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """One alert: a PromQL expression that is true while the alert stands, and what to say and do."""

    alert: str
    severity: str
    for_s: str
    expression: str
    says: str
    verdict: str
    action: str


@cache
def _table() -> tuple[dict[str, str], ...]:
    text = resources.files("connectors").joinpath("alert_rules.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def _signal(word: str) -> str | None:
    """The signal that a field of an expression names; None for a line, the selector or the identity."""
    if word in ("identity", "selector") or word in thresholds():
        return None
    windowed = WINDOWED.match(word)
    return windowed["signal"] if windowed else word


def _filled(template: str, selector: str | None, naming: Naming) -> str:
    def one(found: re.Match[str]) -> str:
        word = found.group(1)
        signal = _signal(word)
        if signal is None:
            fixed = {"identity": naming.identity, "selector": braces(matchers(selector))}
            return fixed[word] if word in fixed else f"{thresholds()[word].value:g}"
        windowed = WINDOWED.match(word)
        if windowed is None:
            return series(signal, selector=selector, naming=naming)
        over = FUNCTIONS[windowed["what"]]
        return series(signal, selector=selector, over=over, window=windowed["window"], naming=naming)

    return FIELD.sub(one, template)


def _holds(template: str, naming: Naming) -> bool:
    return all(known(s, naming) for word in FIELD.findall(template) if (s := _signal(word)) is not None)


def rules(selector: str | None = None, *, naming: Naming = VLLM) -> list[AlertRule]:
    """Every alert that an exporter's names allow, for the series that ``selector`` picks. BadTarget for a
    selector that is none.
    """
    return [
        AlertRule(
            alert=row["alert"],
            severity=row["severity"],
            for_s=row["for"],
            expression=_filled(row["expression"], selector, naming),
            says=row["says"],
            verdict=row["verdict"],
            action=next((one.text for one in named_for(naming.engine, actions(row["verdict"]))), ""),
        )
        for row in _table()
        if _holds(row["expression"], naming)
    ]


def left_out(naming: Naming) -> list[str]:
    """The alerts that an engine's metrics cannot tell."""
    return [row["alert"] for row in _table() if not _holds(row["expression"], naming)]


def rule_file(selector: str | None = None) -> str:
    """A Prometheus rule file (YAML), as ``promtool check rules`` accepts it: one group per kind of exporter."""
    lines = [
        "# Alerts of Waterline: the same lines, verdicts and actions as its Live page.",
        "# Each group holds for one kind of exporter; a group without series never fires and may be deleted.",
        "groups:",
    ]
    for naming in NAMINGS:
        without = left_out(naming)
        lines.append(f"  # {naming.holds_for} ({', '.join(naming.prefixes)})")
        if without:
            lines.append(f"  # not told by its metrics, so left out: {', '.join(without)}")
        lines += [f"  - name: {naming.group}", "    rules:"]
        for rule in rules(selector, naming=naming):
            lines += _yaml(rule, naming)
    return "\n".join(lines) + "\n"


def _yaml(rule: AlertRule, naming: Naming) -> list[str]:
    labels = {"severity": rule.severity} | ({"verdict": rule.verdict} if rule.verdict else {})
    labels["exporter"] = naming.exporter
    notes = {"summary": rule.says} | ({"action": rule.action} if rule.action else {})
    return [
        f"      - alert: Waterline{rule.alert}",
        f"        expr: {json.dumps(rule.expression, ensure_ascii=False)}",
        f"        for: {rule.for_s}",
        "        labels:",
        *(f"          {name}: {json.dumps(text)}" for name, text in labels.items()),
        "        annotations:",
        *(f"          {name}: {json.dumps(text, ensure_ascii=False)}" for name, text in notes.items()),
    ]
