"""A Grafana dashboard of the Live page's charts over a Prometheus data source, with the same two lines.

What it answers: the waterline, queue, throughput, latency and preemptions where people already look. One
table of panels below; metric names and lines come from the tables of the page. Left out: Grafana's own alerts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from capacity.verdicts import thresholds
from connectors import vocabulary
from connectors.alert_rules import PARTS, series
from connectors.prometheus_api import matchers

OK, ACT, CRITICAL = "#009E73", "#E69F00", "#D55E00"
WIDTH, HEIGHT = 12, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
RATE = "$__rate_interval"
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One time series panel: legend -> expression, a Grafana unit, what it is for."""

    title: str
    unit: str
    says: str
    queries: dict[str, str]
    lines: bool = False
    top: float | None = None


def _quantiles(signal: str, selector: str | None) -> dict[str, str]:
    rows = vocabulary.rows_of("vllm")[signal]
    inside = matchers(selector)
    braces = f"{{{inside}}}" if inside else ""
    rates = [f"sum by (le) (rate({row.name}_bucket{braces}[{RATE}]))" for row in rows]
    newest = rates[0] if len(rates) == 1 else f"({' or '.join(rates)})"
    return {f"p{q * 100:g}": f"histogram_quantile({q:g}, {newest})" for q in QUANTILES}


def panels(selector: str | None = None) -> list[Panel]:
    """The panels in their order. BadTarget for a selector that is none."""

    def gauge(signal: str) -> str:
        return series(signal, selector=selector)

    def rate(signal: str) -> str:
        return series(signal, selector=selector, window=RATE)

    inside = matchers(selector)
    braces = f"{{{inside}}}" if inside else ""
    step = vocabulary.rows_of("vllm")["step_tokens"][0].name
    reason = PARTS["deferred"][0]
    return [
        Panel(
            title="Waterline: share of KV blocks in use",
            unit="percentunit",
            says="Act at the lower line, critical at the upper one. The maximum counts, not the mean.",
            queries={"{{instance}} {{engine}}": f"max by (instance, engine) ({gauge('kv_usage')})"},
            lines=True,
            top=1.0,
        ),
        Panel(
            title="Queue",
            unit="short",
            says="Waiting requests hold no blocks. Deferred ones wait for an adapter or a KV transfer.",
            queries={
                "running": f"sum ({gauge('running')})",
                "waiting": f"sum ({gauge('waiting')})",
                "{{reason}}": f"sum by (reason) ({gauge(reason)})",
            },
        ),
        Panel(
            title="Throughput",
            unit="short",
            says="Tokens per second in and out. Cached prompt tokens count too.",
            queries={"in": f"sum ({rate('prompt_tokens')})", "out": f"sum ({rate('generation_tokens')})"},
        ),
        Panel(
            title="Preemptions",
            unit="reqps",
            says="Any sustained rate is work that is thrown away and done again.",
            queries={"{{instance}}": f"sum by (instance) ({rate('preemptions')})"},
        ),
        Panel(
            title="TTFT: time to first token",
            unit="s",
            says="Recorded when the first token appears.",
            queries=_quantiles("ttft_s", selector),
        ),
        Panel(
            title="ITL: time between tokens",
            unit="s",
            says="Recorded for each token.",
            queries=_quantiles("itl_s", selector),
        ),
        Panel(
            title="Tokens per step",
            unit="short",
            says="Against max_num_batched_tokens: how full the engine's steps are.",
            queries={
                "{{instance}}": f"sum by (instance) (rate({step}_sum{braces}[{RATE}])) / "
                f"sum by (instance) (rate({step}_count{braces}[{RATE}]))"
            },
        ),
        Panel(
            title="Prefix-cache hits",
            unit="percentunit",
            says="Share of looked-up tokens. Preempted requests find their own blocks and raise it.",
            queries={"hits": f"sum ({rate('prefix_hits')}) / sum ({rate('prefix_queries')})"},
            top=1.0,
        ),
    ]


def dashboard(selector: str | None = None) -> dict[str, Any]:
    """The dashboard as Grafana imports it. BadTarget for a selector that is none."""
    return {
        "title": "Waterline: KV cache of the serving pool",
        "uid": "waterline-pool",
        "tags": ["waterline", "vllm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
            ]
        },
        "annotations": {"list": []},
        "panels": [_panel(number, one) for number, one in enumerate(panels(selector))],
    }


def dashboard_file(selector: str | None = None) -> str:
    """The dashboard as JSON text."""
    return json.dumps(dashboard(selector), indent=2) + "\n"


def _panel(number: int, one: Panel) -> dict[str, Any]:
    limits = thresholds()
    steps: list[dict[str, Any]] = [{"color": OK, "value": None}]
    if one.lines:
        steps += [
            {"color": ACT, "value": limits["kv_act"].value},
            {"color": CRITICAL, "value": limits["kv_critical"].value},
        ]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": one.title,
        "description": one.says,
        "datasource": SOURCE,
        "gridPos": {"x": number % 2 * WIDTH, "y": number // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {
            "defaults": {
                "unit": one.unit,
                "min": 0,
                **({"max": one.top} if one.top is not None else {}),
                "thresholds": {"mode": "absolute", "steps": steps},
                "custom": {
                    "spanNulls": False,
                    "thresholdsStyle": {"mode": "line" if one.lines else "off"},
                },
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(65 + i), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for i, (legend, expression) in enumerate(one.queries.items())
        ],
    }
