"""The classic formula beside the engine's answer, and contiguous beside paged allocation.

Source: 2 x bytes x layers x KV heads x head_dim per token, no blocks, no overheads; reservation of max_model_len per
request as before paged attention. Left out: what the engine really does (plan.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capacity.concurrency import length_points
from capacity.model import Attention, LatentAttention, ModelSpec
from capacity.scenario import Length
from capacity.units import gib

if TYPE_CHECKING:
    import numpy as np

GB = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Textbook:
    """``concurrency`` None when no memory is known; ``requests``: the same before it is rounded down.
    ``windowed_gib_per_request``: the same formula with windowed layers counted to their window only."""

    bytes_per_token: int
    kv_gib_per_request: float
    concurrency: int | None
    memory_text: str
    requests: float | None = None
    windowed_gib_per_request: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """Memory reserved against used for the workload's lengths, in tokens of the pool.

    ``waste_share``: what contiguous reservation leaves empty; ``paged_waste_share``: the unfilled tail of last blocks.
    """

    reserved_tokens: float
    used_tokens: float
    waste_share: float
    contiguous_requests: int
    paged_requests: int
    paged_waste_tokens: float
    paged_waste_share: float
    by_block_size: tuple[tuple[int, float, int], ...]


def textbook_bytes_per_token(spec: ModelSpec, element_bytes: float) -> int:
    """KV bytes of one token over all layers of the whole model, every layer full attention.

    >>> from capacity.catalog import model_spec
    >>> textbook_bytes_per_token(model_spec("meta-llama/Llama-2-13b-hf"), 2)
    819200
    """
    total = 0.0
    for mixer, count in spec.kinds().items():
        if isinstance(mixer, Attention) and not mixer.shares_kv:
            total += count * mixer.num_kv_heads * (mixer.head_dim + mixer.v_head_dim) * element_bytes
        elif isinstance(mixer, LatentAttention):
            total += count * (mixer.kv_lora_rank + mixer.qk_rope_head_dim) * element_bytes
    return round(total)


def windowed_request_bytes(spec: ModelSpec, element_bytes: float, tokens: int) -> float:
    """KV bytes of one request over the whole model when windowed layers hold their window only.

    >>> from capacity.catalog import model_spec
    >>> round(windowed_request_bytes(model_spec("google/gemma-3-27b-it"), 2, 131_072) / 2**30, 2)
    10.41
    """
    total = 0.0
    for mixer, count in spec.kinds().items():
        if isinstance(mixer, Attention) and not mixer.shares_kv:
            held = min(tokens, mixer.window) if mixer.window else tokens
            total += count * held * mixer.num_kv_heads * (mixer.head_dim + mixer.v_head_dim) * element_bytes
        elif isinstance(mixer, LatentAttention):
            total += count * tokens * (mixer.kv_lora_rank + mixer.qk_rope_head_dim) * element_bytes
    return total


def textbook(
    *,
    bytes_per_token: int,
    max_model_len: int,
    nominal_gb: float | None,
    total_bytes: int | None,
    weights_bytes: float,
    gpus: int,
) -> Textbook:
    """The textbook's requests: (all GPUs' memory - weights) / (bytes per token x max_model_len).

    A card sold as "80 GB" counts as 80e9 bytes; without a nominal size ``total_bytes`` is taken.
    The 13B example on one 80 GB card at 4,096 tokens, less 26 GB of weights:

    >>> textbook(bytes_per_token=819_200, max_model_len=4096, nominal_gb=80, total_bytes=None,
    ...          weights_bytes=26e9, gpus=1).concurrency
    16
    """
    request = bytes_per_token * max_model_len
    memory = nominal_gb * GB if nominal_gb is not None else total_bytes
    if memory is None or request == 0:
        return Textbook(
            bytes_per_token=bytes_per_token,
            kv_gib_per_request=gib(request),
            concurrency=None,
            memory_text="no GPU memory given" if memory is None else "no attention layer",
        )
    requests = max(0.0, (memory * gpus - weights_bytes) / request)
    return Textbook(
        bytes_per_token=bytes_per_token,
        kv_gib_per_request=gib(request),
        concurrency=int(requests),
        requests=requests,
        memory_text=f"{gpus} x {memory / GB:.0f} GB less {weights_bytes / GB:.1f} GB of weights",
    )


def fragmentation(
    *,
    blocks: int,
    blocks_per_max_request: int,
    blocks_of: Callable[[np.ndarray], np.ndarray],
    max_model_len: int,
    block_size: int,
    prompt: Length,
    output: Length,
    block_sizes: tuple[int, ...] = (8, 16, 32, 64, 128),
) -> Fragmentation:
    """Contiguous reservation of max_model_len per request against blocks, for finished requests of the workload.

    ``blocks``: usable ids of the pool; ``blocks_of(tokens)``: ids that requests of those lengths take over all groups.
    Other block sizes are read off the same memory.
    """
    import numpy as np

    lengths = np.add.outer(length_points(prompt), length_points(output)).ravel()
    lengths = np.clip(lengths, 1.0, max_model_len)  # a request holds at least one token
    used, ids = float(lengths.mean()), float(blocks_of(lengths).mean())

    def in_blocks(block: int) -> float:
        return float((np.ceil(lengths / block) * block).mean())

    pool_tokens = blocks / ids * in_blocks(block_size) if ids else 0.0

    def paged(block: int) -> tuple[float, int]:
        held = in_blocks(block)
        return held - used, int(pool_tokens / held + 1e-9) if held else 0

    waste, requests = paged(block_size)
    sizes = sorted({*block_sizes, block_size})
    return Fragmentation(
        reserved_tokens=float(max_model_len),
        used_tokens=used,
        waste_share=1 - used / max_model_len,
        contiguous_requests=blocks // blocks_per_max_request,
        paged_requests=requests,
        paged_waste_tokens=waste,
        paged_waste_share=waste / (used + waste) if used + waste else 0.0,
        by_block_size=tuple((size, *paged(size)) for size in sizes),
    )
