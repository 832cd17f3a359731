"""The plan: scenario -> memory bill, KV pool, concurrency, verdict. One function behind page, CLI, report and API.

Exact where the engine is exact (layers -> blocks -> concurrency); an interval where it is not (memory).
Left out: speed (performance), queueing (simulation).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from capacity.assumptions import Assumption
from capacity.concurrency import Concurrency, prompt_of, typical
from capacity.errors import CapacityError
from capacity.kv_cache.grouping import Grouping, group_layers
from capacity.kv_cache.layer_cache import LayerCache
from capacity.kv_cache.layout import CacheLayout, CacheSettings, layout
from capacity.kv_cache.pool import (
    Pool,
    PoolInputs,
    blocks_of_lengths,
    blocks_per_request,
    build_pool,
    shared_blocks,
)
from capacity.kv_cache.state import dtype_bytes
from capacity.memory import MemoryBill, Term
from capacity.memory_terms import StageBills, draft_spec, stage_bills, weights_of
from capacity.parameters import count_parameters
from capacity.resolve import Resolved, resolve
from capacity.scenario import Length, Scenario
from capacity.textbook import (
    Fragmentation,
    Textbook,
    fragmentation,
    textbook,
    textbook_bytes_per_token,
    windowed_request_bytes,
)
from capacity.units import GIB, from_gib, gib
from capacity.verdict import Binding, Fit, verdict_of, warnings_of
from capacity.weights import Weights

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything the planner answers about a scenario."""

    resolved: Resolved
    weights: Weights
    bills: StageBills | None
    layout: CacheLayout
    grouping: Grouping
    pool: Pool | None
    inputs: PoolInputs
    kv_bytes: tuple[int, ...]
    kv_low_bytes: tuple[int, ...]
    kv_high_bytes: tuple[int, ...]
    bytes_per_token_per_gpu: int
    concurrency: Concurrency
    textbook: Textbook
    fragmentation: Fragmentation | None
    fit: Fit
    binding_constraint: Binding | None
    reason: str
    minimum_bytes: int | None
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]

    @property
    def kv_given(self) -> bool:
        """Whether the KV memory was given and not estimated."""
        s = self.resolved.scenario
        return s.kv_cache_gib is not None or s.kv_cache_memory_bytes is not None or self.bills is None

    @property
    def bill(self) -> MemoryBill | None:
        """The bill of the GPU that sets the pool, None when the KV memory was given and no GPU is known."""
        if self.bills is None:
            return None
        return self.bills.bills[self.pool.stage if self.pool else self.bills.tightest]


