"""quantization_config to a format id of the catalogue, the exclude list, and the checkpoint's own KV format.

Source: the checkpoint writers' documentation and catalog/quantization.csv. Left out: activation formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capacity.errors import ConfigError
from capacity.hf_config.reader import Reader
from capacity.model import CheckpointQuantization

ALGOS = {"FP8": "fp8-tensor", "NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "FP8_PB_WO": "fp8-block128",
         "FP8_PER_CHANNEL_PER_TOKEN": "fp8-channel", "FP8_BLOCK_SCALES": "fp8-block128", "MXFP8": "mxfp8",
         "MXFP4": "mxfp4", "INT8_SQ": "int8-w8a8", "W8A8_SQ_PER_CHANNEL": "int8-w8a8",
         "W4A16_AWQ": "awq-int4-g128",
         "W8A16": "int8-w8a16"}  # fmt: skip
IGNORE_KEYS = (
    "modules_to_not_convert",
    "ignore",
    "exclude_modules",
    "llm_int8_skip_modules",
    "ignored_layers",
)


def read_quantization(
    section: Mapping[str, Any], *, name: str
) -> tuple[CheckpointQuantization | None, tuple[str, ...]]:
    """The checkpoint's quantisation (None = 16 bit) and notes on what has no rule. Raises ConfigError."""
    reader = Reader(section, name=name)
    config = reader.mapping("quantization_config") or reader.mapping("compression_config")
    if config is None:
        return None, ()
    inner = config.mapping("quantization")
    config = inner if inner is not None and config.text("quant_method") is None else config
    method = (config.text("quant_method") or config.text("quant_algo") or "").lower()
    weight_format, overrides = _format(config, method)
    if weight_format is None:
        note = (
            f"quantization_config has the method {method or 'unknown'!r}, which has no rule here: "
            "weights count as 16 bit until weight_format or weights_gib is given"
        )
        return None, (note,)
    if section.get("expert_dtype") in ("fp4", "mxfp4"):
        overrides = (*overrides, ("experts", "mxfp4"))
    ignored: list[str] = []
    for key in IGNORE_KEYS:
        ignored += [str(item) for item in config.listed(key) or () if isinstance(item, str)]
    only = tuple(
        str(item) for item in config.listed("modules_in_block_to_quantize") or () if isinstance(item, str)
    )
    return (
        CheckpointQuantization(
            weight_format=weight_format,
            ignored=tuple(dict.fromkeys(ignored)),
            kv_cache_dtype=_kv_format(config),
            overrides=overrides,
            only=only,
        ),
        (),
    )


def _kv_format(config: Reader) -> str | None:
    algo = config.text("kv_cache_quant_algo")
    if algo is not None:
        return {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8"}.get(algo.upper())
    scheme = config.raw("kv_cache_scheme")
    if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8:
        return "fp8" if scheme.get("type") == "float" else "int8"
    return None


def _format(config: Reader, method: str) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    if method in ("fp8", "fbgemm_fp8", "deepseek_v4_fp8"):
        if config.listed("weight_block_size"):
            return "fp8-block128", ()
        return ("fp8-channel" if method == "fbgemm_fp8" else "fp8-tensor"), ()
    if method in (
        "awq",
        "gptq",
        "auto-round",
        "autoround",
        "intel/auto-round",
        "auto_round",
        "awq_marlin",
        "gptq_marlin",
    ):
        kind = "awq" if method.startswith("awq") else "gptq"
        bits = config.integer("bits", low=2, high=8) or config.integer("w_bit", low=2, high=8) or 4
        group = (
            config.raw("group_size") if config.raw("group_size") is not None else config.raw("q_group_size")
        )
        size = 128 if group is None else config.check("group_size", group, low=-1, high=65536)
        return _grouped(kind, bits, size), ()
    if method == "bitsandbytes":
        if config.flag("load_in_8bit", default=False):
            return "bnb-int8", ()
        return ("bnb-nf4-dq" if config.flag("bnb_4bit_use_double_quant", default=False) else "bnb-nf4"), ()
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return "mxfp4", ()
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed(config)
    if method.startswith("modelopt") or method.upper() in ALGOS or method == "mixed_precision":
        return _modelopt(config, method)
    return None, ()


def _grouped(kind: str, bits: int, group: int) -> str:
    if bits == 8:
        return "int8-w8a16"
    if bits == 4 and group == 32:
        return "gptq-int4-g32"
    return f"{kind}-int{bits}-g{group if group > 0 else 'channel'}"


def _scheme(config: Reader) -> str | None:
    """The format of one compressed-tensors group."""
    weights = config.mapping("weights")
    if weights is None:
        return None
    bits = weights.integer("num_bits", low=2, high=16)
    strategy = weights.text("strategy") or "tensor"
    group = weights.integer("group_size", low=-1)
    if weights.text("type") == "float":
        if bits == 4:
            return "mxfp4" if group == 32 else "nvfp4"
        if group == 32:
            return "mxfp8"
        return {"channel": "fp8-channel", "block": "fp8-block128"}.get(strategy, "fp8-tensor")
    if bits == 8:
        return "int8-w8a8" if config.raw("input_activations") is not None else "int8-w8a16"
    if bits == 4:
        symmetric = weights.flag("symmetric", default=True)
        size = group if group and group > 0 else 128
        if strategy == "channel":
            return "gptq-int4-gchannel"
        return f"ct-int4-g{size}-sym" if symmetric else _grouped("gptq", 4, size)
    return f"gptq-int{bits}-g{group or 128}" if bits else None


def _compressed(config: Reader) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    groups = config.mapping("config_groups")
    if groups is None:
        return None, ()
    found: list[tuple[tuple[str, ...], str]] = []
    for key in groups.section:
        group = groups.mapping(key)
        scheme = _scheme(group) if group is not None else None
        if scheme is not None and group is not None:
            found.append((tuple(str(t) for t in group.listed("targets") or ("Linear",)), scheme))
    if not found:
        raise ConfigError(
            f"{config.path('config_groups')} describes no weights; expected num_bits and a strategy"
        )
    whole = next((scheme for targets, scheme in found if "Linear" in targets), None)
    overrides = tuple((t, scheme) for targets, scheme in found for t in targets if t != "Linear")
    if whole is not None:
        return whole, overrides
    return ("bf16" if len(found) > 1 or overrides else found[0][1]), overrides


def _modelopt(config: Reader, method: str) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    algo = (config.text("quant_algo") or method).upper()
    if algo in ALGOS:
        return ALGOS[algo], ()
    layers = config.mapping("quantized_layers")
    if algo == "MIXED_PRECISION" and layers is not None:
        named = []
        for key in layers.section:
            one = layers.mapping(key)
            scheme = ALGOS.get((one.text("quant_algo") or "").upper()) if one is not None else None
            if scheme is not None:
                named.append((key, scheme))
        return "bf16", tuple(named)
    if config.mapping("config_groups") is not None:
        return _compressed(config)
    return None, ()
