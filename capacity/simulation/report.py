"""A run in figures: the JSON of ``simulate``. Percentiles, goodput, use of the pool, where time went,
warnings.

Times are seconds, None where nothing was measured. Source of the names: docs/simulation.md. Left out:
drawing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from capacity.simulation.findings import findings, unsteady
from capacity.simulation.meters import GapHistogram, quantile
from capacity.simulation.record import ABORTED, FINISHED, REJECTED, UNSEEN
from capacity.simulation.report_tables import refused_over_time, request_rows
from capacity.simulation.run import Run
from capacity.simulation.step_time import TICKS_PER_S
from capacity.workload import number

CLASSES = (
    (0, 256, "up to 256"),
    (256, 2048, "257 to 2,048"),
    (2048, 16384, "2,049 to 16,384"),
    (16384, 1 << 62, "longer"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """A request meets the objective when its TTFT and its TPOT (where it has one) are within these (None:
    any).
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            value = getattr(self, name)
            if value is not None:
                number(f"slo.{name}", value, 0, 1e9)


def spread(values: np.ndarray) -> dict[str, float | None]:
    """Mean and percentiles of the finite values.

    >>> spread(np.array([1.0, 3.0]))["mean"], spread(np.array([]))["p99"]
    (2.0, None)
    """
    finite = values[np.isfinite(values)]
    mean = float(finite.mean()) if finite.size else None
    return {
        "mean": mean,
        "p50": quantile(finite, 0.5),
        "p90": quantile(finite, 0.9),
        "p99": quantile(finite, 0.99),
        "max": float(finite.max()) if finite.size else None,
        "count": int(finite.size),
    }


def batch_interval(values: np.ndarray, batches: int = 20) -> dict[str, float | None]:
    """Half width of the 95 % confidence interval of the mean from ``batches`` batch means (values in order of
    arrival).

    None below 10 values a batch. Source: batch means, Student's t with batches - 1 degrees of freedom (2.093
    for 20).
    """
    finite = values[np.isfinite(values)]
    if finite.size < 10 * batches:
        return {"mean": float(finite.mean()) if finite.size else None, "half_width": None}
    usable = finite[: finite.size - finite.size % batches].reshape(batches, -1).mean(axis=1)
    t = 2.093 if batches == 20 else 2.0
    return {"mean": float(usable.mean()), "half_width": float(t * usable.std(ddof=1) / math.sqrt(batches))}


class Table:
    """Per-request columns of a run as numpy arrays (seconds), with the warm-up left out of ``kept``."""

    def __init__(self, run: Run, *, warmup_s: float = 0.0) -> None:
        record = run.record
        self.arrival_s = run.arrival_s
        self.outcome = np.frombuffer(record.outcome, dtype=np.int8)
        self.reason = np.frombuffer(record.reason, dtype=np.int16)
        self.scheduled_s = np.frombuffer(record.scheduled_s)
        self.first_token_s = np.frombuffer(record.first_token_s)
        self.end_s = np.frombuffer(record.end_s)
        self.preempted_s = np.frombuffer(record.preempted_s)
        self.preemptions = np.frombuffer(record.preemptions, dtype=np.dtype("l"))
        self.prompt = run.requests.prompt_tokens
        self.output = run.requests.output_tokens
        self.finished = self.outcome == FINISHED
        limit = np.inf if run.until_s is None else run.until_s
        self.arrived = (self.outcome != UNSEEN) | (np.isfinite(self.arrival_s) & (self.arrival_s <= limit))
        if run.cancelled:
            self.arrived = self.outcome != UNSEEN
        self.first_s = float(self.arrival_s.min()) if self.arrived.any() else 0.0
        first = self.first_s
        self.warmup_s = warmup_s
        late = self.arrived & (self.arrival_s >= first + warmup_s)
        self.measured = bool(late.any())
        self.kept = self.finished & late
        nothing = np.full(len(self.outcome), np.nan)
        done = self.finished
        self.ttft_s = np.where(done, self.first_token_s - self.arrival_s, nothing)
        wait = np.maximum(
            self.scheduled_s - self.arrival_s, 0.0
        )  # ticks round an arrival by up to half a femtosecond
        self.queue_s = np.where(done, wait, nothing)
        self.e2e_s = np.where(done, self.end_s - self.arrival_s, nothing)
        several = done & (self.output >= 2)
        self.tpot_s = np.divide(
            self.end_s - self.first_token_s, self.output - 1, out=nothing.copy(), where=several
        )
        self.prefill_s = self.ttft_s - self.queue_s
        self.decode_s = np.where(done, self.end_s - self.first_token_s, nothing)


