"""docs/metrics.md keeps step with the tables: every signal, state, verdict and main name is on the page."""

from __future__ import annotations

import re
from pathlib import Path

from capacity.telemetry import SIGNALS, State
from capacity.verdicts import NAMES, thresholds
from connectors import vocabulary

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_signal_state_and_verdict_is_documented() -> None:
    for name in {signal.split(".")[0] for signal in SIGNALS}:
        assert f"`{name}`" in PAGE, name
    for state in State:
        assert f"| `{state.value}` |" in PAGE, state
    for name in NAMES:
        assert f"`{name}`" in PAGE, name


def test_every_documented_vllm_name_is_read() -> None:
    table = PAGE.split("## Signals")[1].split("SGLang, TensorRT-LLM")[0]
    names = {
        name
        for cell in re.findall(r"^\| .*? \| (.*?) \|", table, re.M)
        for name in re.findall(r"`([a-z0-9_]+)`", cell)
    }
    labels = {"kv_cache_size_tokens", "num_gpu_blocks", "block_size", "kv_cache_max_concurrency"}
    assert len(names) > 20
    for name in names - labels:
        assert vocabulary.find(f"vllm:{name}") or vocabulary.find(f"vllm:{name}_bucket"), name


def test_lines_on_the_page_are_those_of_the_table() -> None:
    lines = thresholds()
    for name in ("kv_act", "kv_critical", "kv_reject"):
        assert f"{lines[name].value:.2f}" in PAGE
