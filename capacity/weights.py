"""Weights on the fullest GPU: sharded, replicated and padded parts under TP, PP, EP and DP attention.

Source: vLLM's parallel layers (column/row split, KV heads kept whole, MLA down projections on every rank, vocabulary
padded to 64 rows per rank). Left out: quantisation kernels' own repacking, except where a format's table has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.kv_cache.layer_cache import kv_heads_per_gpu
from capacity.model import Attention, Layer, ModelSpec, MoeMlp
from capacity.parallelism import Parallelism
from capacity.parameters import LayerParameters, count_parameters
from capacity.precision import WeightFormat
from capacity.units import ceil_div
from capacity.weight_bytes import weight_bytes

VOCAB_PADDING = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWeights:
    """Bytes of one pipeline stage's fullest GPU. ``padded`` is what alignment adds; ``total`` their sum."""

    sharded: float
    replicated: float
    padded: float

    @property
    def total(self) -> float:
        return self.sharded + self.replicated + self.padded


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Per-GPU weights of each stage, the format taken, and where the bytes per parameter come from."""

    stages: tuple[StageWeights, ...]
    format: WeightFormat
    source: str

    @property
    def worst(self) -> StageWeights:
        return max(self.stages, key=lambda stage: stage.total)


def weights_per_gpu(
    spec: ModelSpec, fmt: WeightFormat, parallel: Parallelism, *, load_mtp: bool = False
) -> Weights:
    """Weights of each stage's fullest GPU in bytes.

    ``load_mtp``: speculative decoding loads the multi-token-prediction layers too (last stage).
    """
    key = (id(spec), fmt.id, parallel, load_mtp)
    kept = _cache.get(key)
    if kept is None or kept[0] is not spec:
        if len(_cache) > 512:
            _cache.clear()
        kept = (spec, _weights(spec, fmt, parallel, load_mtp))
        _cache[key] = kept
    return kept[1]


_cache: dict[tuple[int, str, Parallelism, bool], tuple[ModelSpec, Weights]] = {}


def _weights(spec: ModelSpec, fmt: WeightFormat, parallel: Parallelism, load_mtp: bool) -> Weights:
    count, table = count_parameters(spec), weight_bytes(spec, fmt)
    tp, last = parallel.tensor, parallel.pipeline - 1
    g = table.globals_
    vocab_rows = ceil_div(spec.vocab_size, VOCAB_PADDING) * VOCAB_PADDING
    vocab_growth = ceil_div(vocab_rows, tp) * tp / spec.vocab_size - 1
    stages = []
    for index, layers in enumerate(parallel.stages):
        sharded = replicated = padded = 0.0
        for i in layers:
            part = _layer(spec.layers[i], count.layers[i], table.layers[i], parallel)
            sharded, replicated, padded = sharded + part[0], replicated + part[1], padded + part[2]
        if index == 0:
            sharded += (count.encoder * g["encoder"]) / tp
            replicated += count.position * g["position"] + count.other * g["other"]
        holds_embedding = index == 0 or (index == last and spec.tie_word_embeddings)
        if holds_embedding:
            sharded += count.embedding * g["embedding"] / tp
            padded += count.embedding * g["embedding"] / tp * vocab_growth
        if index == last:
            sharded += count.lm_head * g["lm_head"] / tp
            padded += count.lm_head * g["lm_head"] / tp * vocab_growth
            replicated += count.final_norm * g["final_norm"]
            if load_mtp:
                for layer, sizes, each in zip(
                    spec.mtp_layers, count.mtp_layers, table.mtp_layers, strict=True
                ):
                    part = _layer(layer, sizes, each, parallel)
                    sharded, replicated, padded = sharded + part[0], replicated + part[1], padded + part[2]
                replicated += spec.mtp_parameters * g["mtp"]
        stages.append(StageWeights(sharded=sharded, replicated=replicated, padded=padded))
    return Weights(stages=tuple(stages), format=fmt, source=table.source)


def _layer(
    layer: Layer, sizes: LayerParameters, each: dict[str, float], parallel: Parallelism
) -> tuple[float, float, float]:
    """(sharded, replicated, padded) bytes of one layer on one GPU."""
    tp, ranks = parallel.tensor, parallel.tensor * parallel.data
    parts = sizes.attention_parts
    sharded = (parts.q * each["attention.q"] + parts.o * each["attention.o"]) / tp
    replicated = parts.replicated * each["attention.replicated"]
    kv = parts.kv * each["attention.kv"]
    heads = next((m.num_kv_heads for m in layer.mixers if isinstance(m, Attention)), tp)
    share = kv_heads_per_gpu(heads, tp) / heads if kv else 0.0
    sharded += min(share, 1 / tp) * kv
    replicated += (share - min(share, 1 / tp)) * kv if share > 1 / tp else 0.0
    sharded += (sizes.state * each["state"] + sizes.mlp * each["mlp"]) / tp
    sharded += sizes.shared_experts * each["shared_experts"] / tp
    replicated += sizes.router * each["router"] + sizes.norms * each["norms"] + sizes.other * each["other"]
    padded = 0.0
    if isinstance(layer.mlp, MoeMlp) and sizes.experts:
        experts = sizes.experts * each["experts"]
        sharded += experts / ranks
        if parallel.expert:
            padded += experts * (ceil_div(layer.mlp.num_experts, ranks) / layer.mlp.num_experts - 1 / ranks)
    return sharded, replicated, padded
