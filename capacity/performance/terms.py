"""The physical terms of one decode step and of one prefill, in seconds at peak or as counts of launches.

Source: roofline accounting (bytes over bandwidth, operations over peak, messages over link), see docs/performance.md.
Left out: how far a kernel stays below peak; that is what coefficients are for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from capacity.performance.layout import Devices, Layout
from capacity.performance.work import StepWork

Array = NDArray[np.float64]

# term -> class: memory (read whatever the load), load (grows with sequences), fixed (launches)
STEP_TERMS = {
    "dense_weights": "memory",
    "expert_weights": "memory",
    "kv_read": "load",
    "matmul": "load",
    "attention": "load",
    "prefill_matmul": "load",
    "prefill_attention": "load",
    "all_reduce": "load",
    "prefill_all_reduce": "load",
    "all_to_all": "load",
    "sequence_layers": "load",
    "prefills": "load",
    "layers": "fixed",
    "moe_layers": "fixed",
    "state_layers": "fixed",
    "latent_layers": "fixed",
    "split_layers": "fixed",
}
FIRST_TERMS = {
    "prefill_matmul": "load",
    "prefill_attention": "load",
    "layers": "fixed",
    "busy_step": "memory",
    "queue_prefill": "queue",
    "tokens": "load",
    "constant": "fixed",
    "ranks_wait": "queue",
}
# Engines that hold a prompt back until every data parallel rank has one to compute, or some steps have passed.
# Source: TensorRT-LLM, AttentionDpConfig: enable_balance with timeout_iters 50 and batching_wait_iters 10.
BALANCING_ENGINES = ("trtllm",)


# Public mixed steps end at prompts of 8,192 tokens, where attention costs 5.7 times its peak; a prompt alone costs 1.3 times
# its peak up to 28,650 tokens. Beyond the measured lengths, only that share of each further pair is added.
LONGEST_MIXED_PROMPT = 8_192.0
SHARE_BEYOND = 1.31 / 5.65


class StepTerms:
    """Terms of a batch of operating points on some devices: arrays of shape (devices, points).

    ``values``: (term, devices, points) in the order of STEP_TERMS. ``read_bound_s``: reading weights and cache at full
    bandwidth; ``floor_s``: that or the operations at peak, whichever takes longer. ``prefill_*``: one prompt at peak.
    ``ranks_behind``: share of the data parallel ranks that hold experts together and have no prompt when one comes, times
    the share of time that steps are in flight.
    """

    __slots__ = (
        "batch", "floor_s", "prefill_all_reduce", "prefill_attention", "prefill_matmul", "ranks_behind",
        "read_bound_s", "values", "work",
    )  # fmt: skip

    values: Array
    batch: Array
    ranks_behind: Array
    read_bound_s: Array
    floor_s: Array
    prefill_matmul: Array
    prefill_attention: Array
    prefill_all_reduce: Array
    work: StepWork


def _windowed(context: Array, window: int) -> Array:
    return np.minimum(context, window)


def step_terms(
    work: StepWork,
    device: Devices,
    layout: Layout,
    *,
    concurrency: Array,
    prompt_tokens: Array,
    output_tokens: Array,
    cached_tokens: float = 0.0,
    step_tokens: float = 1.0,
) -> StepTerms:
    """All terms at ``concurrency`` running requests of the whole deployment (arrays that broadcast to (points,)).

    ``cached_tokens``: leading prompt tokens that a prefix hit saves. ``step_tokens``: tokens verified per sequence and
    step (1 + speculative tokens). One step carries the decode of every running sequence and, averaged over an output's
    steps, (running - 1) / output prompts of its neighbours.
    """
    tensor, data = layout.effective_tensor, layout.data
    running, prompt = np.asarray(concurrency, float) / layout.pipeline, np.asarray(prompt_tokens, float)
    output = np.maximum(np.asarray(output_tokens, float), 1.0)
    shape = np.broadcast_shapes(running.shape, prompt.shape, output.shape)
    batch = np.maximum(running / data, 1.0)
    expert_tokens = np.maximum(running, 1.0) if work.is_moe else batch
    ranks = tensor * data
    context = prompt + output / 2
    new = np.maximum(prompt - cached_tokens, 1.0)

    bandwidth, link = device.bandwidth, device.link
    dense_peak, expert_peak, half = (
        device.peak(work.dense_compute),
        device.peak(work.expert_compute),
        device.bf16,
    )
    routed = work.experts_per_token / work.num_experts if work.is_moe else 0.0
    coverage = 1.0 - (1.0 - routed) ** (expert_tokens * step_tokens) if work.is_moe else np.zeros(shape)
    whole = layout.experts_whole and ranks > 1

    dense_read = (work.dense_bytes + work.head_bytes) / tensor
    expert_read = work.expert_bytes / ranks * coverage
    kv_split = min(tensor, work.kv_heads)
    seen = np.minimum(context, work.sparse_topk) if work.sparse_topk else context
    kv_read = work.kv_bytes * seen / kv_split + work.indexer_bytes * context
    attention = work.decode_flops * seen
    prefill_pairs = (
        work.prefill_flops
        * new
        * (np.minimum(2.0 * prompt, work.sparse_topk) if work.sparse_topk else prompt + cached_tokens)
        / 2
    )
    for layer in work.windows:
        near = _windowed(context, layer.window)
        kv_read = kv_read + layer.kv_bytes * near / kv_split
        attention = attention + layer.flops * near
        prefill_pairs = prefill_pairs + layer.flops * new * _windowed(prompt, layer.window) / 2
    kv_read = batch * (kv_read + 2.0 * work.state_bytes / tensor)
    attention = attention * batch * step_tokens / tensor

    tokens = batch * step_tokens
    dense_flops = 2.0 * work.dense_parameters * tokens / tensor
    head_flops = 2.0 * work.head_parameters * tokens / tensor
    expert_flops = 2.0 * work.expert_parameters * routed * expert_tokens * step_tokens / ranks
    matmul = dense_flops / dense_peak + head_flops / half + expert_flops / expert_peak
    prompt_dense = 2.0 * work.dense_parameters / tensor * new
    prompt_expert = 2.0 * work.expert_parameters * routed * data / ranks * new
    neighbours = np.maximum(batch - 1.0, 0.0) / output

    message = 4.0 * work.layers * work.hidden * 2.0 * (tensor - 1) / tensor / link
    exchange = (
        (ranks - 1) / ranks * work.moe_layers * work.hidden * 3.0 * work.experts_per_token / link
        if whole
        else 0.0 * link
    )
    out = StepTerms()
    out.work, out.batch = work, batch
    together = data if work.is_moe else 1
    out.ranks_behind = (1.0 - 1.0 / together) * (1.0 - 1.0 / np.maximum(running, 1.0))
    out.prefill_matmul = prompt_dense / dense_peak + prompt_expert / expert_peak
    out.prefill_attention = prefill_pairs / tensor / half
    out.prefill_all_reduce = message * new
    grid = np.broadcast_shapes(out.prefill_matmul.shape, (bandwidth.shape[0], *shape))
    values = np.empty((len(STEP_TERMS), *grid))
    values[0] = dense_read / bandwidth
    values[1] = expert_read / bandwidth
    values[2] = kv_read / bandwidth
    values[3] = matmul
    values[4] = attention / half
    values[5] = neighbours * out.prefill_matmul
    near = np.minimum(LONGEST_MIXED_PROMPT / np.maximum(new, 1.0), 1.0)
    values[6] = neighbours * out.prefill_attention * (SHARE_BEYOND + (1.0 - SHARE_BEYOND) * near)
    values[7] = message * batch
    values[8] = neighbours * out.prefill_all_reduce
    values[9] = exchange * expert_tokens / layout.gpus
    values[10] = batch * work.layers
    values[11] = neighbours
    values[12] = work.layers
    values[13] = work.moe_layers
    values[14] = work.state_layers
    values[15] = work.latent_layers
    values[16] = work.layers * float(tensor > 1)
    out.values = values
    out.read_bound_s = values[0] + values[1] + values[2]
    out.floor_s = np.maximum(out.read_bound_s, matmul + values[4])
    return out


def first_token_terms(terms: StepTerms, step_s: Array, *, prompt_tokens: Array, engine: str = "") -> Array:
    """(term, devices, points): what the first token waits for, in the order of FIRST_TERMS.

    A new request waits for steps in flight when it is not alone, for prompts ahead of it, for its own prefill, and under
    some engines until the other data parallel ranks have a prompt too.
    """
    grid = np.broadcast_shapes(terms.floor_s.shape, np.shape(step_s))
    values = np.empty((len(FIRST_TERMS), *grid))
    own = terms.prefill_matmul + terms.prefill_attention
    values[0] = terms.prefill_matmul
    values[1] = terms.prefill_attention
    values[2] = terms.work.layers
    values[3] = step_s * (1.0 - 1.0 / terms.batch)
    values[4] = own * np.maximum(terms.batch - 1.0, 0.0)
    values[5] = prompt_tokens
    values[6] = 1.0
    values[7] = step_s * terms.ranks_behind if engine in BALANCING_ENGINES else 0.0
    return values
