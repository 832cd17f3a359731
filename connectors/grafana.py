"""A Grafana dashboard of the Live page's charts over a Prometheus data source, with the same two lines.

What it answers: the waterline, queue, throughput, latency and preemptions where people already look. One
table of panels below; metric names and lines come from the tables of the page. It holds for vLLM, also behind
Ray Serve and with underscores for colons. Left out: other engines, Grafana's own alerts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from capacity.verdicts import thresholds
from connectors import vocabulary
from connectors.promql import NAMINGS, PARTS, VLLM, braces, either, series, spellings
from connectors.selectors import matchers

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


EVERY = replace(VLLM, prefixes=tuple(p for one in NAMINGS if one.engine == "vllm" for p in one.prefixes))


def _parts(signal: str, part: str, selector: str | None) -> str:
    """The rates of a histogram's ``_bucket``, ``_sum`` or ``_count`` series; the newest name answers."""
    inside = braces(matchers(selector))
    return either(
        [
            f"rate({spelled}{part}{inside}[{RATE}])"
            for row in vocabulary.rows_of("vllm")[signal]
            for spelled in spellings(row.name, EVERY)
        ]
    )


def _quantiles(signal: str, selector: str | None) -> dict[str, str]:
    buckets = f"sum by (le) ({_parts(signal, '_bucket', selector)})"
    return {f"p{q * 100:g}": f"histogram_quantile({q:g}, {buckets})" for q in QUANTILES}


def panels(selector: str | None = None) -> list[Panel]:
    """The panels in their order. BadTarget for a selector that is none."""

    def gauge(signal: str) -> str:
        return series(signal, selector=selector, naming=EVERY)

    def rate(signal: str) -> str:
        return series(signal, selector=selector, over="rate", window=RATE, naming=EVERY)

    def steps(part: str) -> str:
        return f"sum by (instance) ({_parts('step_tokens', part, selector)})"

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
            unit="suffix: tok/s",
            says="Tokens per second in and out. Cached prompt tokens count too.",
            queries={"in": f"sum ({rate('prompt_tokens')})", "out": f"sum ({rate('generation_tokens')})"},
        ),
        Panel(
            title="Preemptions",
            unit="cps",
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
            queries={"{{instance}}": f"{steps('_sum')} / {steps('_count')}"},
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
        "description": "For vLLM, also behind Ray Serve and with underscores for the colons of its names.",
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                    "regex": "",
                    "refresh": 1,
                    "hide": 0,
                    "multi": False,
                    "includeAll": False,
                    "options": [],
                    "current": {},
                }
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
                "color": {"mode": "palette-classic"},
                "custom": {
                    "drawStyle": "line",
                    "lineWidth": 2,
                    "showPoints": "auto",
                    "spanNulls": False,
                    "thresholdsStyle": {"mode": "line" if one.lines else "off"},
                },
            },
            "overrides": [],
        },
        "options": {
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
            "tooltip": {"mode": "multi", "sort": "none"},
        },
        "targets": [
            {
                "refId": chr(65 + i),
                "datasource": SOURCE,
                "editorMode": "code",
                "expr": expression,
                "legendFormat": legend,
                "range": True,
            }
            for i, (legend, expression) in enumerate(one.queries.items())
        ],
    }
