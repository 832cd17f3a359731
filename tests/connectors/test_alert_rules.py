"""Alert rules and dashboard: accepted by promtool, true at the lines of the table, nowhere else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from capacity.verdicts import thresholds
from connectors.__main__ import main
from connectors.alert_rules import rule_file, rules
from connectors.errors import BadTarget
from connectors.grafana import dashboard, panels
from connectors.promql import NAMINGS

PROMTOOL = shutil.which("promtool") or "/usr/bin/promtool"
SELECTOR = '{job="vllm"}'
LABELS = 'job="vllm",instance="gpu-1:8000",engine="0",model_name="m"'
CALM = {
    "vllm:num_requests_running": "4+0x40",
    "vllm:num_requests_waiting": "0+0x40",
    "vllm:kv_cache_usage_perc": "0.3+0x40",
    "vllm:generation_tokens_total": "0+3000x40",
    "vllm:prompt_tokens_total": "0+3000x40",
    "vllm:num_preemptions_total": "0+0x40",
    "vllm:admission_rejections_total": "0+0x40",
}
BELOW_ACT = f"{thresholds()['kv_act'].value - 0.01:g}+0x40"
AT_ACT = f"{thresholds()['kv_act'].value:g}+0x40"
AT_CRITICAL = f"{thresholds()['kv_critical'].value:g}+0x40"
CASES = {
    "calm": ({}, set()),
    "below the act line": ({"vllm:kv_cache_usage_perc": BELOW_ACT}, set()),
    "at the act line": ({"vllm:kv_cache_usage_perc": AT_ACT}, {"KVCacheHigh"}),
    "an older release at the act line": (
        {"vllm:kv_cache_usage_perc": "_x40", "vllm:gpu_cache_usage_perc": AT_ACT},
        {"KVCacheHigh"},
    ),
    "critical without a queue": ({"vllm:kv_cache_usage_perc": AT_CRITICAL}, {"KVCacheHigh"}),
    "critical with a queue": (
        {"vllm:kv_cache_usage_perc": AT_CRITICAL, "vllm:num_requests_waiting": "3+0x40"},
        {"KVCacheHigh", "KVCacheFull"},
    ),
    "a queue with room": ({"vllm:num_requests_waiting": "5+0x40"}, {"QueueWithRoom"}),
    "no token": (
        {"vllm:generation_tokens_total": "9000+0x40", "vllm:prompt_tokens_total": "9000+0x40"},
        {"EngineStalled"},
    ),
    "nothing admitted": (
        {
            "vllm:num_requests_running": "0+0x40",
            "vllm:num_requests_waiting": "3+0x40",
            "vllm:kv_cache_usage_perc": "0+0x40",
        },
        {"EngineNotAdmitting"},
    ),
    "preempting": ({"vllm:num_preemptions_total": "0+6x40"}, {"Preempting"}),
    "preemption storm": ({"vllm:num_preemptions_total": "0+60x40"}, {"Preempting", "PreemptionStorm"}),
    "rejecting": ({"vllm:admission_rejections_total": "0+1x40"}, {"RequestsRejected"}),
    "deferred": (
        {"vllm:num_requests_waiting": "4+0x40", "deferred": "3+0x40"},
        {"WaitingDeferred"},
    ),
    "half deferred": ({"vllm:num_requests_waiting": "4+0x40", "deferred": "2+0x40"}, set()),
    "started anew": (
        {"vllm:generation_tokens_total": "0+3000x28 0+3000x11", "vllm:prompt_tokens_total": "0+3000x40"},
        {"EngineRestarted"},
    ),
    "asleep": ({"asleep": "0+0x40"}, {"EngineAsleep"}),
    "awake": ({"asleep": "1+0x40"}, set()),
    "down": ({"up": "0+0x40"}, {"EngineDown"}),
}
NAMES = {
    "deferred": f'vllm:num_requests_waiting_by_reason{{{LABELS},reason="deferred"}}',
    "asleep": f'vllm:engine_sleep_state{{{LABELS},sleep_state="awake"}}',
    "up": 'up{job="vllm",instance="gpu-1:8000"}',
}
pytestmark = pytest.mark.prometheus


@pytest.mark.parametrize("selector", [None, SELECTOR, '{job=~"a|b",pod!=""}'])
def test_promtool_accepts_the_file(tmp_path: Path, selector: str | None) -> None:
    path = tmp_path / "waterline.yml"
    path.write_text(rule_file(selector), encoding="utf-8")
    words = [PROMTOOL, "check", "rules", "--lint-fatal", str(path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{sum(len(rules(naming=one)) for one in NAMINGS)} rules found" in done.stdout


def series(values: dict[str, str], *, prefix: str = "vllm:") -> list[dict[str, str]]:
    """promtool's input: the calm series and ``values`` instead, with the names spelled from ``prefix``."""
    return [
        {"series": NAMES.get(name, f"{name}{{{LABELS}}}").replace("vllm:", prefix, 1), "values": text}
        for name, text in (CALM | values).items()
    ]


