"""A Hugging Face config.json as a ModelSpec: every spelling of the catalogue's families, never guessed
silently.

Source: catalog/model_families.csv and config_names.csv. Left out: tokenizers, generation settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capacity.hf_config.families import GENERIC, choose_family, for_config
from capacity.hf_config.form import spec_from_form
from capacity.hf_config.layers import build_layers, build_mtp, expand_blocks, per_layer_embeddings
from capacity.hf_config.lengths import longest_request, longrope_length
from capacity.hf_config.quantization import read_quantization
from capacity.hf_config.reader import Reader
from capacity.hf_config.sections import language_section, uncounted, vision_section, with_class_defaults
from capacity.hf_config.text import checked_object, config_from_text
from capacity.hf_config.vision import encoder
from capacity.model import ModelSpec

__all__ = ["parse_config", "parse_config_text", "spec_from_form"]

DTYPES = ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "auto")


def parse_config_text(
    text: str, *, model_id: str | None = None, accept_upper_bound: bool = False
) -> ModelSpec:
    """The model in a config.json's text. Raises ConfigError with one sentence (HTML, not JSON, too large
    ...).
    """
    return parse_config(config_from_text(text), model_id=model_id, accept_upper_bound=accept_upper_bound)


def parse_config(
    config: Mapping[str, Any], *, model_id: str | None = None, accept_upper_bound: bool = False
) -> ModelSpec:
    """The model that a config.json object describes.

    Sizes are elements. ``accept_upper_bound`` plans an architecture without a rule with every layer as full
    attention, and says so. Raises ConfigError (a field), UnknownArchitecture (no rule).

    >>> spec = parse_config({"architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    ...     "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...     "intermediate_size": 14336, "vocab_size": 128256})
    >>> spec.num_hidden_layers, spec.layers[0].mixers[0].head_dim
    (32, 128)
    """
    config = checked_object(config)
    section, name, wrappers = language_section(config)
    top = Reader(config)
    own = Reader(section, name=name)
    architectures = _architectures(own, top)
    model_type = own.text("model_type") or top.text("model_type") or ""
    family = choose_family(
        model_type,
        architectures,
        encoder_decoder=bool(section.get("is_encoder_decoder") or config.get("is_encoder_decoder")),
        accept_upper_bound=accept_upper_bound,
    )
    section, filled = with_class_defaults(section, name, model_type)
    family = for_config(family, section)
    section = expand_blocks(section, name)
    reader = Reader(section, name=name, defaults=family.defaults)
    vocab, hidden = reader.required("vocab_size"), reader.required("hidden_size")
    upper_bound = family.family == GENERIC or bool(family.unknown_kv and accept_upper_bound)
    layers = build_layers(reader, family, upper_bound=upper_bound)
    mtp = build_mtp(reader, family, layers)
    quantization, notes = read_quantization(section, name=name)
    dtype, dtype_notes = _dtype(reader)
    tie = reader.flag("tie_word_embeddings")
    final = 0 if family.defaults.get("no_final_norm") else hidden * (2 if family.norm_bias else 1)
    longest = reader.integer("max_position_embeddings")
    trained = longrope_length(reader)
    vision, vision_name = vision_section(config, wrappers)
    tower = None
    if vision is not None:
        tower = encoder(
            vision,
            name=vision_name,
            text_hidden=hidden,
            outer_type=str(config.get("model_type") or ""),
            top=config,
        )
    notes += filled + uncounted(
        config, wrappers, vision_name if tower is not None and not tower.parameters else ""
    )
    if family.family == GENERIC:
        notes += ("unknown architecture, planned as an upper bound: every layer full attention",)
    learned = family.position.startswith("learned")
    return ModelSpec(
        model_id=model_id or _printable(config.get("_name_or_path")) or "config.json",
        architecture=architectures[0] if architectures else "",
        model_type=model_type,
        hidden_size=hidden,
        vocab_size=vocab,
        num_attention_heads=_query_heads(reader, layers),
        max_position_embeddings=longest_request(reader),
        tie_word_embeddings=family.tie if tie is None else tie,
        dtype=dtype,
        layers=layers,
        mtp_layers=mtp.layers,
        mtp_parameters=mtp.parameters,
        mtp_embedding_parameters=mtp.embedding_parameters,
        encoder=tower,
        quantization=quantization,
        position_parameters=((longest or 0) + int(family.position.split(":")[1])) * hidden if learned else 0,
        other_parameters=per_layer_embeddings(reader, family, len(layers))
        + (2 * hidden if family.defaults.get("embedding_norm") else 0),
        lm_head_bias=bool(reader.flag("lm_head_bias", default=False)),
        config_section=name,
        notes=(*notes, *reader.notes, *dtype_notes),
        source="config.json",
        upper_bound=upper_bound,
        kv_layout_known=not family.unknown_kv,
        kv_layout_reason=family.unknown_kv or None,
        norm_parameters=final,
        extra={"family": family.family} | ({"longrope_length": str(trained)} if trained else {}),
    )


def _printable(value: Any) -> str:
    """A label of at most 200 characters that any terminal and any encoding can print."""
    text = str(value)[:200] if isinstance(value, str | int | float) else ""
    return "".join(c for c in text if c.isprintable()).strip()


def _architectures(own: Reader, top: Reader) -> tuple[str, ...]:
    found: list[str] = []
    for reader in (own, top):
        found += [_printable(item) for item in reader.listed("architectures") or ()]
    return tuple(dict.fromkeys(found))


def _dtype(reader: Reader) -> tuple[str, tuple[str, ...]]:
    stated = reader.text("torch_dtype") or reader.text("dtype")
    stated = stated.removeprefix("torch.") if stated else None
    if stated in DTYPES and stated != "auto":
        return str(stated), ()
    seen = "absent" if stated is None else f"{stated!r}"
    return "bfloat16", (f"torch_dtype is {seen}: bfloat16 assumed",)


def _query_heads(reader: Reader, layers: tuple[Any, ...]) -> int:
    counts = [
        mixer.num_heads for layer in layers for mixer in layer.mixers if not hasattr(mixer, "conv_kernel")
    ]
    return max(counts) if counts else max((m.num_heads for layer in layers for m in layer.mixers), default=1)
