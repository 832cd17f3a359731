"""Layer records of a whole model: mixers, MLP and norms in order, and the multi-token-prediction modules.

Source: the families' modeling classes. Left out: encoders and quantisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from capacity.errors import ConfigError
from capacity.hf_config.families import Family
from capacity.hf_config.kinds import layer_kinds
from capacity.hf_config.mixers import attention, every_head, heads, latent_attention, state
from capacity.hf_config.mlps import mlp_plan
from capacity.hf_config.reader import Reader
from capacity.model import Attention, DenseMlp, Layer, Mixer, MoeMlp, RecurrentState


@dataclass(frozen=True, slots=True, kw_only=True)
class Mtp:
    """Multi-token-prediction modules: their layers, the projections and norms, and embedding copies."""

    layers: tuple[Layer, ...] = ()
    parameters: int = 0
    embedding_parameters: int = 0


def build_layers(reader: Reader, family: Family, *, upper_bound: bool = False) -> tuple[Layer, ...]:
    """Every decoder layer in order. Raises ConfigError that names the field at fault.

    ``upper_bound``: low-rank attention counts as full attention that keeps every head's K and V.
    """
    layers = _layer_count(reader)
    hidden = reader.required("hidden_size")
    kinds = layer_kinds(reader, family, layers)
    mlps = mlp_plan(reader, family, layers, kinds)
    low_rank = bool(family.defaults.get("low_rank")) and reader.flag("use_mla") is not False
    latent = latent_attention(reader, family) if low_rank or reader.spelling("kv_lora_rank") else None
    needs_heads = latent is None and any(kind not in ("state", "mlp", "moe") for kind in kinds)
    query, kv = heads(reader, family, layers) if needs_heads else ([None] * layers, [None] * layers)
    shared = reader.integer("num_kv_shared_layers", low=0, high=layers - 1) or 0
    made: dict[tuple[Any, ...], Mixer] = {}
    interned: dict[Layer, Layer] = {}
    result = []
    for index, kind in enumerate(kinds):
        mixers: list[Mixer] = []
        if kind in ("full", "sliding", "chunked", "parallel"):
            shares = shared > 0 and index >= layers - shared
            key = (kind, query[index], kv[index])
            if latent is not None:
                mixers.append(every_head(latent) if upper_bound else latent)
            elif query[index] and kv[index]:
                if key not in made:
                    made[key] = attention(
                        reader, family, kind=kind, query_heads=query[index] or 0, kv_heads=kv[index] or 0
                    )
                mixer = made[key]
                mixers.append(_sharing(mixer) if shares else mixer)
        if kind in ("state", "parallel"):
            if not family.state:
                raise ConfigError(
                    f"layer {index} is recurrent, and {family.family} has no rule for its state"
                )
            if ("state",) not in made:
                made["state",] = state(reader, family)
            mixers.append(made["state",])
        mlp = mlps[index]
        if (
            shared
            and index >= layers - shared
            and reader.flag("use_double_wide_mlp")
            and isinstance(mlp, DenseMlp)
        ):
            mlp = DenseMlp(intermediate_size=2 * mlp.intermediate_size, gated=mlp.gated, bias=mlp.bias)
        layer = Layer(
            mixers=tuple(mixers),
            mlp=mlp,
            norm_parameters=_norms(reader, family, hidden, bool(mixers), mlp is not None),
            extra_parameters=_extras(reader, family, hidden, mlp),
        )
        result.append(interned.setdefault(layer, layer))
    return tuple(result)


def _layer_count(reader: Reader) -> int:
    if reader.spelling("num_hidden_layers") is None:
        for key in ("hybrid_override_pattern", "layers_block_type", "layer_types"):
            pattern = reader.section.get(key)
            if isinstance(pattern, str | list) and 0 < len(pattern) <= 10_000:
                return len(pattern)
    return reader.required("num_hidden_layers")


def _sharing(mixer: Mixer) -> Mixer:
    return replace(mixer, shares_kv=True) if isinstance(mixer, Attention) else mixer


def _norms(reader: Reader, family: Family, hidden: int, has_mixer: bool, has_mlp: bool) -> int:
    size = hidden * (2 if family.norm_bias else 1)
    if family.norms == "falcon":
        if reader.flag("new_decoder_architecture", default=False):
            return size * (reader.integer("num_ln_in_parallel_attn", low=1) or 2)
        return size * (1 if reader.flag("parallel_attn", default=True) else 2)
    if family.defaults.get("block_configs_required"):
        return size * (int(has_mixer) + int(has_mlp))
    return size * int(family.norms)


def _extras(reader: Reader, family: Family, hidden: int, mlp: DenseMlp | MoeMlp | None) -> int:
    extra = 0
    if family.defaults.get("layer_scalar"):
        extra += 1
        if isinstance(mlp, MoeMlp):
            extra += 4 * hidden + mlp.num_experts
    width = reader.integer("hidden_size_per_layer_input") or 0
    if width:
        extra += 2 * hidden * width + hidden
    if family.family == "gemma3n":
        rank = reader.integer("laurel_rank", low=1) or 64
        inputs = reader.integer("altup_num_inputs", low=1) or 4
        extra += 2 * hidden * rank + hidden + inputs**3 + 2 * inputs * inputs + hidden * inputs + 2 * hidden
    return extra


def per_layer_embeddings(reader: Reader, family: Family, layers: int) -> int:
    """Gemma-3n and small Gemma-4: the per-layer input table and its projection, and AltUp's projections."""
    width = reader.integer("hidden_size_per_layer_input") or 0
    hidden = reader.required("hidden_size")
    total = 0
    if width:
        vocab = reader.integer("vocab_size_per_layer_input") or reader.required("vocab_size")
        total += vocab * layers * width + hidden * layers * width + width
    if family.family == "gemma3n":
        total += 2 * ((reader.integer("altup_num_inputs", low=1) or 4) - 1) * hidden * hidden
    return total


