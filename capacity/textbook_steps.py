"""Why the engine's answer differs from the textbook's: one step at a time, each with the requests it leaves.

Source: the plan itself; every step is computed. Left out: nothing that the plan counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from capacity.kv_cache.layer_cache import LayerCache
from capacity.kv_cache.pool import blocks_for_request
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
    """Why a request takes more or less of each GPU than the formula's share, each reason after a semicolon."""
    return "".join(f"; {reason}" for reason in (*_copies(plan), *_short_layers(plan), *_padding(plan)))


def _copies(plan: Plan) -> Iterator[str]:
    """Ranks that keep the same bytes."""
    r = plan.resolved
    ranks = r.parallel.tensor // r.parallel.decode_context
    if ranks == 1:
        return
    if r.spec.uses_mla:
        yield (
            f"{ranks} tensor-parallel ranks keep the whole MLA latent each: data-parallel attention or "
            "decode context parallelism would divide it"
        )
        return
    heads = {
        mixer.num_kv_heads
        for layer in r.spec.layers
        for mixer in layer.mixers
        if isinstance(mixer, Attention) and mixer.num_kv_heads < ranks
    }
    if heads:
        yield f"{min(heads)} KV heads are fewer than {ranks} tensor-parallel ranks, so ranks keep copies"


def _short_layers(plan: Plan) -> Iterator[str]:
    """Layers that keep less than the whole length, or something that the formula does not know."""
    if plan.pool is None:
        return
    layers: Counter[LayerCache] = Counter()
    for group in plan.grouping.groups:
        layers[group.cache] += len(group.layers)
    inputs, rules = plan.inputs, plan.resolved.release.kv
    for cache, count in layers.items():
        ids = blocks_for_request(cache, inputs.max_model_len, inputs, rules)
        each = "1 layer keeps" if count == 1 else f"{count} layers keep"
        if cache.kind in ("sliding", "chunked"):
            held = min(ids * cache.block_size, inputs.max_model_len)
            what = "window" if cache.kind == "sliding" else "chunk"
            yield f"{each} {held:,} tokens, their {what} of {cache.window:,} and the steps in flight"
        elif cache.kind == "state":
            blocks = "1 block" if ids == 1 else f"{ids:,} blocks"
            yield f"{each} a recurrent state of {blocks}, which the formula leaves out"
    if any(getattr(mixer, "indexer", None) for mixer in plan.resolved.spec.mixers()):
        yield "the sparse indexer keeps a key of its own per token, which the formula leaves out"


def _padding(plan: Plan) -> Iterator[str]:
    spare = plan.grouping.padding_layers
    if spare:
        yield f"{spare} layer{'' if spare == 1 else 's'} of padding make{'s' if spare == 1 else ''} the groups even"
