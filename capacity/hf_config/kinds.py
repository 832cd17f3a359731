"""What each layer is: full, sliding or chunked attention, recurrent state, both at once, MLP only, or
nothing.

Source: the configs' own pattern fields, and the family's rule where they are silent. Left out: widths.
"""

from __future__ import annotations

from capacity.errors import ConfigError
from capacity.hf_config.families import GENERIC, Family
from capacity.hf_config.reader import Reader, seen

WORDS = {
    "full_attention": "full", "attention": "full", "full": "full", "global": "full",
    "global_attention": "full",
    "sliding_attention": "sliding", "sliding": "sliding", "local": "sliding", "local_attention": "sliding",
    "sliding_window": "sliding", "chunked_attention": "chunked",
    "linear_attention": "state", "mamba": "state", "mamba2": "state", "conv": "state", "recurrent": "state",
    "lightning_attention": "state", "lightning": "state", "kda": "state",
    "hybrid": "parallel", "mlp": "mlp", "moe": "moe",
}  # fmt: skip
LETTERS = {"M": "state", "*": "full", "-": "mlp", "E": "moe"}


def layer_kinds(reader: Reader, family: Family, layers: int) -> list[str]:
    """One word per layer.

    Raises ConfigError for a list of the wrong length, an unknown word, or a hybrid without its pattern.
    """
    if family.family == GENERIC:
        return ["full"] * layers
    for listed in (_by_words, _by_letters, _by_numbers, _by_indices):
        kinds = listed(reader, family, layers)
        if kinds is not None:
            return kinds
    if family.defaults.get("pure_state"):
        return ["state"] * layers
    if family.defaults.get("parallel"):
        return ["parallel"] * layers
    if family.state == "mamba1":
        period, offset = reader.integer("attn_layer_period", low=1), reader.integer("attn_layer_offset") or 0
        return ["full" if i % (period or 1) == offset else "state" for i in range(layers)]
    if family.rule == "interval":
        every = reader.integer("full_attention_interval", low=1) or 4
        return ["full" if (i + 1) % every == 0 else "state" for i in range(layers)]
    if family.state or "pattern_field" in family.defaults:
        field = family.defaults.get("pattern_field", "layer_types")
        raise ConfigError(
            f"{reader.path(field)} is missing; expected which of the {layers} layers keep attention"
        )
    return _windows(reader, family, layers)


def _by_words(reader: Reader, family: Family, layers: int) -> list[str] | None:
    for key in ("layer_types", "layers_block_type", "block_types"):
        words = reader.listed(key, length=layers)
        if words is not None:
            unknown = next((w for w in words if not isinstance(w, str) or w not in WORDS), None)
            if unknown is not None:
                raise ConfigError(
                    f"{reader.path(key)} holds {seen(unknown)}; expected one of {', '.join(sorted(WORDS))}",
                    field=key,
                )
            kinds = [WORDS[str(word)] for word in words]
            if "sliding" in kinds and reader.integer("sliding_window") is None:
                raise ConfigError(f"sliding_window is missing though {reader.path(key)} has sliding layers")
            return kinds
    return None


def _by_letters(reader: Reader, family: Family, layers: int) -> list[str] | None:
    pattern = reader.text_of("hybrid_override_pattern")
    if pattern is None:
        return None
    unknown = next((letter for letter in pattern if letter not in LETTERS), None)
    if unknown is not None or len(pattern) != layers:
        raise ConfigError(
            f"{reader.path('hybrid_override_pattern')} has {len(pattern)} letters; "
            f"expected {layers} of M, *, - and E",
            field="hybrid_override_pattern",
        )
    return [LETTERS[letter] for letter in pattern]


def _by_numbers(reader: Reader, family: Family, layers: int) -> list[str] | None:
    for key, one, zero in (
        ("hybrid_layer_pattern", "sliding", "full"),
        ("attn_type_list", "full", "state"),
        ("no_rope_layers", "chunked", "full"),
    ):
        if key == "no_rope_layers" and family.rule != "llama4":
            continue
        flags = reader.listed(key, length=None if key == "no_rope_layers" else layers)
        if flags:
            if len(flags) != layers or any(flag not in (0, 1) for flag in flags):
                raise ConfigError(f"{reader.path(key)}: expected {layers} entries of 0 or 1", field=key)
            return [one if flag else zero for flag in flags]
    return None


def _by_indices(reader: Reader, family: Family, layers: int) -> list[str] | None:
    linear = reader.mapping("linear_attn_config")
    first, found = 0, None
    if linear is not None and linear.listed("full_attn_layers") is not None:
        found, first, where = linear.listed("full_attn_layers"), 1, linear.path("full_attn_layers")
    else:
        for key in ("attn_layer_indices", "full_attn_idxs"):
            if family.state and found is None:
                found, where = reader.listed(key), reader.path(key)
    if found is None:
        return None
    kinds = ["state"] * layers
    for index in found:
        if isinstance(index, bool) or not isinstance(index, int) or not first <= index < layers + first:
            raise ConfigError(
                f"{where} holds {seen(index)}; expected layer numbers from {first} to {layers - 1 + first}"
            )
        kinds[index - first] = "full"
    return kinds


def _windows(reader: Reader, family: Family, layers: int) -> list[str]:
    window = reader.integer("sliding_window") if reader.raw("sliding_window") != 0 else None
    flag = reader.flag("use_sliding_window")
    if family.rule == "llama4":
        every = reader.integer("no_rope_layer_interval", low=1) or 4
        return ["full" if (i + 1) % every == 0 else "chunked" for i in range(layers)]
    if window is None or flag is False or family.unknown_kv or reader.spelling("kv_lora_rank"):
        return ["full"] * layers
    if family.rule in ("window", "full"):
        return ["sliding"] * layers  # also one longer than any request: the engine still keeps it as a window
    if family.rule == "window_flag":
        first = reader.integer("max_window_layers", low=0)
        return ["sliding" if flag and i >= (first or 0) else "full" for i in range(layers)]
    if family.rule == "alternate":
        return ["full" if i % 2 else "sliding" for i in range(layers)]
    if family.rule == "pattern":
        return _pattern(reader, layers)
    return ["full"] * layers


def _pattern(reader: Reader, layers: int) -> list[str]:
    pattern = reader.raw("sliding_window_pattern")
    if reader.spelling("sliding_window_pattern") is None and reader.spelling("_sliding_window_pattern"):
        pattern = reader.raw("_sliding_window_pattern")
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        kinds = ["sliding" if pattern[i % len(pattern)] == "L" else "full" for i in range(layers)]
        kinds[-1] = "full"
        return kinds
    every = reader.check("sliding_window_pattern", pattern, low=1, high=1000)
    return ["full" if (i + 1) % every == 0 else "sliding" for i in range(layers)]
