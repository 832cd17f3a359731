"""How many requests of one length the planned pool holds, from short ones to max_model_len, with the memory interval.

Source: the block rule of each group (kv_cache.pool) at other lengths in the same pool. Left out: mixed lengths
(concurrency) and another max_model_len, which may change the pool (search).
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.kv_cache.pool import blocks_per_request
from capacity.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Requests of ``tokens`` tokens each that fit at once: estimate, low and high end; fractions are kept."""

    tokens: int
    requests: float
    low: float
    high: float


def length_curve(plan: Plan, *, points: int = 48) -> tuple[CurvePoint, ...]:
    """The curve over lengths spaced evenly on a log scale; empty when no block fits.

    >>> from capacity.plan import plan
    >>> from capacity.scenario import Scenario
    >>> p = plan(Scenario.parse({"model": "llama-3.1-8b", "kv_cache_gib": 16, "max_model_len": 8192}))
    >>> last = length_curve(p)[-1]
    >>> last.tokens, int(last.requests), p.concurrency.guaranteed
    (8192, 15, 15)
    """
    if plan.pool is None or plan.pool.num_blocks == 0:
        return ()
    longest, first = plan.inputs.max_model_len, min(128, plan.inputs.max_model_len)
    lengths = {round(first * (longest / first) ** (i / (points - 1))) for i in range(points)}
    middle, low, high = (
        usable_blocks(plan, kv) for kv in (plan.kv_bytes, plan.kv_low_bytes, plan.kv_high_bytes)
    )
    out = []
    for tokens in sorted(lengths):
        need = blocks_per_request(plan.grouping, tokens, plan.inputs, plan.resolved.release.kv)
        out.append(
            CurvePoint(tokens=tokens, requests=middle / need, low=min(low, middle) / need, high=high / need)
        )
    return tuple(out)


def usable_blocks(plan: Plan, available: tuple[int, ...]) -> int:
    """Block ids that requests can get out of ``available`` bytes per stage."""
    blocks = plan.inputs.num_gpu_blocks_override
    if blocks is None:
        sizes = [plan.grouping.bytes_per_block(stage) for stage in plan.inputs.stages]
        blocks = min(max(0, have) // size for have, size in zip(available, sizes, strict=True) if size)
    return max(0, blocks - 1) if plan.resolved.release.runner == "v1" else blocks


def longest_in_pool(plan: Plan, concurrency: int = 1, *, sure: bool = True) -> int:
    """The longest request, up to max_model_len, of which ``concurrency`` fit the blocks of this plan; when ``sure`` one
    of them also fits the low end. 0 = none."""
    middle, least = usable_blocks(plan, plan.kv_bytes), usable_blocks(plan, plan.kv_low_bytes)
    room = min(middle // concurrency, least) if sure else middle // concurrency
    low, high = 0, plan.inputs.max_model_len
    while low < high:
        at = (low + high + 1) // 2
        need = blocks_per_request(plan.grouping, at, plan.inputs, plan.resolved.release.kv)
        low, high = (at, high) if need <= room else (low, at - 1)
    return low