def report(
    run: Run,
    *,
    slo: Slo | None = None,
    warmup_s: float = 0.0,
    timeline: bool = False,
    gantt: bool = False,
    notes: tuple[str, ...] = (),
    wall_s: float | None = None,
) -> dict[str, Any]:
    """The run as a JSON object."""
    slo = slo or Slo()
    table = Table(run, warmup_s=warmup_s)
    kept = table.kept
    first = table.first_s
    start = first + warmup_s
    last = np.nanmax(table.end_s) if np.isfinite(table.end_s).any() else first
    if run.until_s is not None and (table.arrived & (table.outcome == UNSEEN)).any():
        last = max(float(last), run.until_s)
    span = float(last) - start if table.measured else 0.0
    meters = [engine.meter for engine in run.engines]
    meets = kept & _meets(table, slo)
    output_tokens = int(table.output[kept].sum())
    gaps = GapHistogram()
    for meter in meters:
        gaps.merge(meter.gaps)
    result: dict[str, Any] = {
        "status": _status(run, table),
        "warnings": [*findings(run, table, slo), *run.requests.notes, *notes],
        "requests": _requests(run, table),
        "ttft_s": spread(table.ttft_s[kept]),
        "itl_s": {
            "mean": gaps.mean(),
            "p50": gaps.quantile(0.5),
            "p90": gaps.quantile(0.9),
            "p99": gaps.quantile(0.99),
            "count": gaps.weight,
        },
        "tpot_s": spread(table.tpot_s[kept]),
        "e2e_s": spread(table.e2e_s[kept]),
        "queue_s": spread(table.queue_s[kept]),
        "kv_usage": _usage(run, first, float(last)),
        "blocks": {
            "total": sum(engine.pool.total for engine in run.engines),
            "free_at_end": sum(engine.pool.free for engine in run.engines),
            "block_size": run.engines[0].layout.block_size,
        },
        "output_tokens_per_s": output_tokens / span if span > 0 else None,
        "request_rate_rps": int(kept.sum()) / span if span > 0 else None,
        "goodput_rps": int(meets.sum()) / span if span > 0 else None,
        "goodput_requests": int(meets.sum()) if table.measured else None,
        "slo_attainment": float(meets.sum() / kept.sum()) if kept.any() else None,
        "recomputed_tokens": sum(meter.recomputed_tokens for meter in meters),
        "aborted_tokens": {
            "computed": sum(m.aborted_prompt_tokens + m.aborted_output_tokens for m in meters),
            "prompt": sum(m.aborted_prompt_tokens for m in meters),
            "output": sum(m.aborted_output_tokens for m in meters),
        },
        "preemption": _preemption(run, table),
        "steps": _steps(run),
        "prefix_cache": _prefix(meters),
        "time_share": _time_share(table, kept),
        "waiting_cause_s": {
            cause: sum(meter.wait_ticks[cause] for meter in meters) / TICKS_PER_S
            for cause in meters[0].wait_ticks
        },
        "length_classes": _classes(table, kept),
        "confidence": {name: batch_interval(getattr(table, name)[kept]) for name in ("ttft_s", "e2e_s")},
        "refusals": dict(sorted(run.refusals.items())),
        "retries": run.retries,
        "queueing_notices": run.notices,
        "utilisation": _utilisation(run, first, float(last)),
        "replicas": _replicas(run),
        "duration_s": float(last) - first,
        "wall_s": wall_s,
    }
    if timeline:
        result["timeline"] = [engine.meter.timeline.as_columns() for engine in run.engines]
        result["timeline_refused"] = refused_over_time(run, table, result["timeline"][0]["t_s"])
    if gantt:
        result["gantt"] = request_rows(run, table)
    return result