def build_mtp(reader: Reader, family: Family, layers: tuple[Layer, ...]) -> Mtp:
    """The MTP modules that the checkpoint carries beside the main layers, or an empty record."""
    count = reader.integer("num_mtp_layers")
    if family.defaults.get("mtp_always") and count is None:
        count = 1
    if not count or not family.mtp or not layers:
        return Mtp()
    hidden, vocab = reader.required("hidden_size"), reader.required("vocab_size")
    project = 2 * hidden * hidden
    attending = [layer for layer in layers if any(not isinstance(m, RecurrentState) for m in layer.mixers)]
    last = attending[-1] if attending else layers[-1]
    if family.mtp in ("deepseek", "deepseek_shared"):
        return Mtp(
            layers=(layers[-1],) * count,
            parameters=count * (project + 3 * hidden),
            embedding_parameters=count * 2 * vocab * hidden if family.mtp == "deepseek" else 0,
        )
    if family.mtp == "qwen":
        return Mtp(layers=(last,) * count, parameters=project + 3 * hidden)
    if family.mtp == "ernie":
        dense = DenseMlp(intermediate_size=reader.required("intermediate_size"))
        layer = Layer(mixers=last.mixers, mlp=dense, norm_parameters=last.norm_parameters)
        return Mtp(layers=(layer,) * count, parameters=count * (project + 2 * hidden))
    moe = next((layer for layer in layers if isinstance(layer.mlp, MoeMlp)), None)
    parts = tuple(layer for layer in (last, moe) if layer is not None)
    return Mtp(layers=parts * count, parameters=count * (project + 3 * hidden))


def expand_blocks(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Nemotron-NAS ``block_configs`` as per-layer KV heads and MLP widths (0 = the block has none).

    Raises ConfigError when a block replaces a module by a linear layer or lacks a field.
    """
    blocks = section.get("block_configs")
    if not isinstance(blocks, list):
        return dict(section)
    reader = Reader(section, name=name)
    hidden, query = reader.required("hidden_size"), reader.required("num_attention_heads")
    kv: list[int] = []
    widths: list[int] = []
    for index, block in enumerate(blocks):
        label = f"{reader.path('block_configs')}[{index}]"
        part = Reader(block if isinstance(block, Mapping) else {}, name=label)
        attn, ffn = part.mapping("attention"), part.mapping("ffn")
        if attn is None or ffn is None:
            raise ConfigError(f"{label} lacks attention or ffn; expected both")
        if attn.flag("replace_with_linear") or ffn.flag("replace_with_linear"):
            raise ConfigError(f"{label} replaces a module by a linear layer, which has no rule here")
        group = attn.integer("n_heads_in_group", low=1, high=query)
        kv.append(0 if attn.flag("no_op") or group is None else query // group)
        ratio = ffn.number("ffn_mult")
        width = int(2 * (ratio or 0) * hidden / 3)
        stated = ffn.integer("intermediate_size")
        widths.append(0 if ffn.flag("no_op") else stated or -(-width // 256) * 256)
    return {**section, "num_key_value_heads": kv, "intermediate_size": widths}
