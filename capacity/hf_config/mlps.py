"""Each layer's feed-forward block: dense, mixture of experts, or none.

Source: the families' modeling classes. Left out: routing details that change no size.
"""

from __future__ import annotations

from capacity.errors import ConfigError
from capacity.hf_config.families import Family
from capacity.hf_config.mixers import says
from capacity.hf_config.reader import Reader
from capacity.model import DenseMlp, MoeMlp


def mlp_plan(reader: Reader, family: Family, layers: int, kinds: list[str]) -> list[DenseMlp | MoeMlp | None]:
    """The MLP of every layer. Raises ConfigError that names a missing width."""
    experts = _experts(reader, family, layers)
    moe = _moe_layers(reader, family, layers) if experts else [False] * layers
    if family.defaults.get("pure_state"):
        return [None] * layers
    widths = _dense_widths(reader, family, layers, needed=not all(moe) and "mlp" not in kinds)
    result: list[DenseMlp | MoeMlp | None] = []
    for index in range(layers):
        if family.norms == "1" and family.state and family.family == "nemotron_h":
            wanted = {"moe": True, "mlp": False}.get(kinds[index])
            if wanted is None:
                result.append(None)
                continue
            is_moe = wanted
        else:
            is_moe = moe[index]
        width = widths[index]
        if is_moe and experts:
            result.append(experts[index])
        elif width:
            gated = family.gated and reader.flag("use_gated_mlp") is not False
            result.append(DenseMlp(intermediate_size=width, gated=gated, bias=says(reader, family.mlp_bias)))
        else:
            result.append(None)
    return result


def _dense_widths(reader: Reader, family: Family, layers: int, *, needed: bool) -> list[int | None]:
    for key in ("intermediate_size_mlp", "dense_intermediate_size"):
        if reader.section.get(key) is not None:
            return [reader.integer(key, low=1)] * layers
    if family.defaults.get("shared_is_mlp") and not reader.integer("num_experts"):
        return [reader.integer("shared_expert_intermediate_size")] * layers
    if family.defaults.get("openelm"):
        return _openelm_widths(reader, layers)
    if family.defaults.get("lfm_width"):
        return [_lfm_width(reader)] * layers
    widths = reader.per_layer("intermediate_size", layers)
    if all(width is None for width in widths):
        ratio = reader.number("intermediate_ratio") or reader.number("expansion_ratio")
        ratio = reader.number("expansion_ratio") or reader.number("ffn_hidden_ratio") or ratio
        if ratio:
            return [int(ratio * reader.required("hidden_size"))] * layers
        experts = reader.integer("num_experts") and reader.integer("moe_intermediate_size")
        if needed and experts:
            shared = reader.per_layer("n_shared_experts", layers)[0] or 0
            chosen = reader.per_layer("num_experts_per_tok", layers)[0] or 1
            width = experts * (chosen + shared)
            reader.notes.append(
                f"intermediate_size is missing: dense layers counted {width:,} wide, as one token's experts"
            )
            return [width] * layers
        if needed:
            reader.required("intermediate_size")
    if family.defaults.get("halved_intermediate"):
        return [width // 2 if width else width for width in widths]
    return widths


def _openelm_widths(reader: Reader, layers: int) -> list[int | None]:
    ratios = reader.listed("ffn_multipliers", length=layers)
    if ratios is None:
        raise ConfigError("ffn_multipliers is missing; expected one number for each layer")
    divisor = reader.integer("ffn_dim_divisor", low=1) or 256
    hidden = reader.required("hidden_size")
    found: list[int | None] = []
    for ratio in ratios:
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < 1000:
            raise ConfigError("ffn_multipliers holds something else than numbers from 0 to 1000")
        found.append(max(divisor, int(ratio * hidden + divisor / 2) // divisor * divisor))
    return found


def _lfm_width(reader: Reader) -> int:
    width = reader.integer("block_ff_dim", low=1) or reader.required("intermediate_size")
    if reader.flag("block_auto_adjust_ff_dim", default=True):
        multiple = reader.integer("block_multiple_of", low=1) or 256
        width = int((reader.number("block_ffn_dim_multiplier") or 1.0) * int(2 * width / 3))
        width = -(-width // multiple) * multiple
    return width


def _moe_layers(reader: Reader, family: Family, layers: int) -> list[bool]:
    frequency = reader.raw("moe_layer_freq")
    if isinstance(frequency, list):
        flags = reader.listed("moe_layer_freq", length=layers) or []
        return [bool(flag) for flag in flags]
    listed = reader.listed("moe_layers")
    if listed:
        return [index in listed for index in range(layers)]
    if "expert_layer_period" in family.defaults:
        period, offset = (
            reader.integer("expert_layer_period", low=1) or 2,
            reader.integer("expert_layer_offset") or 0,
        )
        return [index % period == offset for index in range(layers)]
    first = reader.integer("first_k_dense_replace") or 0
    every = 1
    for key in ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"):
        every = reader.integer(key, low=1) or every
    dense = reader.listed("mlp_only_layers") or ()
    last = reader.integer("moe_layer_end_index")
    phase = 0 if family.family.startswith("deepseek") else 1
    return [
        index >= first
        and (index + phase) % every == 0
        and index not in dense
        and (last is None or last < 0 or index <= last)
        for index in range(layers)
    ]


def _experts(reader: Reader, family: Family, layers: int) -> list[MoeMlp] | None:
    counts = [count or 0 for count in reader.per_layer("num_experts", layers)]
    if not any(counts) or reader.flag("enable_moe_block") is False:
        return None
    chosen = reader.per_layer("num_experts_per_tok", layers)
    expert_width = reader.raw("moe_intermediate_size")
    field = "moe_intermediate_size" if expert_width is not None else "intermediate_size"
    widths = reader.per_layer(field, layers)
    if all(width is None for width in widths):
        reader.required("moe_intermediate_size")
    shared_count = reader.per_layer("n_shared_experts", layers)
    shared_width = reader.integer("shared_expert_intermediate_size")
    result = []
    for index in range(layers):
        width = widths[index] or 0
        shared = (shared_count[index] or 0) * width
        if shared_width is not None:
            shared = shared_width if family.defaults.get("shared_total", True) else shared
        if family.defaults.get("shared_like_expert"):
            shared = width
        if (chosen[index] or 0) > counts[index] and counts[index]:
            raise ConfigError(
                f"num_experts_per_tok is {chosen[index]}; expected at most the {counts[index]} experts",
                field="num_experts_per_tok",
            )
        result.append(
            MoeMlp(
                num_experts=counts[index],
                num_experts_per_tok=chosen[index] or 1,
                moe_intermediate_size=width,
                shared_intermediate_size=shared,
                shared_gate=bool(family.defaults.get("shared_gate")) and shared > 0,
                gated=family.gated,
                bias=bool(family.defaults.get("expert_bias")),
                router_bias=family.router_bias,
                latent_size=reader.integer("moe_latent_size", low=1),
                dense_intermediate_size=(reader.integer("intermediate_size") or 0)
                if family.family == "gemma4"
                else 0,
            )
        )
    return result
