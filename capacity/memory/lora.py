"""LoRA slots: the two low-rank matrices that the engine allocates for each adapter slot at start-up.

Source: vLLM's LoRA layers (the hidden side of each pair is kept whole, the sharded side is cut). Left out: adapters
on routed experts, embedding and head.
"""

from __future__ import annotations

from capacity.model import Attention, DenseMlp, Layer, ModelSpec


def lora_width(spec: ModelSpec, tensor_parallel_size: int) -> float:
    """Elements per unit of rank on one GPU: the sum of input and output widths of the adapted projections.

    Rank 16 on every linear layer of Llama-3.1-8B has 41.9 million parameters:

    >>> from capacity.catalog import model_spec
    >>> 16 * lora_width(model_spec("llama-3.1-8b"), 1)
    41943040.0
    """
    sizes: dict[int, float] = {}
    total = 0.0
    for layer in spec.layers:
        if id(layer) not in sizes:
            sizes[id(layer)] = _layer(layer, spec.hidden_size, tensor_parallel_size)
        total += sizes[id(layer)]
    return total


def _layer(layer: Layer, hidden: int, tp: int) -> float:
    width = 0.0
    for mixer in layer.mixers:
        if isinstance(mixer, Attention):
            queries = mixer.num_heads * mixer.head_dim + mixer.num_heads * mixer.v_head_dim
            keys = mixer.num_kv_heads * (mixer.head_dim + mixer.v_head_dim)
            width += 4 * hidden + (queries + keys) / tp
    if isinstance(layer.mlp, DenseMlp):
        matrices = 3 if layer.mlp.gated else 2
        width += matrices * (hidden + layer.mlp.intermediate_size / tp)
    return width
