"""Whether a plan fits, what binds it, and what a person must know beside the figures.

Source: the engine's start-up checks in their order: free memory, weights, profile, one full-length request.
Left out: what to change (fixes).
"""

from __future__ import annotations

import re
from typing import Literal

from capacity.concurrency import Concurrency, prompt_of
from capacity.kv_cache.grouping import Grouping
from capacity.kv_cache.layout import KERNEL_BLOCK, CacheLayout
from capacity.kv_cache.pool import Pool, PoolInputs
from capacity.kv_cache.requests import blocks_per_request
from capacity.memory_terms import StageBills, weights_of
from capacity.resolve import Resolved
from capacity.state_caching import state_caching_warnings
from capacity.units import GIB, gib

Fit = Literal["yes", "marginal", "no"]
Binding = Literal["kv_cache", "max_num_seqs", "weights", "memory", "free_memory", "max_model_len"]


def too_old(r: Resolved) -> str | None:
    """The sentence where the card is older than the least that a format's table row names, else None."""
    gpu = r.gpu
    if gpu is None or gpu.vendor != "NVIDIA" or not re.fullmatch(r"\d+\.\d+", gpu.compute_capability):
        return None
    has = float(gpu.compute_capability)
    for key, fmt in (("weight_format", r.weight_format), ("kv_cache_dtype", r.kv_format)):
        text = fmt.min_hardware
        least = [float(number) for number in re.findall(r"\d+\.\d+", text)]
        if least and has < min(least) and "any" not in text and "older" not in text:
            return f"{key} {fmt.id} needs {text}; {gpu.name} has compute capability {gpu.compute_capability}"
    return None


def largest_utilization(r: Resolved) -> float:
    """The largest gpu_memory_utilization, in steps of 0.01, that what others hold on the card leaves free; 0 = none."""
    if r.total_bytes is None:
        return 1.0
    free = 1 - (r.scenario.other_memory_gib or 0.0) * GIB / r.total_bytes
    return max(0, int(free * 100 + 1e-9)) / 100


def verdict_of(
    r: Resolved,
    bills: StageBills | None,
    pool: Pool,
    counted: Concurrency,
    low: tuple[int, ...],
    high: tuple[int, ...],
    given: bool,
    grouping: Grouping,
    inputs: PoolInputs,
) -> tuple[Fit, Binding | None, str]:
    if bills is not None and not given and r.total_bytes is not None:
        others = (r.scenario.other_memory_gib or 0.0) * GIB
        requested = r.gpu_memory_utilization * r.total_bytes
        if others and r.total_bytes - others < requested:
            free = max(0.0, r.total_bytes - others)
            largest = largest_utilization(r)
            tail = (
                f"the largest gpu_memory_utilization that starts is {largest:.2f}"
                if largest
                else "no gpu_memory_utilization starts beside them"
            )
            return (
                "no",
                "free_memory",
                (
                    f"the engine asks for {gib(requested):.1f} GiB and only {gib(free):.1f} GiB are free; {tail}"
                ),
            )
        worst = bills.bills[bills.tightest]
        if worst.budget_bytes <= worst.terms[0].bytes:
            return (
                "no",
                "weights",
                (
                    f"weights take {gib(worst.terms[0].bytes):.1f} GiB per GPU, the engine may use "
                    f"{gib(worst.budget_bytes):.1f} GiB"
                ),
            )
        override = r.scenario.num_gpu_blocks_override
        asked = (override or 0) * pool.bytes_per_block
        if override is not None and worst.non_kv_bytes + asked > r.total_bytes:
            return (
                "no",
                "memory",
                (
                    f"num_gpu_blocks_override {override:,} asks for {gib(asked):.1f} GiB of KV cache; beside "
                    f"{gib(worst.non_kv_bytes):.1f} GiB of weights and overheads the card has "
                    f"{gib(max(0.0, r.total_bytes - worst.non_kv_bytes)):.1f} GiB"
                ),
            )
        if pool.num_blocks == 0 and max(high) <= 0:
            return (
                "no",
                "memory",
                (
                    f"weights and overheads take {gib(worst.non_kv_bytes):.1f} GiB per GPU, the engine may use "
                    f"{gib(worst.budget_bytes):.1f} GiB: nothing is left for KV cache"
                ),
            )
    if bills is not None and given and r.total_bytes is not None:
        stage = bills.bills[pool.stage]
        held = stage.terms[0].low_bytes + low[pool.stage]
        if held > r.total_bytes:
            return (
                "no",
                "memory",
                (
                    f"{gib(low[pool.stage]):.1f} GiB of KV cache and {gib(stage.terms[0].bytes):.1f} GiB of weights do not fit "
                    f"the card's {gib(r.total_bytes):.1f} GiB"
                ),
            )
    if not pool.starts:
        longest = pool.longest_max_model_len or 0
        fit: Fit = "marginal" if counted.high >= 1 else "no"
        tail = f"; the longest max_model_len that starts is {longest:,}" if longest else ""
        runs = _longest_that_runs(r, pool, grouping, inputs)
        if runs < longest:
            tail += (
                f", and the longest request beside the block that the engine keeps has {runs:,} tokens"
                if runs
                else ", and no request fits beside the block that the engine keeps"
            )
        return fit, "kv_cache", f"{pool.refusal}{tail}"
    if counted.guaranteed < 1:
        return (
            "no",
            "kv_cache",
            (
                f"the pool of {pool.num_blocks:,} blocks keeps one for itself, so one request of {r.max_model_len:,} tokens "
                f"({pool.blocks_per_max_request:,} blocks) never fits"
            ),
        )
    if counted.low < 1:
        return (
            "marginal",
            "kv_cache",
            "the estimate fits one full-length request, the low end of its interval does not",
        )
    return "yes", counted.binding, ""


