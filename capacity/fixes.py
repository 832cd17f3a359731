"""What to change when a plan does not hold the wanted requests: each change computed, none of it general advice.

Source: plan() and the searches. Left out: the inverse questions themselves (search), speed (sizing).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from capacity.hardware import gpus
from capacity.length_curve import longest_in_pool
from capacity.parallelism import valid_tensor_parallel_sizes
from capacity.plan import Plan
from capacity.resolve import resolve
from capacity.scenario import Scenario
from capacity.search import (
    MEASURED_POOL,
    UTILIZATION_STEPS,
    Found,
    enough,
    fewest_gpus,
    longest_model_len,
    planned,
    smallest_utilization,
    without_stages,
)
from capacity.units import GIB
from capacity.verdict import largest_utilization, too_old

SHORTEST_OFFERED = 512
MOST_LARGER = 8


def fixes(found: Plan, *, concurrency: int = 1, limit: int = 6) -> tuple[dict[str, Any], ...]:
    """What to change when a plan does not hold ``concurrency`` requests: each change computed, smallest effect on
    the deployment first; those whose low end does not hold them (``fit`` marginal) last. Empty when it already holds
    them."""
    if enough(found, concurrency):
        return ()
    ranked = tuple(_ranked(found, concurrency))
    if not ranked or found.binding_constraint == "weights":
        ranked += tuple(_larger_gpus(found, concurrency))
    return tuple(sorted(ranked, key=lambda fix: fix["fit"] != "yes"))[:limit]


def _ranked(found: Plan, concurrency: int) -> Iterator[dict[str, Any]]:
    r = found.resolved
    s = replace(
        r.scenario, prompt_tokens=None, output_tokens=None
    )  # full-length requests are what is counted
    measured = [key for key in MEASURED_POOL if getattr(s, key) is not None]
    given = bool(measured)
    if given and found.binding_constraint == "memory":
        left = dict.fromkeys(measured)
        yield from _single(s, left, f"leave out {', '.join(measured)}", concurrency)
    largest = largest_utilization(r)
    if found.binding_constraint == "free_memory" and largest >= UTILIZATION_STEPS.start / 100:
        lower_to = {"gpu_memory_utilization": largest}
        yield from _single(s, lower_to, f"lower --gpu-memory-utilization to {largest:.2f}", concurrency)
    elif r.total_bytes is not None and not given and _weights_fit(found, largest):
        yield from _offer(
            smallest_utilization(s, concurrency=concurrency), "raise --gpu-memory-utilization", s
        )
    if (
        found.binding_constraint != "weights"
    ):  # nothing but weights and GPUs helps where weights fill the budget
        yield from _smaller_engine(found, s, concurrency, given=given)
    crowded = found.binding_constraint in ("memory", "weights")  # what was measured cannot be on this card
    if r.total_bytes is not None and (crowded or not given):
        yield from _other_weights_and_gpus(found, s, concurrency)


def _weights_fit(found: Plan, largest: float) -> bool:
    """Whether the weights leave anything of the card at the largest utilization that is tried."""
    total, bills = found.resolved.total_bytes, found.bills
    if total is None or bills is None:
        return True
    most = min(largest, (UTILIZATION_STEPS.stop - 1) / 100)
    return bills.bills[bills.tightest].terms[0].bytes < most * total


def _smaller_engine(found: Plan, s: Scenario, concurrency: int, *, given: bool) -> Iterator[dict[str, Any]]:
    """Fewer seats and tokens per step, KV in 8 bits, a shorter length."""
    r = found.resolved
    seats = max(concurrency, min(r.max_num_seqs, 256))
    lower = {"max_num_seqs": seats, "max_num_batched_tokens": min(r.max_num_batched_tokens, 2048)}
    if not given and (seats < r.max_num_seqs or r.max_num_batched_tokens > 2048):
        yield from _single(
            s, lower, f"lower --max-num-seqs to {seats} and --max-num-batched-tokens to 2048", concurrency
        )
    if r.kv_format.id == "kv-bf16":
        yield from _single(
            s, {"kv_cache_dtype": "fp8"}, "store KV in 8 bits: --kv-cache-dtype fp8", concurrency
        )
    least = _useful_length(r.scenario)
    longest = longest_model_len(s, concurrency=concurrency)
    if longest.changes.get("max_model_len", 0) >= least:
        yield from _offer(longest, "shorten --max-model-len", s)
    else:  # nothing of use is sure: what the estimate holds
        length = longest_in_pool(found, concurrency, sure=False)
        if length >= least:
            yield from _single(
                s, {"max_model_len": length}, f"shorten --max-model-len to {length:,}", concurrency
            )


def _other_weights_and_gpus(found: Plan, s: Scenario, concurrency: int) -> Iterator[dict[str, Any]]:
    """Weights in fewer bits, then more GPUs."""
    r = found.resolved
    if not r.weight_format.is_quantised and s.weights_gib is None:
        in_8_bits = list(_single(s, {"weight_format": "fp8"}, "serve fp8 weights", concurrency))
        yield from in_8_bits
        if not in_8_bits:
            yield from _single(s, {"weight_format": "awq"}, "serve 4-bit weights (AWQ)", concurrency)
    if r.parallel.pipeline == 1:
        most = max(16, r.parallel.tensor * 2)
        more = fewest_gpus(s, concurrency=concurrency, max_gpus=most, known=found)
        if more.changes.get("pipeline_parallel_size", 1) > 1:
            alone = without_stages(s, more, concurrency, most, known=found)
            yield from _offer(alone, "use more GPUs with tensor parallelism alone", s)
        yield from _offer(more, "use more GPUs", s)


def _larger_gpus(found: Plan, concurrency: int) -> Iterator[dict[str, Any]]:
    """The fewest of the vendor's larger GPUs that hold the requests, the cheapest kind of so many."""
    r = found.resolved
    if r.gpu is None:
        return
    held = ("gpu_memory_gib", "pipeline_layer_split", *MEASURED_POOL)
    left = {key: None for key in held if getattr(r.scenario, key) is not None}
    s = replace(r.scenario, prompt_tokens=None, output_tokens=None)
    larger = [
        gpu
        for gpu in gpus().values()
        if gpu.vendor == r.gpu.vendor and (gpu.memory_gib or 0.0) > (r.gpu.memory_gib or 0.0)
    ]
    larger.sort(key=lambda gpu: (gpu.price_low_usd_per_hour is None, gpu.price_low_usd_per_hour or 0.0))
    shared = sum(stage.sharded for stage in found.weights.stages) * r.parallel.tensor
    for tensor in valid_tensor_parallel_sizes(r.spec, limit=MOST_LARGER):
        for gpu in larger:
            if s.weights_gib is None and shared / tensor > (gpu.memory_gib or 0.0) * GIB:
                continue
            layout: dict[str, Any] = {
                "gpu": gpu.id,
                "tensor_parallel_size": tensor,
                "pipeline_parallel_size": 1,
                **left,
            }
            if s.weights_gib is not None:
                ranks = r.parallel.tensor * r.parallel.pipeline
                layout["weights_gib"] = s.weights_gib * ranks / tensor
            offers = list(_single(s, layout, f"use {tensor} x {gpu.name}", concurrency))
            if offers:
                yield from offers
                return


