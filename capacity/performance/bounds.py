"""How many requests can run at once before the KV cache or the seats stop them, and the physical floor of a step.

Source: weights and cache per rank from ``work``; used where no full plan is at hand (fits, sizing over many GPUs).
Left out: activation profile and CUDA graphs term by term; plan.py has them, here they are one reserve.
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.performance.layout import Layout
from capacity.performance.work import StepWork
from capacity.units import GIB

RESERVE_GIB = 2.5
DEFAULT_UTILIZATION = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """``weights_bytes`` and ``cache_bytes`` per GPU, and what the cache holds in tokens of one data parallel rank.

    ``state_requests``: requests whose recurrent states and windows alone fill the cache. ``cache_bytes`` may be negative:
    the weights do not fit.
    """

    weights_bytes: float
    cache_bytes: float
    token_bytes: float
    request_bytes: float

    def requests(self, tokens_per_request: float) -> float:
        """Requests of that many tokens that one data parallel rank's cache holds (not rounded)."""
        each = self.token_bytes * tokens_per_request + self.request_bytes
        return max(self.cache_bytes, 0.0) / each if each > 0 else float("inf")


def room(
    work: StepWork, layout: Layout, *, memory_gib: float, utilization: float = DEFAULT_UTILIZATION
) -> Room:
    """Memory of one GPU split into weights, cache and a reserve of 2.5 GiB for activations and graphs.

    >>> from capacity.catalog import model_spec
    >>> from capacity.performance.work import step_work
    >>> from capacity.precision import resolve_kv_format, resolve_weight_format
    >>> work = step_work(model_spec("llama-3.1-8b"), resolve_weight_format("bf16"), resolve_kv_format("auto"))
    >>> round(room(work, Layout(), memory_gib=79.18).requests(8192), 1)
    53.8
    """
    tensor, ranks = layout.tensor, layout.tensor * layout.data if work.is_moe else layout.tensor
    dense = (work.dense_bytes + 2 * work.head_bytes) / tensor / layout.pipeline
    weights = dense + work.expert_bytes / ranks / layout.pipeline
    split = min(tensor, work.kv_heads) * layout.pipeline
    windows = sum(layer.kv_bytes * layer.window for layer in work.windows) / split
    return Room(
        weights_bytes=weights,
        cache_bytes=memory_gib * GIB * utilization - weights - RESERVE_GIB * GIB,
        token_bytes=(work.kv_bytes / split) + work.indexer_bytes / layout.pipeline,
        request_bytes=windows + work.state_bytes / tensor / layout.pipeline,
    )
