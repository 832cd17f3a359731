"""Prometheus alert rules with the lines and actions of the Live page: one table for page, API and alerts.

``alert_rules.csv`` holds the expressions; lines come from ``thresholds.csv``, actions and their cost from
``verdict_actions.csv``, metric names from ``metric_names.csv`` (vLLM; newest name first, an older one answers
where it is absent). Left out: routing of alerts (Alertmanager).
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from capacity.verdicts import actions, thresholds
from connectors import vocabulary
from connectors.prometheus_api import matchers

GROUP = "waterline"
IDENTITY = "instance, engine, model_name"
FIELD = re.compile(r"\{([a-z_0-9]+)\}")
WINDOWED = re.compile(r"(?P<signal>.+)_(?P<what>rate|range)_(?P<window>\d+[smh])$")
PARTS = {
    "deferred": ("waiting_by_reason", 'reason="deferred"', "reason"),
    "asleep": ("sleep_state", 'sleep_state="awake"', "sleep_state"),
    "aborted": ("finished", 'finished_reason="abort"', ""),
}


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


def series(signal: str, *, selector: str | None = None, window: str = "") -> str:
    """PromQL for a vLLM signal: its newest name, or an older one where that is absent.

    >>> series("kv_usage", selector='{job="vllm"}')
    '(vllm:kv_cache_usage_perc{job="vllm"} or vllm:gpu_cache_usage_perc{job="vllm"})'
    >>> series("preemptions", window="1m")
    'rate(vllm:num_preemptions_total[1m])'
    """
    name, only, dropped = PARTS.get(signal, (signal, "", ""))
    inside = ",".join(part for part in (only, matchers(selector)) if part)
    braces = f"{{{inside}}}" if inside else ""
    found = []
    for row in vocabulary.rows_of("vllm")[name]:
        full = f"{row.name}{'_total' if row.kind.startswith('counter') else ''}{braces}"
        found.append(f"rate({full}[{window}])" if window else full)
    text = found[0] if len(found) == 1 else f"({' or '.join(found)})"
    return f"sum without ({dropped}) ({text})" if dropped else text


def _filled(template: str, selector: str | None) -> str:
    def one(found: re.Match[str]) -> str:
        word = found.group(1)
        if word == "identity":
            return IDENTITY
        if word == "selector":
            inside = matchers(selector)
            return f"{{{inside}}}" if inside else ""
        if word in thresholds():
            return f"{thresholds()[word].value:g}"
        windowed = WINDOWED.match(word)
        if windowed is None:
            return series(word, selector=selector)
        signal, window = windowed["signal"], windowed["window"]
        if windowed["what"] == "rate":
            return series(signal, selector=selector, window=window)
        return f"{series(signal, selector=selector)}[{window}]"

    return FIELD.sub(one, template)


def rules(selector: str | None = None) -> list[AlertRule]:
    """Every alert, for the series that ``selector`` picks. BadTarget for a selector that is none."""
    return [
        AlertRule(
            alert=row["alert"],
            severity=row["severity"],
            for_s=row["for"],
            expression=_filled(row["expression"], selector),
            says=row["says"],
            verdict=row["verdict"],
            action=next((one.text for one in actions(row["verdict"])), ""),
        )
        for row in _table()
    ]


def rule_file(selector: str | None = None) -> str:
    """A Prometheus rule file (YAML), as ``promtool check rules`` accepts it."""
    lines = [
        "# Alerts of Waterline: the same lines, verdicts and actions as its Live page.",
        "groups:",
        f"  - name: {GROUP}",
        "    rules:",
    ]
    for rule in rules(selector):
        labels = {"severity": rule.severity} | ({"verdict": rule.verdict} if rule.verdict else {})
        notes = {"summary": rule.says} | ({"action": rule.action} if rule.action else {})
        lines += [
            f"      - alert: Waterline{rule.alert}",
            f"        expr: {json.dumps(rule.expression, ensure_ascii=False)}",
            f"        for: {rule.for_s}",
            "        labels:",
            *(f"          {name}: {json.dumps(text)}" for name, text in labels.items()),
            "        annotations:",
            *(f"          {name}: {json.dumps(text, ensure_ascii=False)}" for name, text in notes.items()),
        ]
    return "\n".join(lines) + "\n"