def _status(run: Run, table: Table) -> str:
    """ "ok", or what a script must not take for success: "cancelled", "everything_rejected", "nothing_finished",
    "nothing_after_warmup", "cut" (at until_s), "no_steady_state".
    """
    if run.cancelled:
        return "cancelled"
    arrived = int(table.arrived.sum())
    if arrived and int((table.outcome == REJECTED).sum()) == arrived:
        return "everything_rejected"
    if not table.finished.any():
        return "nothing_finished"
    if not table.measured:
        return "nothing_after_warmup"
    if (table.outcome == UNSEEN).any():
        return "cut"
    return "no_steady_state" if unsteady(run, table) else "ok"


def _meets(table: Table, slo: Slo) -> np.ndarray:
    good = np.ones(len(table.outcome), bool)
    if slo.ttft_s is not None:
        good &= ~(table.ttft_s > slo.ttft_s)
    if slo.tpot_s is not None:
        good &= ~(table.tpot_s > slo.tpot_s)
    if slo.e2e_s is not None:
        good &= table.e2e_s <= slo.e2e_s
    return good


def _requests(run: Run, table: Table) -> dict[str, Any]:
    reasons = run.record.reasons
    rejected = {
        reasons[code]: int(count)
        for code, count in enumerate(
            np.bincount(table.reason[table.outcome == REJECTED], minlength=len(reasons))
        )
        if count
    }
    aborted = {
        reasons[code]: int(count)
        for code, count in enumerate(
            np.bincount(table.reason[table.outcome == ABORTED], minlength=len(reasons))
        )
        if count
    }
    return {
        "arrived": int(table.arrived.sum()),
        "finished": int(table.finished.sum()),
        "rejected": rejected,
        "aborted": sum(aborted.values()),
        "aborted_by_reason": aborted,
        "in_flight_at_end": int((table.arrived & (table.outcome == UNSEEN)).sum()),
        "preemptions": sum(engine.meter.preemptions for engine in run.engines),
        "preempted": int((table.preemptions > 0).sum()),
        "max_preemptions_of_one": int(table.preemptions.max(initial=0)),
    }


def _usage(run: Run, first: float, last: float) -> dict[str, float | None]:
    """Waterline over the whole run (idle time counts as empty), all engines together for the mean."""
    span = round((last - first) * TICKS_PER_S)
    meters = [engine.meter for engine in run.engines]
    total = sum(meter.total_blocks for meter in meters)
    p99 = [meter.usage_quantile(0.99, span) for meter in meters]
    return {
        "mean": sum(meter.used_area for meter in meters) / (span * total) if span > 0 else None,
        "p99": max((value for value in p99 if value is not None), default=None),
        "peak": max(meter.peak_blocks / meter.total_blocks for meter in meters),
    }


def _utilisation(run: Run, first: float, last: float) -> float | None:
    """Share of the engines' time, from their start on, in which a step was being computed."""
    late = run.started
    spans = [last - first] * (len(run.engines) - len(late)) + [max(last - at, 0.0) for at in late]
    busy = sum(engine.meter.busy_ticks for engine in run.engines) / TICKS_PER_S
    return _ratio(min(busy, sum(spans)), sum(spans))


def _preemption(run: Run, table: Table) -> dict[str, Any]:
    meters = [engine.meter for engine in run.engines]
    arrived = max(len(table.outcome), 1)
    return {
        "share_of_requests": float((table.preemptions > 0).sum() / arrived),
        "recomputed_tokens": sum(meter.recomputed_tokens for meter in meters),
        "swapped_blocks": sum(meter.swapped_blocks for meter in meters),
        "swap_s": sum(meter.swap_ticks for meter in meters) / TICKS_PER_S,
        "swap_refused": sum(meter.swap_refused for meter in meters),
        "preempted_s": float(table.preempted_s.sum()),
    }