@pytest.mark.parametrize("case", CASES)
def test_each_alert_stands_at_its_line_and_no_other(tmp_path: Path, case: str) -> None:
    values, expected = CASES[case]
    check_alerts(tmp_path, series(values), expected)


def check_alerts(tmp_path: Path, lines: list[dict[str, str]], expected: set[str]) -> None:
    """promtool says that these alerts fire after ten minutes, and no other."""
    (tmp_path / "waterline.yml").write_text(rule_file(SELECTOR), encoding="utf-8")
    names = [f"Waterline{rule.alert}" for rule in rules()]
    checks = [
        {
            "eval_time": "10m",
            "expr": f'count by (alertname) (ALERTS{{alertname="{name}",alertstate="firing"}})',
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}]
            if name.removeprefix("Waterline") in expected
            else [],
        }
        for name in names
    ]
    tests = {
        "rule_files": ["waterline.yml"],
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", "input_series": lines, "promql_expr_test": checks}],
    }
    (tmp_path / "test.yml").write_text(json.dumps(tests), encoding="utf-8")
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_carry_the_actions_of_the_page() -> None:
    found = {rule.alert: rule for rule in rules(SELECTOR)}
    assert (
        "--gpu-memory-utilization" in found["KVCacheFull"].action and "cost:" in found["KVCacheFull"].action
    )
    assert "0.95" in found["KVCacheFull"].expression and "0.8" in found["KVCacheHigh"].expression
    assert not re.search(r"\{[a-z_0-9]+\}", " ".join(rule.expression for rule in found.values()))


def test_the_dashboard_has_the_lines_and_only_expressions_that_parse(tmp_path: Path) -> None:
    found = dashboard(SELECTOR)
    waterline = found["panels"][0]
    steps = waterline["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [step["value"] for step in steps] == [None, 0.8, 0.95]
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in found["panels"]]
    assert len(set(places)) == len(places) == len({p["id"] for p in found["panels"]})
    expressions = [query for panel in panels(SELECTOR) for query in panel.queries.values()]
    assert len(expressions) >= 12 and all('job="vllm"' in one for one in expressions)
    lines = ["groups:", "  - name: parse", "    rules:"]
    for number, one in enumerate(expressions):
        lines += [
            f"      - record: r{number}",
            f"        expr: {json.dumps(one.replace('$__rate_interval', '1m'))}",
        ]
    (tmp_path / "parse.yml").write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run(
        [PROMTOOL, "check", "rules", str(tmp_path / "parse.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--selector", SELECTOR]) == 0
    assert capsys.readouterr().out == rule_file(SELECTOR)
    path = tmp_path / "board.json"
    assert main(["rules", "--what", "grafana", "--output", str(path)]) == 0
    assert json.loads(path.read_text()) == dashboard()
    assert main(["rules", "--selector", "{job=}"]) == 2
    assert capsys.readouterr().err.startswith("waterline: selector")
    assert main(["rules", "--output", str(tmp_path / "none" / "x.yml")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    with pytest.raises(BadTarget):
        rules("{job=}")
