"""Rows of the Options tab: formats and caches, layouts, prefill and decode apart, as texts for the screen and as CSV.

Left out: the figures (capacity/speed_options.py). No Streamlit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from capacity.speed_options import Disaggregated, Variant
from pages.ui.compare_parts import plain, seconds, spread, together
from pages.ui.format import UNKNOWN, count, first_upper, gib, rate

SIZES = (
    ("TP", "tensor_parallel_size"),
    ("PP", "pipeline_parallel_size"),
    ("DP", "data_parallel_size"),
)


def layout_name(changes: dict[str, Any]) -> str:
    """A layout in a few letters.

    >>> layout_name({"tensor_parallel_size": 4, "pipeline_parallel_size": 1, "data_parallel_size": 2,
    ...              "enable_expert_parallel": True})
    'TP4 x DP2 with EP'
    """
    parts = [f"{label}{changes[key]}" for label, key in SIZES if changes[key] > 1]
    return (" x ".join(parts) or "TP1") + (" with EP" if changes["enable_expert_parallel"] else "")


def format_name(changes: dict[str, Any]) -> str:
    """Weights and cache of an option.

    >>> format_name({"weight_format": "awq", "kv_cache_dtype": "fp8"})
    'awq weights, fp8 KV'
    """
    cache = changes["kv_cache_dtype"]
    return f"{changes['weight_format']} weights" + ("" if cache == "auto" else f", {cache} KV")


def _speeds(row: Variant) -> dict[str, str]:
    one = row.forecast
    if one is None:
        return {"TPOT": UNKNOWN, "TTFT": UNKNOWN, "Output tokens/s": UNKNOWN}

    def words(band: Any, show: Any) -> str:
        value, low, high = (float(part[0]) for part in (band.value, band.low, band.high))
        return f"**{plain(show(value))}**{plain(together(spread(value, low, high, show)))}"

    return {
        "TPOT": words(one.tpot_s, seconds),
        "TTFT": words(one.ttft_s, seconds),
        "Output tokens/s": words(one.output_tokens_per_s, rate),
    }


def _limit(value: float | None) -> str:
    return UNKNOWN if value is None else count(int(value))


def format_rows(rows: Sequence[Variant]) -> list[dict[str, str]]:
    """Formats for the screen; where one cannot run, the reason is in the last column."""
    return [
        {
            "Option": plain(format_name(row.changes)),
            "Weights per GPU, GiB": gib(row.weights_gib),
            "Requests held": _limit(row.kv_concurrency),
            **_speeds(row),
            "Quality": plain(first_upper(row.reason)) if row.reason else ", ".join(row.quality_kinds),
        }
        for row in rows
    ]


def layout_rows(rows: Sequence[Variant]) -> list[dict[str, str]]:
    """Layouts for the screen."""
    return [
        {
            "Layout": layout_name(row.changes),
            "Weights per GPU, GiB": gib(row.weights_gib),
            "Requests held": _limit(row.kv_concurrency),
            **_speeds(row),
            "Traffic per GPU, GB/s": UNKNOWN
            if row.traffic_gb_per_s is None
            else f"{row.traffic_gb_per_s:,.1f}",
            **({"Why not": plain(first_upper(row.reason or ""))} if any(one.reason for one in rows) else {}),
        }
        for row in rows
    ]


def extrapolations(rows: Sequence[Variant], name: Callable[[dict[str, Any]], str]) -> list[str]:
    """Why figures of options are extrapolated, each reason once with the options that it is for."""
    able = [row for row in rows if row.forecast is not None]
    found: dict[str, list[str]] = {}
    for row in able:
        for reason in row.forecast.reasons if row.forecast else ():
            found.setdefault(reason, []).append(name(row.changes))
    return [
        first_upper(reason) if len(names) == len(able) else f"{'; '.join(names)}: {reason}."
        for reason, names in found.items()
    ]


def split_rows(rows: Sequence[Disaggregated]) -> list[dict[str, str]]:
    """Splits into prefill and decode for the screen."""
    return [
        {
            "Prefill + decode replicas": f"{row.prefill_replicas} + {row.decode_replicas}",
            "GPUs": count(row.gpus),
            "Requests/s": f"**{row.requests_per_s:,.2f}**",
            "TTFT": seconds(row.ttft_s),
            "TPOT": seconds(row.tpot_s),
            "Cache transfer": seconds(row.transfer_s),
            "Limited by": row.limited_by,
        }
        for row in rows
    ]


def variant_csv(rows: Sequence[Variant]) -> list[dict[str, Any]]:
    """Options with figures unrounded."""
    keys = list(dict.fromkeys(key for row in rows for key in row.changes))
    found = []
    for row in rows:
        out: dict[str, Any] = {key: row.changes.get(key) for key in keys}
        out |= {
            "gpus": row.gpus,
            "weights_gib_per_gpu": row.weights_gib,
            "requests_held": row.kv_concurrency,
            "traffic_gb_per_s_per_gpu": row.traffic_gb_per_s,
        }
        for name in ("tpot_s", "ttft_s", "output_tokens_per_s"):
            band = getattr(row.forecast, name) if row.forecast else None
            for end in ("value", "low", "high"):
                key = name if end == "value" else f"{name}_{end}"
                value = math.nan if band is None else float(getattr(band, end)[0])
                out[key] = None if math.isnan(value) else value
        out |= {"quality": row.quality or None, "note": row.note or None, "reason": row.reason}
        found.append(out)
    return found


def split_csv(rows: Sequence[Disaggregated]) -> list[dict[str, Any]]:
    """Splits with figures unrounded."""
    keys = (
        "prefill_replicas",
        "decode_replicas",
        "gpus",
        "requests_per_s",
        "colocated_requests_per_s",
        "limited_by",
        "ttft_s",
        "tpot_s",
        "transfer_s",
    )
    return [{key: getattr(row, key) for key in keys} for row in rows]


def best(rows: Sequence[Variant], name: Callable[[dict[str, Any]], str]) -> str:
    """What stands out among options, as a sentence without an end: lowest TPOT, most tokens/s."""
    able = [row for row in rows if row.forecast is not None]
    if not able:
        return "None of these can run"
    timed = [row for row in able if row.forecast and not math.isnan(row.forecast.tpot_s.value[0])]
    fast = min(timed or able, key=lambda row: float(row.forecast.tpot_s.value[0]) if row.forecast else 0.0)
    most = max(
        able, key=lambda row: float(row.forecast.output_tokens_per_s.value[0]) if row.forecast else 0.0
    )
    assert fast.forecast is not None
    assert most.forecast is not None
    tpot, tokens = float(fast.forecast.tpot_s.value[0]), float(most.forecast.output_tokens_per_s.value[0])
    if not timed:
        return f"{name(most.changes)} has the most output tokens/s, {rate(tokens)}"
    if fast is most:
        return f"{name(fast.changes)} is best: TPOT {seconds(tpot)}, {rate(tokens)} output tokens/s"
    return (
        f"{name(fast.changes)} has the lowest TPOT, {seconds(tpot)}; {name(most.changes)} the most output tokens/s, "
        f"{rate(tokens)}"
    )