def _longest_that_runs(r: Resolved, pool: Pool, grouping: Grouping, inputs: PoolInputs) -> int:
    """The longest request in tokens, up to the longest max_model_len that starts, for which the pool has blocks beside the
    one that the engine keeps: the start-up check of some releases does not count that one.
    """
    room = pool.num_blocks - (1 if r.release.runner == "v1" else 0)
    low, high = 0, pool.longest_max_model_len or 0
    while low < high:
        at = (low + high + 1) // 2
        fits = blocks_per_request(grouping, at, inputs, r.release.kv) <= room
        low, high = (at, high) if fits else (low, at - 1)
    return low


def _workload_warnings(r: Resolved) -> list[str]:
    """Where the workload does not fit the request lengths that the engine takes."""
    s, out = r.scenario, []
    prompt = prompt_of(s)
    longest = max(prompt.values) if prompt.values else prompt.mean
    if longest >= r.max_model_len:
        out.append(
            f"prompts of {longest:,.0f} tokens{' with their images' if s.images_per_request and s.image_tokens else ''} reach "
            f"max_model_len {r.max_model_len:,}: the engine refuses them, here they are counted as cut to that length"
        )
    if s.prompt_tokens is not None and s.shared_prefix_tokens > longest:
        out.append(
            f"shared_prefix_tokens {s.shared_prefix_tokens:,} is more than the prompt's {longest:,.0f}: the whole prompt is "
            "taken as shared"
        )
    return out


def warnings_of(
    r: Resolved, caches: CacheLayout, grouping: Grouping, pool: Pool, counted: Concurrency, given: bool
) -> list[str]:
    s, out = r.scenario, [*caches.notes, *state_caching_warnings(r, grouping)]
    if r.spec.upper_bound:
        out.append("planned as an upper bound on KV bytes: every layer is taken as full attention")
    if r.kv_format.id == "kv-fp8" and r.spec.uses_mla:
        out.append(
            "fp8 KV of MLA is counted as plain fp8, the least that it takes; the packed record with its scales and 16-bit "
            "rope part is larger (656 B in place of 576 B a token and layer for DeepSeek-V3): kv_cache_dtype fp8_ds_mla"
        )
    if not grouping.uniform:
        out.append(
            f"the logged token count holds for max_model_len {r.max_model_len:,} only: layers of several kinds share "
            "the pool, so bytes per token change with length"
        )
    if s.max_model_len is not None and not given and r.release.runner == "v0":
        out.append(
            "in V0 the profiling pass grows with max_model_len; memory measured at another length does not carry over"
        )
    if s.kv_cache_gib is not None:
        out.append(
            "the KV memory is a measured figure: it holds for the max_model_len, batch settings and release that it was "
            "measured with"
        )
    if pool.starts and counted.guaranteed < int(pool.max_concurrency):
        out.append(
            f"the engine logs {pool.max_concurrency:.2f}x, but keeps one block for itself: one full-length request of "
            f"{r.max_model_len:,} tokens fewer fits"
            if counted.guaranteed
            else f"the engine logs {pool.max_concurrency:.2f}x and starts, but one full-length request does not fit: it would "
            "wait for ever"
        )
    if s.kv_offloading_size_gib:
        per_rank = s.kv_offloading_size_gib / r.parallel.tensor
        hybrid = ""
        if not grouping.uniform:
            hybrid = f"; models with several kinds of layers have used up to {s.kv_offloading_size_gib * 1.92:.0f} GiB"
        out.append(
            f"the offload tier of {s.kv_offloading_size_gib:g} GiB in all ({per_rank:g} per rank) keeps prefixes longer; "
            f"it does not raise the requests that run at once{hybrid}"
        )
    out.extend(_workload_warnings(r))
    if s.cpu_offload_gib:
        whole = s.weights_gib or weights_of(r).worst.total / GIB
        if s.cpu_offload_gib > whole:
            out.append(
                f"cpu_offload_gib {s.cpu_offload_gib:g} is more than the {whole:.2f} GiB of weights per GPU: all of them "
                "are counted in host memory, the rest of the figure has no effect"
            )
    old = too_old(r)
    if old is not None:
        out.append(old)
    if r.speculative_method == "mtp" and s.num_speculative_tokens and not r.spec.mtp_layers:
        out.append(
            "the config names no multi-token-prediction layer: one layer like the model's own is counted, its weights are "
            "not in the bill"
        )
    if s.block_size is not None and s.block_size % KERNEL_BLOCK:
        out.append(
            f"block_size {s.block_size} is no multiple of {KERNEL_BLOCK}: the GPU attention kernels take only such, and the "
            "engine may refuse to start"
        )
    if r.speculative_method == "eagle":
        out.append(
            "the EAGLE draft is taken as one layer like the model's own; its weights are not in the bill"
        )
    return out