def _useful_length(s: Scenario) -> int:
    """The shortest max_model_len worth offering: the workload's mean request, and no toy."""
    lengths = [length.mean for length in (s.prompt_tokens, s.output_tokens) if length is not None]
    return max(SHORTEST_OFFERED, round(sum(lengths)))


def _single(s: Scenario, changes: dict[str, Any], action: str, concurrency: int) -> Iterator[dict[str, Any]]:
    candidate = planned(replace(s, **changes))
    if candidate is None or (too_old(candidate.resolved) is not None and too_old(resolve(s)) is None):
        return
    counted = candidate.concurrency
    if candidate.fit != "no" and min(counted.guaranteed, counted.seats) >= concurrency:
        yield _fix(action, changes, candidate)


def _offer(answer: Found, action: str, s: Scenario) -> Iterator[dict[str, Any]]:
    if answer.plan is None or all(getattr(s, key) == value for key, value in answer.changes.items()):
        return
    text = ", ".join(
        f"{key} {value:,}" if isinstance(value, int) else f"{key} {value:.4g}"
        for key, value in answer.changes.items()
        if value is not None
    )
    yield _fix(f"{action} ({text})", answer.changes, answer.plan)


def _fix(action: str, changes: dict[str, Any], candidate: Plan) -> dict[str, Any]:
    return {
        "action": action,
        "changes": changes,
        "fit": candidate.fit,
        "guaranteed": candidate.concurrency.guaranteed,
        "max_concurrency": candidate.pool.max_concurrency if candidate.pool else None,
    }
