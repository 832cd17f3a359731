"""Blocks from bytes, blocks that one request needs, concurrency, and the lines the engine logs.

Source: vLLM's planner by release (tests/golden/kv_reference.csv, 22 releases). Floats are combined in the engine's
own order, so that a figure that falls one short there falls one short here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capacity.engine import KvRules
from capacity.errors import CapacityError
from capacity.kv_cache.grouping import Grouping
from capacity.kv_cache.layer_cache import LayerCache
from capacity.units import ceil_div, gib, memory_text

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A block pool as the engine reports it, and whether one full-length request passes its start-up check."""

    num_blocks: int
    bytes_per_block: int
    blocks_per_max_request: int
    max_concurrency: float
    tokens: int
    tokens_logged: int
    log_lines: tuple[str, ...]
    starts: bool
    needed_bytes: int
    stage: int
    stage_blocks: tuple[int, ...]
    refusal: str | None = None
    longest_max_model_len: int | None = None


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
        return (2 if inputs.align_state and rules.state_ids == "two" else 1) + inputs.num_speculative_tokens
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


def build_pool(grouping: Grouping, layers: Sequence[LayerCache], inputs: PoolInputs, rules: KvRules) -> Pool:
    """The pool of one engine: the stage with the fewest blocks sets it.

    Raises CapacityError where the inputs cannot make a pool at all (no bytes for one block).
    """
    per_stage = [
        (max(0, available) // stage_bytes, stage_bytes, index)
        for index, (available, stage) in enumerate(zip(inputs.available_bytes, inputs.stages, strict=True))
        if (stage_bytes := grouping.bytes_per_block(stage)) > 0
    ]
    if not per_stage:
        raise CapacityError("no pipeline stage holds a layer with a cache", field="pipeline_parallel_size")
    num_blocks, bytes_per_block, stage = min(per_stage)
    widest = max(size for _, size, _ in per_stage)
    if inputs.num_gpu_blocks_override is not None:
        num_blocks = inputs.num_gpu_blocks_override
    need = blocks_per_request(grouping, inputs.max_model_len, inputs, rules)
    concurrency = num_blocks / need
    held = int(concurrency * inputs.max_model_len)
    smallest = min(group.cache.block_size for group in grouping.groups)

    def logged(blocks: int) -> int:
        if rules.tokens_logged == "concurrency":
            return int(blocks / need * inputs.max_model_len)
        block = inputs.block_size if rules.tokens_logged == "config_block" else smallest
        return blocks // len(grouping.groups) * block * inputs.decode_context_parallel_size

    needed_bytes = _needed_bytes(grouping, layers, need, bytes_per_block, inputs, rules)
    available = inputs.available_bytes[stage]
    if inputs.num_gpu_blocks_override is not None:
        available = num_blocks * bytes_per_block
    spare = bytes_per_block if rules.null_block_in_check else 0
    starts = num_blocks > 0 and needed_bytes <= available - spare
    refusal = longest = None
    if not starts:
        longest = longest_length(
            grouping, layers, inputs, rules, available=available, bytes_per_block=bytes_per_block
        )
        refusal = (
            f"one request of {inputs.max_model_len:,} tokens needs {memory_text(needed_bytes)} of KV cache, "
            f"the pool has {memory_text(max(0, available))}{' less the block that the engine keeps' if spare else ''}"
        )
    printed = [blocks for blocks, _, _ in per_stage] if rules.lines_per_stage else [num_blocks]
    if inputs.num_gpu_blocks_override is not None:
        printed = [num_blocks]
    lines = tuple(
        line
        for blocks in printed
        for line in log_lines(logged(blocks), inputs.max_model_len, blocks / need, available, rules)
    )
    return Pool(
        num_blocks=num_blocks,
        bytes_per_block=widest,
        blocks_per_max_request=need,
        max_concurrency=concurrency,
        tokens=held,
        tokens_logged=logged(num_blocks),
        log_lines=lines,
        starts=starts,
        needed_bytes=needed_bytes,
        stage=stage,
        stage_blocks=tuple(blocks for blocks, _, _ in per_stage),
        refusal=refusal,
        longest_max_model_len=longest,
    )


def longest_length(
    grouping: Grouping,
    layers: Sequence[LayerCache],
    inputs: PoolInputs,
    rules: KvRules,
    *,
    available: int,
    bytes_per_block: int,
) -> int:
    """Largest request length in tokens that the start-up check lets pass; 0 when none does. Binary search."""
    room = available - (bytes_per_block if rules.null_block_in_check else 0)

    def fits(tokens: int) -> bool:
        need = blocks_per_request(grouping, tokens, inputs, rules)
        return _needed_bytes(grouping, layers, need, bytes_per_block, inputs, rules, tokens=tokens) <= room

    low, high = 0, inputs.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _needed_bytes(
    grouping: Grouping,
    layers: Sequence[LayerCache],
    need: int,
    bytes_per_block: int,
    inputs: PoolInputs,
    rules: KvRules,
    *,
    tokens: int | None = None,
) -> int:
    """Bytes that the start-up check of this release asks for one request."""
    length = inputs.max_model_len if tokens is None else tokens
    if grouping.uniform or rules.size_check == "blocks":
        return need * bytes_per_block
    if rules.size_check == "page_per_group":
        return need * grouping.page_bytes
    return sum(blocks_for_request(layer, length, inputs, rules) * layer.page_bytes for layer in layers)


def log_lines(
    tokens: int, max_model_len: int, concurrency: float, available_bytes: int, rules: KvRules
) -> tuple[str, ...]:
    """The lines that this release prints about the pool."""
    memory = f"Available KV cache memory: {gib(max(0, available_bytes)):.2f} GiB"
    if rules.one_log_line:
        return (
            memory,
            f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {max_model_len:,} tokens per request: "
            f"{concurrency:.2f}x",
        )
    return (
        memory,
        f"GPU KV cache size: {tokens:,} tokens",
        f"Maximum concurrency for {max_model_len:,} tokens per request: {concurrency:.2f}x",
    )
