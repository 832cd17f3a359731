"""Weights on the fullest GPU: sharded, replicated and padded parts under TP, PP, EP and DP attention.

Source: vLLM's parallel layers (column/row split, KV heads kept whole, MLA down projections on every rank, vocabulary
padded to 64 rows per rank). Left out: quantisation kernels' own repacking, except where a format's table has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.catalog.table import read_table
from capacity.engine import Version, parse_version
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
    padded_high: float = 0.0

    @property
    def high(self) -> float:
        """The total when the kernels pad as much as any start-up has shown."""
        return self.total - self.padded + max(self.padded, self.padded_high)

    @property
    def total(self) -> float:
        return self.sharded + self.replicated + self.padded


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPadding:
    """Multiples that a kernel pads experts to: hidden size and each rank's width; ``high``: the most seen."""

    hidden: int = 1
    width: int = 1
    hidden_high: int = 1
    width_high: int = 1
    source: str = ""

    def factors(self, hidden_size: int, rank_width: int) -> tuple[float, float]:
        """(value, high): how many times larger an expert's bytes become.

        gpt-oss on H100 and, split four ways, on A100:

        >>> round(ExpertPadding(hidden=256, hidden_high=256).factors(2880, 2880)[0], 4)
        1.0667
        >>> round(ExpertPadding(hidden=256, width=128).factors(2880, 720)[0], 4)
        1.1378
        """

        def grown(hidden: int, width: int) -> float:
            return _up(hidden_size, hidden) / hidden_size * _up(rank_width, width) / rank_width

        return grown(self.hidden, self.width), grown(self.hidden_high, self.width_high)


NO_PADDING = ExpertPadding()


def expert_padding(fmt: WeightFormat, release: Version, compute_capability: str) -> ExpertPadding:
    """The padding rule of a format on a card and release; no rule = no padding."""
    card = f"cc{compute_capability.split('.')[0]}"
    found = NO_PADDING
    for wanted in ("any", card):
        for row in read_table("expert_padding"):
            if (
                row["format"] == fmt.id
                and row["card"] == wanted
                and parse_version(row["first_release"]) <= release
            ):
                found = ExpertPadding(
                    hidden=int(row["hidden_multiple"]),
                    width=int(row["width_multiple"]),
                    hidden_high=int(row["hidden_multiple_high"]),
                    width_high=int(row["width_multiple_high"]),
                    source=row["source"],
                )
    return found


def _up(value: int, multiple: int) -> int:
    return ceil_div(value, multiple) * multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Per-GPU weights of each stage, the format taken, and where the bytes per parameter come from."""

    stages: tuple[StageWeights, ...]
    format: WeightFormat
    source: str
    padding: ExpertPadding = NO_PADDING

    @property
    def worst(self) -> StageWeights:
        return max(self.stages, key=lambda stage: stage.total)


def weights_per_gpu(
    spec: ModelSpec,
    fmt: WeightFormat,
    parallel: Parallelism,
    *,
    load_mtp: bool = False,
    padding: ExpertPadding = NO_PADDING,
) -> Weights:
    """Weights of each stage's fullest GPU in bytes.

    ``load_mtp``: speculative decoding loads the multi-token-prediction layers too (last stage).
    """
    key = (id(spec), fmt.id, parallel, load_mtp, padding)
    kept = _cache.get(key)
    if kept is None or kept[0] is not spec:
        if len(_cache) > 4096:
            _cache.clear()
        kept = (spec, _weights(spec, fmt, parallel, load_mtp, padding))
        _cache[key] = kept
    return kept[1]


_cache: dict[tuple[int, str, Parallelism, bool, ExpertPadding], tuple[ModelSpec, Weights]] = {}


def _weights(
    spec: ModelSpec, fmt: WeightFormat, parallel: Parallelism, load_mtp: bool, padding: ExpertPadding
) -> Weights:
    count, table = count_parameters(spec), weight_bytes(spec, fmt)
    tp, last = parallel.tensor, parallel.pipeline - 1
    g = table.globals_
    vocab_rows = ceil_div(spec.vocab_size, VOCAB_PADDING) * VOCAB_PADDING
    vocab_growth = ceil_div(vocab_rows, tp) * tp / spec.vocab_size - 1
    stages = []
    for index, layers in enumerate(parallel.stages):
        sharded = replicated = padded = high = 0.0
        for i in layers:
            part = _layer(spec.layers[i], count.layers[i], table.layers[i], parallel)
            grown = _padding(spec, spec.layers[i], count.layers[i], table.layers[i], parallel, padding)
            sharded, replicated, padded = sharded + part[0], replicated + part[1], padded + part[2] + grown[0]
            high += part[2] + grown[1]
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
        stages.append(StageWeights(sharded=sharded, replicated=replicated, padded=padded, padded_high=high))
    return Weights(stages=tuple(stages), format=fmt, source=table.source, padding=padding)


def _padding(
    spec: ModelSpec,
    layer: Layer,
    sizes: LayerParameters,
    each: dict[str, float],
    parallel: Parallelism,
    padding: ExpertPadding,
) -> tuple[float, float]:
    """(value, high) bytes that the expert kernel's padding adds to one layer on one GPU."""
    if padding == NO_PADDING or not isinstance(layer.mlp, MoeMlp):
        return 0.0, 0.0
    ranks = parallel.tensor * parallel.data
    width = layer.mlp.moe_intermediate_size
    rank_width = width if parallel.expert else max(1, width // ranks)
    value, high = padding.factors(spec.hidden_size, rank_width)
    own = sizes.experts * each["experts"] / ranks
    return own * (value - 1), own * (high - 1)


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
