"""The per-replica table: one row per engine, worst first. Pure: view to data frame and column settings."""

from __future__ import annotations

import pandas as pd

from capacity.telemetry import Signals
from capacity.verdicts import SEVERITIES
from connectors.live_view import EngineView, LiveView
from pages.ui import live_format as fmt

ICONS = {"ok": "●", "info": "○", "warning": "▲", "critical": "■"}
COLUMNS = (
    "Replica",
    "State",
    "KV in use",
    "Running",
    "Waiting",
    "Tok/s in",
    "Tok/s out",
    "TTFT p90",
    "ITL p90",
    "Preempt/s",
    "Scraped",
    "Why",
)
# Column -> width in pixels, and what a newcomer would not know.
NARROW: dict[str, tuple[int, str | None]] = {
    "Running": (64, "Requests in the batch"),
    "Waiting": (64, "Requests in the queue"),
    "Tok/s in": (72, "Prompt tokens per second; cached ones count too"),
    "Tok/s out": (76, "Output tokens per second"),
    "TTFT p90": (78, "Time to first token: 90 % of requests wait no longer"),
    "ITL p90": (74, "Time between tokens: 90 % are no longer"),
    "Preempt/s": (76, "Requests per second that lose their KV blocks and are computed again"),
    "Scraped": (72, "How long ago this replica was read"),
}


def frame(view: LiveView) -> pd.DataFrame:
    """Rows of ``COLUMNS``; unknown cells are empty or an en dash and "Why" names the reason."""
    ordered = sorted(
        view.engines, key=lambda e: (-SEVERITIES.index(e.verdict.severity), _kv_order(e), e.name)
    )
    return pd.DataFrame([_row(engine) for engine in ordered], columns=list(COLUMNS))


def _kv_order(engine: EngineView) -> float:
    usage = engine.signals.number("kv_usage") if engine.signals else None
    return -(usage if usage is not None else -1.0)


def _row(engine: EngineView) -> dict[str, object]:
    signals = engine.signals
    verdict = engine.verdict
    return {
        "Replica": engine.name,
        "State": f"{ICONS[verdict.severity.value]} {verdict.name}",
        "KV in use": _share(signals, "kv_usage"),
        "Running": fmt.count(_number(signals, "running")),
        "Waiting": fmt.count(_number(signals, "waiting")),
        "Tok/s in": fmt.rate(_number(signals, "prompt_tokens_per_s")),
        "Tok/s out": fmt.rate(_number(signals, "generation_tokens_per_s")),
        "TTFT p90": fmt.latency_value(signals["ttft_s.p90"]) if signals else fmt.UNKNOWN,
        "ITL p90": fmt.latency_value(signals["itl_s.p90"]) if signals else fmt.UNKNOWN,
        "Preempt/s": fmt.rate(_number(signals, "preemptions_per_s")),
        "Scraped": "never" if engine.age_s is None else f"{fmt.duration(engine.age_s)} ago",
        "Why": verdict.summary.removeprefix(f"{verdict.name}: "),
    }


def _number(signals: Signals | None, name: str) -> float | None:
    return None if signals is None else signals.number(name)


def _share(signals: Signals | None, name: str) -> float | None:
    value = _number(signals, name)
    return None if value is None else value * 100
