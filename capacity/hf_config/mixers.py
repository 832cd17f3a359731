"""A layer's attention or recurrent state with all its widths, from one section of a config.

Source: each family's modeling class, checked against published parameter counts. Left out: rotary details.
"""

from __future__ import annotations

from typing import Literal

from capacity.errors import ConfigError
from capacity.hf_config.families import Family
from capacity.hf_config.reader import Reader
from capacity.model import Attention, Indexer, LatentAttention, Mixer, RecurrentState


def says(reader: Reader, column: str) -> bool:
    """A family column: yes, no, or the config key that decides (absent = no)."""
    if column in ("yes", "no"):
        return column == "yes"
    return bool(reader.flag(column, default=False))


def qk_norm(reader: Reader, family: Family) -> Literal["none", "per_head", "full"]:
    """The norm on queries and keys: ``key:kind`` in the table means only when the config sets that key."""
    column = family.qk_norm
    if ":" in column:
        key, column = column.split(":")
        if not reader.flag(key, default=False):
            return "none"
    return "per_head" if column == "per_head" else "full" if column == "full" else "none"


def heads(reader: Reader, family: Family, layers: int) -> tuple[list[int | None], list[int | None]]:
    """Query and KV heads of each layer (0 or None = no attention there). MQA and absent fields are
    resolved.
    """
    query = reader.per_layer("num_attention_heads", layers)
    if all(count is None for count in query):
        reader.required("num_attention_heads")
    if reader.spelling("num_key_value_heads") is not None or "num_key_value_heads" in family.defaults:
        if family.family == "falcon" and not reader.flag("new_decoder_architecture", default=False):
            return query, [1 if reader.flag("multi_query", default=True) else q for q in query]
        return query, reader.per_layer("num_key_value_heads", layers)
    if reader.flag("multi_query", default=False):
        return query, [1] * layers
    groups = reader.integer("num_groups") if family.family == "openelm" else None
    return query, [q // groups if groups and q else q for q in query]


def head_dim(reader: Reader, query_heads: int) -> int:
    """The head width: stated, or hidden size / query heads. Raises ConfigError when that is not whole."""
    stated = reader.integer("head_dim")
    if stated is not None:
        return stated
    hidden = reader.required("hidden_size")
    if hidden % query_heads:
        raise ConfigError(
            f"head_dim is missing, and hidden_size {hidden:,} is no multiple of the {query_heads} heads",
            field="head_dim",
        )
    return hidden // query_heads


def attention(reader: Reader, family: Family, *, kind: str, query_heads: int, kv_heads: int) -> Attention:
    """Softmax attention of one layer. Raises ConfigError when the KV heads do not divide the query heads."""
    width = head_dim(reader, query_heads)
    value = reader.integer("v_head_dim") or width
    key_is_value = bool(family.defaults.get("key_is_value"))
    if kind == "sliding" and reader.section.get("swa_num_key_value_heads") is not None:
        query_heads = reader.integer("swa_num_attention_heads", low=1) or query_heads
        kv_heads = reader.integer("swa_num_key_value_heads", low=1) or kv_heads
        width = reader.integer("swa_head_dim", low=1) or width
        value = reader.integer("swa_v_head_dim", low=1) or value
    if kind == "full" and reader.section.get("global_head_dim") is not None:
        width = value = reader.integer("global_head_dim", low=1) or width
        key_is_value = bool(reader.flag("attention_k_eq_v", default=False))
        if key_is_value:
            kv_heads = reader.integer("num_global_key_value_heads", low=1) or kv_heads
    if query_heads % kv_heads:
        raise ConfigError(
            f"num_key_value_heads is {kv_heads}; expected a divisor of num_attention_heads ({query_heads})",
            field="num_key_value_heads",
        )
    window = None
    if kind == "sliding":
        window = reader.integer("sliding_window")
    elif kind == "chunked":
        window = reader.integer("attention_chunk_size", low=1)
    sinks = family.defaults.get("sinks")
    gate = reader.raw("attn_output_gate")
    return Attention(
        kind="sliding" if kind == "sliding" else "chunked" if kind == "chunked" else "full",
        num_heads=query_heads,
        num_kv_heads=kv_heads,
        head_dim=width,
        v_head_dim=value,
        window=window,
        qkv_bias=says(reader, family.qkv_bias),
        output_bias=says(reader, family.o_bias),
        qk_norm=qk_norm(reader, family),
        output_gate=bool(family.defaults.get("output_gate")) and gate is not False,
        key_is_value=key_is_value,
        sinks=sinks == "all" or sinks == kind,
        q_lora_rank=reader.integer("q_lora_rank"),
        o_lora_rank=reader.integer("o_lora_rank", low=1),
        o_groups=reader.integer("o_groups", low=1) or 1,
    )


def every_head(mixer: LatentAttention) -> Attention:
    """Low-rank attention on an engine that keeps every head's K and V in place of the latent, V padded to K's width."""
    width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    return Attention(
        kind="full",
        num_heads=mixer.num_heads,
        num_kv_heads=mixer.num_heads,
        head_dim=width,
        v_head_dim=max(width, mixer.v_head_dim),
        q_lora_rank=mixer.q_lora_rank,
    )


def latent_attention(reader: Reader, family: Family) -> LatentAttention:
    """MLA, with the indexer where the config has one. Raises ConfigError that names the missing rank."""
    rank = reader.required("kv_lora_rank")
    count = reader.required("num_attention_heads")
    value = reader.integer("v_head_dim")
    if value is None and family.defaults.get("v_from_hidden"):
        value = reader.required("hidden_size") // count
    index_dim = reader.integer("index_head_dim", low=1)
    indexer = None
    if index_dim is not None:
        indexer = Indexer(
            num_heads=reader.integer("index_n_heads", low=1) or 64,
            head_dim=index_dim,
            topk=reader.integer("index_topk", low=1) or 2048,
        )
    return LatentAttention(
        num_heads=count,
        kv_lora_rank=rank,
        qk_rope_head_dim=reader.required("qk_rope_head_dim"),
        qk_nope_head_dim=reader.required("qk_nope_head_dim"),
        v_head_dim=reader.required("v_head_dim") if value is None else value,
        q_lora_rank=reader.integer("q_lora_rank"),
        indexer=indexer,
    )


def _first(reader: Reader, *keys: str, low: int = 1) -> int | None:
    for key in keys:
        value = reader.integer(key, low=low)
        if value is not None:
            return value
    return None


def _needed(reader: Reader, *keys: str) -> int:
    value = _first(reader, *keys)
    if value is None:
        raise ConfigError(
            f"{reader.path(keys[0])} is missing; expected a whole number of at least 1", field=keys[0]
        )
    return value


def state(reader: Reader, family: Family) -> Mixer:
    """The recurrent state of one layer by the family's kind. Raises ConfigError that names the missing
    width.
    """
    hidden = reader.required("hidden_size")
    stated = reader.text("mamba_ssm_cache_dtype") or reader.text("mamba_ssm_dtype")
    state_dtype = stated if stated not in (None, "auto") else None
    if family.state == "gated_delta_net":
        return RecurrentState(
            kind="gated_delta_net",
            num_heads=_needed(reader, "linear_num_value_heads"),
            head_dim=_needed(reader, "linear_value_head_dim"),
            state_size=_needed(reader, "linear_key_head_dim"),
            num_groups=_needed(reader, "linear_num_key_heads"),
            conv_kernel=_first(reader, "linear_conv_kernel_dim") or 4,
            state_dtype=state_dtype,
        )
    if family.state == "kda":
        linear = reader.mapping("linear_attn_config")
        if linear is None:
            raise ConfigError(
                "linear_attn_config is missing; expected num_heads, head_dim and full_attn_layers"
            )
        width = _needed(linear, "head_dim")
        count = _needed(linear, "num_heads")
        kernel = _first(linear, "short_conv_kernel_size") or 4
        return RecurrentState(
            kind="kda",
            num_heads=count,
            head_dim=width,
            state_size=width,
            num_groups=count,
            conv_kernel=kernel,
        )
    if family.state == "lightning":
        count = reader.required("num_attention_heads")
        width = head_dim(reader, count)
        return RecurrentState(
            kind="lightning", num_heads=count, head_dim=width, state_size=width, num_groups=count,
            conv_kernel=0,
        )  # fmt: skip
    if family.state == "short_conv":
        kernel = _first(reader, "conv_L_cache") or 3
        return RecurrentState(
            kind="short_conv", num_heads=1, head_dim=hidden, state_size=1, conv_kernel=kernel,
            bias=bool(reader.flag("conv_bias", default=False)), conv_bias=False,
        )  # fmt: skip
    if family.state == "mamba1":
        expand = _first(reader, "mamba_expand", "expand") or 2
        stated = "intermediate_size" if family.defaults.get("pure_state") else "mamba_intermediate_size"
        inner = _first(reader, stated) or expand * hidden
        rank = reader.raw("mamba_dt_rank") or reader.raw("time_step_rank")
        return RecurrentState(
            kind="mamba1",
            num_heads=1,
            head_dim=inner,
            state_size=_first(reader, "mamba_d_state", "state_size") or 16,
            conv_kernel=_first(reader, "mamba_d_conv", "conv_kernel") or 4,
            state_dtype=state_dtype,
            dt_rank=-(-hidden // 16)
            if rank in (None, "auto")
            else reader.check("mamba_dt_rank", rank, low=1),
            conv_bias=bool(reader.flag("mamba_conv_bias", default=True)),
            inner_norms=not family.defaults.get("no_inner_norms"),
        )
    return _mamba2(reader, family, hidden, state_dtype)


def _mamba2(reader: Reader, family: Family, hidden: int, state_dtype: str | None) -> RecurrentState:
    count = _needed(reader, "mamba_num_heads", "mamba_n_heads", "num_heads", "n_mamba_heads")
    stated_width = reader.raw("mamba_head_dim") or reader.raw("mamba_d_head")
    inner = _first(reader, "mamba_d_ssm") or (_first(reader, "mamba_expand", "expand") or 2) * hidden
    if stated_width in (None, "auto"):
        if inner % count:
            raise ConfigError(f"mamba_d_head is missing, and {inner:,} is not a multiple of {count} heads")
        width = inner // count
    else:
        width = reader.check("mamba_head_dim", stated_width, low=1)
    return RecurrentState(
        kind="mamba2",
        num_heads=count,
        head_dim=width,
        state_size=_needed(reader, "ssm_state_size", "mamba_d_state", "state_size"),
        num_groups=_first(reader, "n_groups", "mamba_n_groups", "mamba_ngroups") or 1,
        conv_kernel=_first(reader, "conv_kernel", "mamba_d_conv") or 4,
        state_dtype=state_dtype,
        bias=bool(reader.flag("mamba_proj_bias", default=False)),
        conv_bias=bool(reader.flag("use_conv_bias", default=True))
        and bool(reader.flag("mamba_conv_bias", default=True)),
        inner_norms=bool(reader.flag("mamba_rms_norm", default=True)),
    )
