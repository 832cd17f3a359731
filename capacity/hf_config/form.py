"""The small form: a model from six numbers, as full attention with a gated MLP.

Left out: everything that needs a config.json (windows, states, experts).
"""

from __future__ import annotations

from capacity.errors import ConfigError
from capacity.hf_config.reader import Reader
from capacity.model import Attention, DenseMlp, Layer, ModelSpec


def spec_from_form(
    *,
    layers: int,
    heads: int,
    kv_heads: int,
    hidden: int,
    vocab: int,
    head_dim: int | None = None,
    intermediate: int | None = None,
    max_position_embeddings: int | None = None,
    tie_word_embeddings: bool = False,
    dtype: str = "bfloat16",
) -> ModelSpec:
    """A model from a form. ``kv_heads`` is the number of KV heads, not the group size. Raises ConfigError.

    >>> spec = spec_from_form(layers=40, heads=40, kv_heads=40, hidden=5120, vocab=32000)
    >>> spec.layers[0].mixers[0].head_dim
    128
    """
    reader = Reader(
        {
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "hidden_size": hidden, "vocab_size": vocab, "head_dim": head_dim,
            "intermediate_size": intermediate,
            "max_position_embeddings": max_position_embeddings,
        }
    )  # fmt: skip
    count, query, kv = (
        reader.required(key) for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    )
    hidden, vocab = reader.required("hidden_size"), reader.required("vocab_size")
    width = reader.integer("head_dim")
    if width is None:
        if hidden % query:
            raise ConfigError(
                f"head_dim is missing, and hidden {hidden:,} is not a multiple of heads {query}"
            )
        width = hidden // query
    if query % kv:
        raise ConfigError(f"kv_heads is {kv}; expected a divisor of heads ({query}), such as 1 or {query}")
    inner = reader.integer("intermediate_size")
    notes = () if inner else ("intermediate size not given: weights from 4 x hidden with two matrices",)
    mlp = DenseMlp(intermediate_size=inner) if inner else DenseMlp(intermediate_size=4 * hidden, gated=False)
    mixer = Attention(num_heads=query, num_kv_heads=kv, head_dim=width, v_head_dim=width)
    layer = Layer(mixers=(mixer,), mlp=mlp, norm_parameters=2 * hidden)
    return ModelSpec(
        model_id="form",
        architecture="form",
        model_type="form",
        hidden_size=hidden,
        vocab_size=vocab,
        num_attention_heads=query,
        max_position_embeddings=reader.integer("max_position_embeddings"),
        tie_word_embeddings=tie_word_embeddings,
        dtype=dtype,
        layers=(layer,) * count,
        notes=notes,
        source="form",
    )
