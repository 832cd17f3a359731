"""One layer's cache: how many bytes one block ("page" in the engine's code) of it takes on one GPU.

Source: the KV planner of vLLM 0.10.2 to 0.32.0 (tests/golden/kv_reference.csv). Left out: encoder-decoder
cross attention, block-outermost layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CacheKind = Literal["full", "sliding", "chunked", "mla", "indexer", "state"]


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache of one kind of layer on one GPU.

    ``page_bytes``: bytes of one block of ``block_size`` tokens of one layer (for ``state``: the state's bytes,
    padded, whatever the block size). ``window``: sliding window or chunk in tokens. ``natural_bytes``: the page
    before padding. ``was``: what a layer planned as full attention is where the hybrid manager is on.
    ``heads``: KV heads (0 = does not matter). Equal values mean the same kind: layers of one value may share a group.
    """

    kind: CacheKind
    block_size: int
    page_bytes: int
    window: int = 0
    natural_bytes: int = 0
    was: CacheKind | None = None
    heads: int = 0

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """What must be equal for the engine to see one cache specification, windows of full layers apart."""
        return self.kind, self.block_size, self.page_bytes, self.heads

    @property
    def plans_as_full(self) -> bool:
        """True where every token of a request stays in the cache."""
        return self.kind in ("full", "mla", "indexer")


def attention_page_bytes(
    *, block_size: int, kv_heads: int, head_dim: int, v_head_dim: int, elem_bytes: float, scale_bytes: int = 0
) -> int:
    """Bytes of one block of one attention layer on one GPU: block_size x kv_heads x (K + V widths) x element.

    ``scale_bytes``: beside each K and each V of a head, in formats with a scale per token and head.

    Llama-3.1-8B, block of 16, 16-bit:

    >>> attention_page_bytes(block_size=16, kv_heads=8, head_dim=128, v_head_dim=128, elem_bytes=2)
    65536
    """
    elements = int(block_size * kv_heads * (head_dim + v_head_dim) * elem_bytes)
    return elements + 2 * block_size * kv_heads * scale_bytes


def kv_heads_per_gpu(num_kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads that one rank keeps. With more ranks than heads each rank keeps a replica of one head.

    >>> kv_heads_per_gpu(8, 8), kv_heads_per_gpu(8, 16)
    (1, 1)
    """
    return max(1, num_kv_heads // tensor_parallel_size)
