"""The answer of ``size`` as JSON: ranked deployments, what was left out and why, and what to change when nothing is left.

Left out: the search (sizing.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from capacity.errors import CapacityError
from capacity.estimate_cli import band
from capacity.performance.predict import ONE_TOKEN
from capacity.size_request import SizeRequest, parse_size
from capacity.sizing import Miss, Option, size

# In the order in which a person asks: nearly there, then what cannot be.
ORDER = {"ttft": 0, "tpot": 0, "max_gpus": 1, "hardware": 2, "layout": 3, "memory": 4, "input": 5}
SHOWN_MISSES = 200


def size_from(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of ``python -m capacity size`` as JSON."""
    request = parse_size(raw)
    options, refused = size(request)
    if not options and refused:
        reason, times = Counter(miss.reason for miss in refused.values()).most_common(1)[0]
        if 2 * times > len(refused) and any(
            miss.constraint == "input" for miss in refused.values() if miss.reason == reason
        ):
            raise CapacityError(reason)  # the question itself, whatever the GPU
    shown = options[: request.limit]
    return {
        "arrival_rate_rps": request.arrival_rate_rps,
        "slo": {
            "ttft_s": request.slo_ttft_s,
            "tpot_s": request.slo_tpot_s,
            "percentile": request.slo_percentile,
        },
        "rank_by": request.rank_by,
        "deployments": [_option_json(rank, option) for rank, option in enumerate(shown, start=1)],
        "found": len(options),
        "left_out": [
            {
                "candidate": name,
                "reason": miss.reason[:300],
                "constraint": miss.constraint,
                "needs_times": _short(miss.by),
            }
            for name, miss in _nearest_first(refused)[:SHOWN_MISSES]
        ],
        "warnings": [*request.notes, *_warnings(request, options, refused)],
    }


def _nearest_first(refused: Mapping[str, Miss]) -> list[tuple[str, Miss]]:
    return sorted(refused.items(), key=lambda item: (ORDER[item[1].constraint], item[1].by or 0.0))


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _example(refused: Mapping[str, Miss], constraint: str) -> str:
    """One of those left out, with the reason that most of them share."""
    few = {name: miss for name, miss in refused.items() if miss.constraint == constraint}
    reason = Counter(miss.reason for miss in reversed(few.values())).most_common(1)[0][0]
    name, miss = next(item for item in few.items() if item[1].reason == reason)
    return f" ({name}: {miss.reason})"


def nothing_found(request: SizeRequest, refused: Mapping[str, Miss]) -> str:
    """Which constraint stops every candidate, by how much the nearest misses it, and what would help."""
    count = {name: sum(miss.constraint == name for miss in refused.values()) for name in ORDER}
    near, helps = [], []
    slo = {name: miss for name, miss in refused.items() if miss.constraint in ("ttft", "tpot")}
    for few, advice in (
        (slo, ""),
        (
            {n: m for n, m in refused.items() if m.constraint == "max_gpus"},
            "raise max_gpus or lower spare_replicas" if request.spare_replicas else "raise max_gpus",
        ),
    ):
        if few:
            name, miss = min(few.items(), key=lambda item: item[1].by or 0.0)
            near.append(f"nearest of {len(few)}: {name}: {miss.reason}")
            helps.append(advice or f"relax slo_{miss.constraint}_s")
    rest = [
        f"{count[name]} {words}{'' if near else _example(refused, name)}"
        for name, words in (
            ("memory", "do not fit in memory"),
            ("hardware", "cannot run the format"),
            ("layout", "have no legal layout"),
            ("input", "lack a figure of the GPU"),
        )
        if count[name]
    ]
    if count["layout"] and not helps:
        helps.append("ask for other tensor_parallel_sizes")
    if count["memory"] and not helps:
        helps.append("allow a smaller format or larger tensor_parallel_sizes")
    if not refused:
        return "no deployment meets the target: nothing could be tried"
    return f"no deployment meets the target; {'; '.join([*near, *rest])}; {' or '.join(helps) or 'ask for other GPUs or formats'}"


def _warnings(request: SizeRequest, options: Sequence[Option], refused: Mapping[str, Miss]) -> list[str]:
    found = []
    if not options:
        found.append(nothing_found(request, refused))
    elif request.slo_ttft_s is None and request.slo_tpot_s is None:
        found.append("no SLO is given: loads go up to what the KV cache and the seats hold, however slow")
    if request.rank_by == "cost" and any(
        o.price_low_usd_per_hour != o.price_high_usd_per_hour for o in options
    ):
        found.append(
            "bundled prices are ranges: ranked by the geometric middle of low and high; prices_usd_per_gpu_hour sets yours"
        )
    if any(math.isnan(o.forecast.tpot_s.value[0]) for o in options):
        found.append(ONE_TOKEN)
    if request.slo_percentile != 50:
        found.append(
            "percentiles use the spread between requests of public open-loop runs (p99 is 3.2 x the median TTFT, 1.7 x TPOT); "
            "your traffic may spread more"
        )
    if len({o.weight_format for o in options}) > 1:
        found.append(
            "formats differ in output quality; test it on your own prompts, speed says nothing about it"
        )
    return found


def _option_json(rank: int, o: Option) -> dict[str, Any]:
    cost = o.usd_per_million_output_tokens
    return {
        "rank": rank,
        "gpu": o.gpu.id,
        "weight_format": o.weight_format,
        "tensor_parallel_size": o.tensor_parallel_size,
        "replicas": o.replicas,
        "spare_replicas": o.spare_replicas,
        "gpus": o.gpus,
        "concurrency_per_replica": float(f"{o.forecast.concurrency[0]:.4g}"),
        "rate_per_replica_rps": float(f"{o.rate_per_replica_rps:.6g}"),
        "most_rate_per_replica_rps": float(f"{o.most_rate_per_replica_rps:.6g}"),
        "most_concurrency_per_replica": float(f"{o.most_concurrency_per_replica:.6g}"),
        "utilization": float(f"{o.utilization:.4g}"),
        "tpot_s": band(o.forecast.tpot_s, 0),
        "ttft_s": band(o.forecast.ttft_s, 0),
        "output_tokens_per_s_per_gpu": float(f"{o.output_tokens_per_s_per_gpu:.6g}"),
        "usd_per_hour": None
        if o.price_low_usd_per_hour is None or o.price_high_usd_per_hour is None
        else {
            "low": float(f"{o.price_low_usd_per_hour:.4g}"),
            "high": float(f"{o.price_high_usd_per_hour:.4g}"),
            "source": o.price_source,
        },
        "usd_per_million_output_tokens": None
        if cost is None
        else {"low": float(f"{cost[0]:.4g}"), "high": float(f"{cost[1]:.4g}")},
        "joules_per_output_token_at_tdp": None
        if o.joules_per_output_token is None
        else float(f"{o.joules_per_output_token:.4g}"),
        "stopped_by": o.stopped_by,
        "holds_at_high_end": o.holds_at_high_end,
        "extrapolated": o.forecast.extrapolated,
        "unknown": list(o.unknown),
        "notes": list(o.notes),
    }
