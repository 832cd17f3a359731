"""The per-replica table: one row per engine, worst first. Pure: view to data frame and column settings."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from capacity.telemetry import Signals
from capacity.verdicts import SEVERITIES
from connectors.live_view import EngineView, LiveView
from pages.ui import live_format as fmt
from pages.ui.live_why import unknown_cells

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
    "Scrape age",
)
# Column -> width in pixels, and what a newcomer would not know.
WIDTHS: dict[str, tuple[int, str | None]] = {
    "Replica": (108, "One engine; click its row to see its charts and evidence alone"),
    "State": (124, "The verdict on this replica; the reason stands below the table"),
    "KV in use": (96, "Share of the KV cache's blocks in use: the waterline"),
    "Running": (66, "Requests in the batch"),
    "Waiting": (66, "Requests in the queue"),
    "Tok/s in": (70, "Prompt tokens per second, mean of the last minute; cached ones count too"),
    "Tok/s out": (74, "Output tokens per second, mean of the last minute"),
    "TTFT p90": (76, "Time to first token: 90 % of requests wait no longer"),
    "ITL p90": (70, "Time between tokens: 90 % are no longer"),
    "Preempt/s": (
        78,
        "Requests per second that lose their KV blocks and are computed again, mean of the last minute",
    ),
    "Scrape age": (84, "How long ago this replica was read"),
}
COUNTS = {"Running": "running", "Waiting": "waiting"}
RATES = {
    "Tok/s in": "prompt_tokens_per_s",
    "Tok/s out": "generation_tokens_per_s",
    "Preempt/s": "preemptions_per_s",
}
NUMBERS = (*COUNTS, *RATES)
PERCENTILES = {"TTFT p90": "ttft_s.p90", "ITL p90": "itl_s.p90"}
RIGHT = (*PERCENTILES, "Scrape age")


def ordered(view: LiveView) -> list[EngineView]:
    """The replicas as the table lists them: worst first, then the fullest."""
    return sorted(
        view.engines, key=lambda e: (-SEVERITIES.index(e.verdict.severity), _kv_order(e.signals), e.name)
    )


def kept(order: Sequence[EngineView], names: Sequence[str]) -> list[EngineView]:
    """The replicas in the order of ``names``, new ones last."""
    place = {name: index for index, name in enumerate(names)}
    return sorted(order, key=lambda e: place.get(e.name, len(place)))


def frame(order: Sequence[EngineView]) -> pd.DataFrame:
    """Rows of ``COLUMNS``; counts and rates are numbers so that they sort, unknown ones are missing."""
    found = pd.DataFrame([_row(engine) for engine in order], columns=list(COLUMNS))
    return found.astype(dict.fromkeys(("KV in use", *NUMBERS), "Float64"))


def full(view: LiveView) -> pd.DataFrame:
    """The same rows for a file: seconds and shares as numbers, release, model and the reason in words."""
    rows = []
    for engine in ordered(view):
        signals = engine.signals
        rows.append(
            {
                "replica": engine.name,
                "model": engine.model_name,
                "release": engine.release,
                "state": engine.verdict.name,
                "severity": engine.verdict.severity.value,
                "kv_usage": _number(signals, "kv_usage"),
                **{name: _number(signals, name) for name in COUNTS.values()},
                **{name: _number(signals, name) for name in RATES.values()},
                **{
                    f"{family}_{p}": _number(signals, f"{family}.{p}")
                    for family in ("ttft_s", "itl_s")
                    for p in ("p50", "p90", "p99")
                },
                "time_to_full_s": engine.forecast.expected_s if engine.forecast else None,
                "scrape_age_s": None if engine.age_s is None else round(engine.age_s, 1),
                "demo": engine.demo,
                "why": engine.verdict.summary,
                "not_known": unknown_cells(engine),
            }
        )
    return pd.DataFrame(rows)


def _kv_order(signals: Signals | None) -> float:
    usage = _number(signals, "kv_usage")
    return -(usage if usage is not None else -1.0)


def _row(engine: EngineView) -> dict[str, object]:
    signals = engine.signals
    verdict = engine.verdict
    usage = _number(signals, "kv_usage")
    return {
        "Replica": engine.name,
        "State": f"{ICONS[verdict.severity.value]} {verdict.name}",
        "KV in use": None if usage is None else usage * 100,
        **{column: _number(signals, name) for column, name in COUNTS.items()},
        **{column: _rounded(_number(signals, name)) for column, name in RATES.items()},
        **{
            column: fmt.latency_value(signals[name]) if signals else fmt.UNKNOWN
            for column, name in PERCENTILES.items()
        },
        "Scrape age": "never" if engine.age_s is None else fmt.duration(engine.age_s),
    }


def _rounded(rate: float | None) -> float | None:
    """As precise as the rest of the page writes a rate."""
    if rate is None or rate == 0:
        return rate
    return float(f"{rate:.2g}") if rate < 0.1 else round(rate, 1) if rate < 10 else round(rate)


def _number(signals: Signals | None, name: str) -> float | None:
    return None if signals is None else signals.number(name)