def plan(scenario: Scenario) -> Plan:
    """Plan one scenario. Raises CapacityError for bad input; "does not fit" is an answer, not an error."""
    r = resolve(scenario)
    warnings = list(r.warnings)
    if scenario.mamba_ssm_cache_dtype not in (None, "auto"):  # refused also where no layer has a state
        dtype_bytes(scenario.mamba_ssm_cache_dtype, "mamba_ssm_cache_dtype")
    settings = CacheSettings(
        tensor=r.parallel.tensor,
        kv_format=r.kv_format,
        model_dtype_bytes=r.model_dtype_bytes,
        block_size=r.block_size,
        max_model_len=r.max_model_len,
        hybrid_manager=r.hybrid_manager,
        chunked_hybrid=r.release.chunked_hybrid or scenario.disable_hybrid_kv_cache_manager is False,
        align_state=r.spec.has_state and r.prefix_caching,
        ssm_dtype=scenario.mamba_ssm_cache_dtype,
        num_speculative_tokens=scenario.num_speculative_tokens,
        draft_layers=1 if r.speculative_method in ("mtp", "eagle") else 0,
        release=r.release,
    )
    caches = layout(r.spec, settings)
    layers, owners = _with_draft_model(r, settings, caches)
    stages = _stage_caches(owners, r.parallel.stages)
    grouping = group_layers(layers, r.release.kv, stages=stages)
    bills = stage_bills(r)
    given = _given_bytes(r, len(stages))
    if given is not None:
        kv = low = high = given
    elif bills is not None:
        kv, low, high = bills.kv_bytes, bills.kv_low_bytes, bills.kv_high_bytes
    elif scenario.num_gpu_blocks_override is not None:
        block = max(grouping.bytes_per_block(stage) for stage in stages)
        kv = low = high = (scenario.num_gpu_blocks_override * block,) * len(stages)
    else:
        raise CapacityError(
            "no memory is known; give gpu, gpu_memory_gib, kv_cache_gib or num_gpu_blocks_override",
            field="gpu",
        )
    inputs = PoolInputs(
        available_bytes=kv,
        stages=stages,
        max_model_len=r.max_model_len,
        max_num_batched_tokens=r.max_num_batched_tokens,
        block_size=caches.block_size,
        concurrent_steps=r.concurrent_steps,
        decode_context_parallel_size=r.parallel.decode_context,
        num_speculative_tokens=scenario.num_speculative_tokens,
        align_state=settings.align_state,
        num_gpu_blocks_override=scenario.num_gpu_blocks_override,
    )
    pool = build_pool(grouping, layers, inputs, r.release.kv)
    counted = _concurrency(r, grouping, pool, inputs, stages, low, high)
    fit, binding, reason = verdict_of(r, bills, pool, counted, low, high, given is not None, grouping, inputs)
    need = blocks_per_request(grouping, r.max_model_len, inputs, r.release.kv)
    minimum = None
    if bills is not None:
        minimum = round(bills.bills[pool.stage].non_kv_bytes) + (need + 1) * grouping.bytes_per_block(
            stages[pool.stage]
        )
    warnings.extend(warnings_of(r, caches, grouping, pool, counted, given is not None))
    weights = bills.weights if bills is not None else weights_of(r)
    return Plan(
        resolved=r,
        weights=weights,
        bills=bills,
        layout=caches,
        grouping=grouping,
        pool=pool,
        inputs=inputs,
        kv_bytes=kv,
        kv_low_bytes=low,
        kv_high_bytes=high,
        bytes_per_token_per_gpu=_bytes_per_token(layers, stages[pool.stage]),
        concurrency=counted,
        textbook=_textbook(r, weights),
        fragmentation=_fragmentation(r, grouping, inputs, pool),
        fit=fit,
        binding_constraint=binding,
        reason=reason,
        minimum_bytes=minimum,
        assumptions=(*r.assumptions, *(bills.assumptions if bills else ())),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _with_draft_model(
    r: Resolved, settings: CacheSettings, caches: CacheLayout
) -> tuple[tuple[LayerCache, ...], tuple[int, ...]]:
    """The target's caches, and a draft model's after them (they live on the fullest rank, so they are counted)."""
    if r.scenario.draft_model is None:
        return caches.layers, caches.owners
    draft = draft_spec(r.scenario.draft_model)
    tensor = r.scenario.draft_tensor_parallel_size or r.parallel.tensor
    extra = layout(draft, replace(settings, tensor=tensor, draft_layers=0, block_size=caches.block_size))
    return (*caches.layers, *extra.layers), (*caches.owners, *([-1] * len(extra.layers)))


def _stage_caches(owners: tuple[int, ...], stages: tuple[range, ...]) -> tuple[range, ...]:
    """The run of cache-owning layers of each pipeline stage; draft layers (-1) go to the last."""
    if len(stages) == 1:
        return (range(len(owners)),)
    ends = []
    for stage in stages:
        ends.append(sum(1 for owner in owners if 0 <= owner < stage.stop))
    ends[-1] = len(owners)
    return tuple(range(0 if i == 0 else ends[i - 1], ends[i]) for i in range(len(ends)))


def _given_bytes(r: Resolved, stages: int) -> tuple[int, ...] | None:
    s = r.scenario
    if s.kv_cache_memory_bytes is not None:
        given: tuple[int, ...] = s.kv_cache_memory_bytes
        key = "kv_cache_memory_bytes"
    elif s.kv_cache_gib is not None:
        given, key = tuple(from_gib(value) for value in s.kv_cache_gib), "kv_cache_gib"
    else:
        return None
    if len(given) == 1:
        return given * stages
    if len(given) != stages:
        raise CapacityError(
            f"{key} has {len(given)} entries for {stages} pipeline stages; expected 1 or {stages}", field=key
        )
    return given


def _decoding_blocks(tokens: np.ndarray, r: Resolved, grouping: Grouping, inputs: PoolInputs) -> np.ndarray:
    """Ids of requests in decode: what a window has left behind is given back, a step adds a token or a few."""
    flying = inputs.concurrent_steps * (1 + inputs.num_speculative_tokens)
    return blocks_of_lengths(grouping, tokens, inputs, r.release.kv, in_flight=flying)


def _usable(pool_blocks: int, r: Resolved) -> int:
    """Block ids that requests can get: V1 keeps id 0 for itself."""
    return max(0, pool_blocks - 1) if r.release.runner == "v1" else pool_blocks


def _concurrency(
    r: Resolved,
    grouping: Grouping,
    pool: Pool,
    inputs: PoolInputs,
    stages: tuple[range, ...],
    low: tuple[int, ...],
    high: tuple[int, ...],
) -> Concurrency:
    def blocks(available: tuple[int, ...]) -> int:
        if inputs.num_gpu_blocks_override is not None:
            return inputs.num_gpu_blocks_override
        sizes = [grouping.bytes_per_block(stage) for stage in stages]
        return min(max(0, have) // size for have, size in zip(available, sizes, strict=True) if size)

    need = pool.blocks_per_max_request
    guaranteed = _usable(pool.num_blocks, r) // need
    usual = None
    s = r.scenario
    if s.prompt_tokens is not None or s.output_tokens is not None:
        usual = typical(
            prompt=prompt_of(s),
            output=s.output_tokens or Length(mean=0.0),
            shared_prefix=s.shared_prefix_tokens,
            max_model_len=r.max_model_len,
            blocks=_usable(pool.num_blocks, r),
            blocks_of=lambda tokens: _decoding_blocks(tokens, r, grouping, inputs),
            blocks_shared_of=lambda tokens: shared_blocks(grouping, tokens, inputs),
            prefix_caching=r.prefix_caching,
            percentile=s.safe_percentile,
        )
    limit = usual.mean if usual is not None else guaranteed
    return Concurrency(
        guaranteed=guaranteed,
        low=_usable(blocks(low), r) // need,
        high=_usable(blocks(high), r) // need,
        typical=usual,
        seats=r.max_num_seqs,
        binding="kv_cache" if limit < r.max_num_seqs else "max_num_seqs",
    )


def _bytes_per_token(layers: tuple[LayerCache, ...], stage: range) -> int:
    """KV bytes that one more token inside every window takes on this stage's GPU."""
    held = Counter(map(id, layers[stage.start : stage.stop]))
    kinds = {id(layer): layer for layer in layers}
    return round(
        sum(
            n * kinds[k].page_bytes / kinds[k].block_size for k, n in held.items() if kinds[k].kind != "state"
        )
    )


def _textbook(r: Resolved, weights: Weights) -> Textbook:
    element = r.kv_format.element_bytes
    if element is None:
        element = float(r.model_dtype_bytes)
    total = sum(stage.total for stage in weights.stages) * r.parallel.tensor
    if r.scenario.parameters is not None:
        total *= r.scenario.parameters / count_parameters(r.spec).total
    gpus = r.parallel.tensor * r.parallel.pipeline
    found = textbook(
        bytes_per_token=textbook_bytes_per_token(r.spec, element),
        max_model_len=r.max_model_len,
        nominal_gb=r.gpu.memory_gb_nominal
        if r.gpu is not None and r.scenario.gpu_memory_gib is None
        else None,
        total_bytes=r.total_bytes,
        weights_bytes=r.scenario.weights_gib * GIB * gpus if r.scenario.weights_gib else total,
        gpus=gpus,
    )
    windowed = windowed_request_bytes(r.spec, element, r.max_model_len)
    return replace(found, windowed_gib_per_request=gib(windowed))


def _fragmentation(r: Resolved, grouping: Grouping, inputs: PoolInputs, pool: Pool) -> Fragmentation | None:
    s = r.scenario
    if s.prompt_tokens is None and s.output_tokens is None:
        return None
    block = (
        max(g.cache.block_size for g in grouping.groups if g.cache.plans_as_full)
        if any(g.cache.plans_as_full for g in grouping.groups)
        else grouping.groups[0].cache.block_size
    )
    return fragmentation(
        blocks=_usable(pool.num_blocks, r),
        blocks_per_max_request=pool.blocks_per_max_request,
        blocks_of=lambda tokens: _decoding_blocks(tokens, r, grouping, inputs),
        max_model_len=r.max_model_len,
        block_size=block,
        prompt=prompt_of(s),
        output=s.output_tokens or Length(mean=0.0),
    )


__all__ = ["Concurrency", "Plan", "Term", "plan"]
