"""Block ids that requests take: of one length at start-up, and of many lengths at once.

Source: vLLM's planner by release (tests/golden/kv_reference.csv, 22 releases). Left out: speculation by n-grams.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capacity.engine import KvRules
from capacity.kv_cache.grouping import Grouping
from capacity.kv_cache.layer_cache import LayerCache
from capacity.units import ceil_div

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInputs:
    """What turns a grouping into a pool.

    ``available_bytes``: KV bytes of each pipeline stage's worst GPU. ``stages``: the cache-owning layers of each
    stage. ``concurrent_steps``: engine steps in flight (2 with async scheduling since 0.26, else 1).
    ``num_speculative_tokens`` adds that many state slots. ``align_state``: prefix caching on a model with state.
    """

    available_bytes: tuple[int, ...]
    stages: tuple[range, ...]
    max_model_len: int
    max_num_batched_tokens: int
    block_size: int
    concurrent_steps: int = 1
    decode_context_parallel_size: int = 1
    num_speculative_tokens: int = 0
    align_state: bool = False
    num_gpu_blocks_override: int | None = None


def blocks_for_request(
    cache: LayerCache, tokens: int, inputs: PoolInputs, rules: KvRules, *, in_flight: int | None = None
) -> int:
    """Block ids that one request of ``tokens`` tokens takes in a group of this cache.

    ``in_flight``: tokens of running steps that a window must still hold; default max_num_batched_tokens x steps.
    """
    flying = inputs.max_num_batched_tokens * inputs.concurrent_steps if in_flight is None else in_flight
    block = cache.block_size
    if cache.kind == "sliding":
        return ceil_div(min(cache.window - 1 + flying, tokens), block) + 1
    if cache.kind == "chunked":
        return ceil_div(min(cache.window + flying, tokens), block)
    if cache.kind == "state":
        if inputs.align_state and rules.state_ids == "length":
            return ceil_div(tokens, block)
        slots = inputs.num_speculative_tokens if rules.state_slots else 0
        return (2 if inputs.align_state and rules.state_ids == "two" else 1) + slots
    return ceil_div(ceil_div(tokens, inputs.decode_context_parallel_size), block)


def blocks_per_request(grouping: Grouping, tokens: int, inputs: PoolInputs, rules: KvRules) -> int:
    """Block ids that one request of ``tokens`` tokens takes over all groups."""
    return sum(blocks_for_request(group.cache, tokens, inputs, rules) for group in grouping.groups)


def blocks_of_lengths(
    grouping: Grouping,
    tokens: np.ndarray,
    inputs: PoolInputs,
    rules: KvRules,
    *,
    in_flight: int | None = None,
) -> np.ndarray:
    """``blocks_per_request`` for an array of lengths in tokens (any shape), as floats.

    ``in_flight``: tokens of running steps that a window still holds; default a full step, as the start-up check counts.
    """
    import numpy as np

    flying = inputs.max_num_batched_tokens * inputs.concurrent_steps if in_flight is None else in_flight
    total = np.zeros(tokens.shape)
    for cache, count in Counter(group.cache for group in grouping.groups).items():
        block = cache.block_size
        if cache.kind == "sliding":
            ids = np.ceil(np.minimum(cache.window - 1 + flying, tokens) / block) + 1
        elif cache.kind == "chunked":
            ids = np.ceil(np.minimum(cache.window + flying, tokens) / block)
        elif cache.kind == "state":
            ids = np.full(tokens.shape, float(blocks_for_request(cache, 1, inputs, rules)))
            if inputs.align_state and rules.state_ids == "length":
                ids = np.ceil(tokens / block)
        else:
            ids = np.ceil(np.ceil(tokens / inputs.decode_context_parallel_size) / block)
        total += count * ids
    return total


def shared_blocks(grouping: Grouping, tokens: np.ndarray, inputs: PoolInputs) -> np.ndarray:
    """Block ids that prefixes of those lengths in tokens share: whole blocks of the groups that keep every token."""
    import numpy as np

    held = np.floor(tokens / inputs.decode_context_parallel_size)
    total = np.zeros(tokens.shape)
    for group in grouping.groups:
        if group.cache.plans_as_full:
            total += np.floor(held / group.cache.block_size)
    return total
