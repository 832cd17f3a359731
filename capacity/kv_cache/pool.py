"""Blocks from bytes, blocks that one request needs, concurrency, and the lines the engine logs.

Source: vLLM's planner by release (tests/golden/kv_reference.csv, 22 releases). Floats are combined in the engine's
own order, so that a figure that falls one short there falls one short here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capacity.engine import KvRules
from capacity.errors import CapacityError
from capacity.kv_cache.grouping import Grouping
from capacity.kv_cache.layer_cache import LayerCache
from capacity.kv_cache.requests import (
    PoolInputs,
    blocks_for_request,
    blocks_of_lengths,
    blocks_per_request,
    shared_blocks,
)
from capacity.kv_cache.start_check import StartCheck
from capacity.units import gib, memory_text

__all__ = [
    "Pool",
    "PoolInputs",
    "blocks_for_request",
    "blocks_of_lengths",
    "blocks_per_request",
    "build_pool",
    "log_lines",
    "shared_blocks",
]


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


def build_pool(grouping: Grouping, layers: Sequence[LayerCache], inputs: PoolInputs, rules: KvRules) -> Pool:
    """The pool of one engine: the stage with the fewest blocks sets it.

    Raises CapacityError where a stage has no layer with a cache: the engine fails on it.
    """
    per_stage = [
        (max(0, available) // stage_bytes, stage_bytes, index)
        for index, (available, stage) in enumerate(zip(inputs.available_bytes, inputs.stages, strict=True))
        if (stage_bytes := grouping.bytes_per_block(stage)) > 0
    ]
    if len(per_stage) < len(inputs.stages):
        filled = {index for _, _, index in per_stage}
        empty = next(index for index in range(len(inputs.stages)) if index not in filled)
        raise CapacityError(
            f"pipeline stage {empty + 1} of {len(inputs.stages)} holds no layer with a cache of its own, so the engine does "
            "not start; expected fewer stages or another pipeline_layer_split",
            field="pipeline_parallel_size",
        )
    num_blocks, bytes_per_block, stage = min(per_stage)
    widest = max(size for _, size, _ in per_stage)
    if inputs.num_gpu_blocks_override is not None:
        num_blocks = inputs.num_gpu_blocks_override
    need = blocks_per_request(grouping, inputs.max_model_len, inputs, rules)
    concurrency = num_blocks / need
    held = int(concurrency * inputs.max_model_len)

    def logged(blocks: int, at: int = stage) -> int:
        groups = grouping.of_stage(at).groups
        if rules.tokens_logged == "concurrency":
            return int(blocks / need * inputs.max_model_len)
        block = min(group.cache.block_size for group in groups)
        ranks = inputs.decode_context_parallel_size
        if rules.tokens_logged == "config_block":
            block, ranks = (inputs.block_size, ranks) if grouping.uniform else (block, 1)
        return blocks // len(groups) * block * ranks

    available = inputs.available_bytes[stage]
    check = StartCheck(grouping=grouping, layers=layers, inputs=inputs, rules=rules)
    if inputs.num_gpu_blocks_override is not None:
        available = num_blocks * bytes_per_block
    short = check.first_shortfall(inputs.max_model_len)
    needed_bytes = short.needed if short is not None else check.needed_bytes(stage, inputs.max_model_len)
    starts = num_blocks > 0 and short is None
    refusal = longest = None
    if not starts:
        longest = check.longest_length()
        room = max(0, available) if short is None else max(0, short.available)
        refusal = (
            f"one request of {inputs.max_model_len:,} tokens needs {memory_text(needed_bytes)} of KV cache, "
            f"the pool has {memory_text(room)}"
            f"{' less the block that the engine keeps' if rules.null_block_in_check else ''}"
        )
    printed = [(blocks, index) for blocks, _, index in per_stage] if rules.lines_per_stage else []
    if not printed or inputs.num_gpu_blocks_override is not None:
        printed = [(num_blocks, stage)]
    lines = tuple(
        line
        for blocks, index in printed
        for line in log_lines(
            logged(blocks, index),
            inputs.max_model_len,
            blocks / blocks_per_request(grouping.of_stage(index), inputs.max_model_len, inputs, rules),
            available,
            rules,
        )
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
