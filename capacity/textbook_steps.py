"""Why the engine's answer differs from the textbook's: one step at a time, each with the requests it leaves.

Source: the plan itself; every step is computed. Left out: nothing that the plan counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.model import Attention
from capacity.plan import Plan
from capacity.units import GIB, gib


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step from the textbook to the engine: what changes, and full-length requests after it."""

    name: str
    detail: str
    requests: float


def steps(plan: Plan) -> tuple[Step, ...]:
    """The walk from the textbook's requests to the engine's, empty when no memory is known."""
    book, bill, r = plan.textbook, plan.bill, plan.resolved
    if book.requests is None or bill is None or r.total_bytes is None:
        return ()
    gpus = r.parallel.tensor * r.parallel.pipeline
    request = book.bytes_per_token * r.max_model_len
    weights = sum(stage.total for stage in plan.weights.stages) * r.parallel.tensor
    seen = r.total_bytes * gpus

    def left(memory: float) -> float:
        return max(0.0, memory) / request

    pool_total = sum(plan.kv_bytes) * r.parallel.tensor
    per_request = plan.pool.blocks_per_max_request * plan.pool.bytes_per_block if plan.pool else 0
    found = [
        Step(name="textbook", detail=book.memory_text, requests=book.requests),
        Step(
            name="memory the engine sees",
            detail=f"{gib(r.total_bytes):.2f} GiB per GPU",
            requests=left(seen - weights),
        ),
        Step(
            name="utilisation",
            detail=f"gpu_memory_utilization {r.gpu_memory_utilization:.2f}",
            requests=left(seen * r.gpu_memory_utilization - weights),
        ),
        Step(
            name="activation, graphs, non-torch, other",
            detail=f"{(bill.non_kv_bytes - bill.terms[0].bytes) / GIB:.2f} GiB per GPU",
            requests=left(pool_total),
        ),
        Step(
            name="layout and blocks",
            detail=(
                f"{gib(per_request):.3f} GiB per request and GPU as the engine lays it out, "
                f"{gib(request) / gpus:.3f} GiB by the formula{_why(plan)}"
            ),
            requests=plan.pool.max_concurrency if plan.pool else 0.0,
        ),
        Step(
            name="whole requests",
            detail="one block is kept by the engine; parts of a request do not run",
            requests=float(plan.concurrency.guaranteed),
        ),
    ]
    return tuple(found)


def _why(plan: Plan) -> str:
    """Why a request takes more of each GPU than its share, where ranks keep the same bytes."""
    r = plan.resolved
    ranks = r.parallel.tensor // r.parallel.decode_context
    if ranks == 1:
        return ""
    if r.spec.uses_mla:
        return (
            f"; {ranks} tensor-parallel ranks keep the whole MLA latent each: data-parallel attention or "
            "decode context parallelism would divide it"
        )
    heads = {
        mixer.num_kv_heads
        for layer in r.spec.layers
        for mixer in layer.mixers
        if isinstance(mixer, Attention) and mixer.num_kv_heads < ranks
    }
    if heads:
        return f"; {min(heads)} KV heads are fewer than {ranks} tensor-parallel ranks, so ranks keep copies"
    return ""