def _steps(run: Run) -> dict[str, Any]:
    meters = [engine.meter for engine in run.engines]
    steps = sum(meter.steps for meter in meters)
    with_prompts = sum(meter.prefill_steps for meter in meters)
    return {
        "total": steps,
        "with_prompts": with_prompts,
        "mixed": sum(meter.mixed_steps for meter in meters),
        "decode_only": steps - with_prompts,
        "prompt_tokens": sum(meter.prompt_tokens for meter in meters),
        "output_tokens": sum(meter.output_tokens for meter in meters),
        "busy_s": sum(meter.busy_ticks for meter in meters) / TICKS_PER_S,
        "mean_running": _ratio(sum(m.running_area for m in meters), sum(m.busy_ticks for m in meters)),
        "peak_running": max(meter.peak_running for meter in meters),
        "peak_waiting": max(meter.peak_waiting for meter in meters),
        "budget_lost_to_prefill_cap_tokens": sum(meter.cap_lost_tokens for meter in meters),
    }


def _ratio(top: float, bottom: float) -> float | None:
    return top / bottom if bottom else None


def _prefix(meters: list[Any]) -> dict[str, Any]:
    queried = sum(meter.queried_tokens for meter in meters)
    hit = sum(meter.hit_tokens for meter in meters)
    return {"queried_tokens": queried, "hit_tokens": hit, "hit_rate": _ratio(hit, queried)}


def _time_share(table: Table, kept: np.ndarray) -> dict[str, float | None]:
    """Where the seconds of finished requests went; the parts add up to 1."""
    total = float(np.nansum(table.e2e_s[kept]))
    if total <= 0:
        return {"queue": None, "prefill": None, "decode": None, "preempted": None}
    queue = float(np.nansum(table.queue_s[kept]))
    preempted = float(table.preempted_s[kept].sum())
    prefill = float(
        np.nansum(np.where(np.isfinite(table.prefill_s), table.prefill_s, table.e2e_s - table.queue_s)[kept])
    )
    decode = max(total - queue - prefill - preempted, 0.0)
    prefill = max(total - queue - decode - preempted, 0.0)
    return {
        "queue": queue / total,
        "prefill": prefill / total,
        "decode": decode / total,
        "preempted": preempted / total,
    }


def _classes(table: Table, kept: np.ndarray) -> list[dict[str, Any]]:
    """Fairness: how requests of each prompt length fared (slowdown = E2E per token, against the mean of all)."""
    rows: list[dict[str, Any]] = []
    for low, high, label in CLASSES:
        inside = (table.prompt > low) & (table.prompt <= high) if low else table.prompt <= high
        if not inside.any():
            continue
        mine = inside & kept
        rows.append(
            {
                "prompt_tokens": label,
                "arrived": int(inside.sum()),
                "finished": int((inside & table.finished).sum()),
                "rejected": int((inside & (table.outcome == REJECTED)).sum()),
                "ttft_p50_s": quantile(table.ttft_s[mine], 0.5),
                "ttft_p99_s": quantile(table.ttft_s[mine], 0.99),
                "tpot_p50_s": quantile(table.tpot_s[mine], 0.5),
                "preemptions": int(table.preemptions[inside].sum()),
            }
        )
    return rows


def _replicas(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "replica": engine.number,
            "finished": engine.meter.finished,
            "preemptions": engine.meter.preemptions,
            "busy_s": engine.meter.busy_ticks / TICKS_PER_S,
            "peak_kv_usage": engine.meter.peak_blocks / engine.meter.total_blocks,
            "peak_waiting": engine.meter.peak_waiting,
        }
        for engine in run.engines
    ]
