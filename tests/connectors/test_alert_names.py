"""Alert rules for other spellings and engines, and selectors checked as Prometheus would."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from connectors.__main__ import main
from connectors.alert_rules import rule_file, rules
from connectors.promql import NAMINGS
from connectors.selectors import matchers
from tests.connectors.test_alert_rules import (
    AT_CRITICAL,
    BELOW_ACT,
    CASES,
    PROMTOOL,
    check_alerts,
    series,
)

pytestmark = pytest.mark.prometheus


@pytest.mark.parametrize(
    "case", ["calm", "critical with a queue", "no token", "deferred", "started anew", "down"]
)
@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm:", "ray_vllm_"])
def test_other_spellings_of_the_names_alert_alike(tmp_path: Path, case: str, prefix: str) -> None:
    values, expected = CASES[case]
    check_alerts(tmp_path, series(values, prefix=prefix), expected)


SGLANG = {
    "num_running_reqs": "4+0x40",
    "num_queue_reqs": "0+0x40",
    "token_usage": "0.3+0x40",
    "generation_tokens_total": "0+3000x40",
    "prompt_tokens_total": "0+3000x40",
}
SGLANG_CASES = {
    "calm": ({}, set()),
    "full": ({"token_usage": AT_CRITICAL, "num_queue_reqs": "3+0x40"}, {"KVCacheHigh", "KVCacheFull"}),
    "the full-attention pool counts": ({"full_token_usage": BELOW_ACT, "token_usage": AT_CRITICAL}, set()),
    "no token": (
        {"generation_tokens_total": "9000+0x40", "prompt_tokens_total": "9000+0x40"},
        {"EngineStalled"},
    ),
    "retracting": ({"num_retracted_requests_total": "0+6x40"}, {"Preempting"}),
    "a queue with room": ({"num_queue_reqs": "9+0x40"}, {"QueueWithRoom"}),
}


@pytest.mark.parametrize("case", SGLANG_CASES)
@pytest.mark.parametrize("prefix", ["sglang:", "sglang_"])
def test_sglang_alerts_where_its_metrics_tell(tmp_path: Path, case: str, prefix: str) -> None:
    """Scheduler gauges carry ranks, token counters of the tokenizer do not."""
    values, expected = SGLANG_CASES[case]
    where = 'job="vllm",instance="gpu-1:30000",model_name="m"'
    lines = []
    for name, text in (SGLANG | values).items():
        rank = "" if name.endswith("tokens_total") else ',tp_rank="0"'
        lines.append({"series": f"{prefix}{name}{{{where}{rank}}}", "values": text})
    check_alerts(tmp_path, lines, expected)


def test_the_file_says_what_it_holds_for() -> None:
    text = rule_file()
    for said in ("# vLLM behind Ray Serve (ray_vllm:, ray_vllm_)", "# SGLang (sglang:, sglang_)"):
        assert said in text
    assert "left out: RequestsRejected, WaitingDeferred, ClientsGiveUp, EngineAsleep" in text


# selector, words of the reason (None: it is fine). Prometheus itself says the same of each.
SELECTORS = [
    ('{job="vllm"}', None),
    ('job="vllm"', None),
    ("{}", None),
    ('{job="a",}', None),
    (r'{pod=~"vllm-\\d+",job!=""}', None),
    ('{pod=~"a|b,c"}', None),
    (r'{pod=~"[[:alpha:]]+(?i)x\\pL"}', None),
    ('{job="vllm"', ""),
    ("job=vllm", ""),
    ("{,}", ""),
    ('{job="a",,b="c"}', ""),
    ('{job="a"}}', ""),
    ('{job="a"[5m]}', ""),
    ('x{job="a"}', ""),
    ('{pod=~"("}', "pattern of pod"),
    ('{pod=~"a(?=b)"}', "RE2"),
    (r'{pod=~"(a)\\1"}', "RE2"),
    (r'{pod=~"a\d"}', "no escape"),
    ('{__name__="up"}', "names are chosen"),
    ('{job="a\nb"}', "spans lines"),
    ("{job='vllm'}", None),
    ("{job='a,b',pod=~'x|\\'y\\'|\"z\"'}", None),
    ("{job='\\x41\"'}", None),
    ("{job=`vllm`,pod=~`a\\d+[\"']`}", None),
    ("{job=`a\nb`}", None),
    (r"{job='a\"b'}", "no escape"),
    (r"""{job="a\'b"}""", "no escape"),
    ("{job='a}", ""),
    ("{job='a\"}", ""),
    ("{job=`a}", ""),
    ("{pod=~`(`}", "pattern of pod"),
    (r'{job="\400"}', "no escape"),
    (r'{job="\ud800"}', "no escape"),
]


@pytest.mark.parametrize(("selector", "words"), SELECTORS)
def test_a_selector_is_checked_as_prometheus_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], selector: str, words: str | None
) -> None:
    status = main(["rules", "--selector", selector])
    captured = capsys.readouterr()
    assert status == (0 if words is None else 2)
    if words is None:
        check_selector(tmp_path, f"{{{matchers(selector)}}}", fine=True)
    else:
        assert captured.out == "" and captured.err.count("\n") == 1 and words in captured.err
    check_selector(tmp_path, selector if selector.startswith("{") else f"{{{selector}}}", fine=words is None)


def check_selector(tmp_path: Path, inside: str, *, fine: bool) -> None:
    """promtool takes or refuses a metric with these matchers."""
    rule = {"groups": [{"name": "g", "rules": [{"record": "r", "expr": f"vllm:x{inside}"}]}]}
    path = tmp_path / "one.yml"
    path.write_text(json.dumps(rule), encoding="utf-8")
    done = subprocess.run([PROMTOOL, "check", "rules", str(path)], capture_output=True)
    assert (done.returncode == 0) == fine


def test_all_quotes_say_the_same() -> None:
    for typed in ("{a=~'x\\\\d',b='c'}", '{a=~"x\\\\d",b="c"}', "{a=~`x\\d`,b=`c`,}", "a=~`x\\d` , b='c'"):
        assert matchers(typed) == r'a=~"x\\d",b="c"', typed
    assert matchers('{a=\'say "hi"\',b=`say "hi"`}') == r'a="say \"hi\"",b="say \"hi\""'


def test_actions_name_the_engines_own_settings() -> None:
    found = {(one.exporter, rule.alert): rule.action for one in NAMINGS for rule in rules(naming=one)}
    assert "--gpu-memory-utilization" in found["vllm", "KVCacheFull"]
    assert "--mem-fraction-static" in found["sglang", "KVCacheFull"]
    assert not any("--gpu-memory" in text for (name, _), text in found.items() if name == "sglang")
