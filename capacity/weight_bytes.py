"""Bytes per parameter of each module in a weight format: what is quantised and what stays in 16 bit.

Source: the checkpoint's exclude list where the format is the checkpoint's own, else
catalog/weight_formats.csv and
format_exceptions.csv. Validated against published checkpoint sizes. Left out: padding under tensor
parallelism.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from capacity.catalog.table import read_table
from capacity.errors import CapacityError
from capacity.model import Attention, CheckpointQuantization, LatentAttention, Layer, ModelSpec, MoeMlp
from capacity.parameters import LAYER_MODULES, ParameterCount, count_parameters
from capacity.precision import WeightFormat, resolve_weight_format

ATTENTION_PARTS = ("attention.q", "attention.kv", "attention.o", "attention.replicated")
QUANTISABLE = ("attention", "state", "mlp", "experts", "shared_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Bytes per parameter by module: ``layers[i][module]`` (also ``attention.q`` ...) and
    ``globals_[module]``.
    """

    format: WeightFormat
    layers: tuple[dict[str, float], ...]
    mtp_layers: tuple[dict[str, float], ...]
    globals_: dict[str, float] = field(hash=False)
    source: str = ""


def weight_bytes(spec: ModelSpec, fmt: WeightFormat) -> WeightBytes:
    """Bytes per parameter of every module of ``spec`` stored as ``fmt``.

    A format that is the checkpoint's own follows the checkpoint's exclude list; another one the table's
    default.
    """
    key = (id(spec), fmt.id)
    kept = _cache.get(key)
    if kept is None or kept[0] is not spec:
        if len(_cache) > 256:
            _cache.clear()
        kept = (spec, _weight_bytes(spec, fmt))
        _cache[key] = kept
    return kept[1]


_cache: dict[tuple[int, str], tuple[ModelSpec, WeightBytes]] = {}


def module_bytes_per_parameter(
    spec: ModelSpec, fmt: WeightFormat, module_name: str, layer: int | None = None
) -> float:
    """Bytes per parameter of one module, in one layer or weighted over all layers. Raises CapacityError.

    >>> from capacity.catalog import model_spec
    >>> from capacity.precision import resolve_weight_format
    >>> spec = model_spec("gpt-oss-120b")
    >>> fmt = resolve_weight_format("auto", spec)
    >>> module_bytes_per_parameter(spec, fmt, "experts"), module_bytes_per_parameter(spec, fmt, "attention")
    (0.53125, 2.0)
    """
    table = weight_bytes(spec, fmt)
    if module_name not in (*LAYER_MODULES, *ATTENTION_PARTS):
        if module_name not in table.globals_:
            names = ", ".join((*LAYER_MODULES, *table.globals_))
            raise CapacityError(f"module {module_name[:40]!r} is unknown; expected one of {names}")
        return table.globals_[module_name]
    if layer is not None:
        return table.layers[layer][module_name]
    return _average(table.layers, count_parameters(spec), module_name)


def quantised_share(spec: ModelSpec, fmt: WeightFormat) -> float:
    """The share of the served parameters that the format quantises (the rest stays in 16 bit)."""
    base = _base(fmt)
    quantised, total = 0.0, 0
    for module, (count, per_parameter) in checkpoint_modules(spec, fmt).items():
        if module != "mtp":
            total += count
            saved = (
                (base - per_parameter) / (base - fmt.bytes_per_weight) if base != fmt.bytes_per_weight else 0
            )
            quantised += count * min(1.0, max(0.0, saved))
    return quantised / total if total else 0.0


def checkpoint_modules(spec: ModelSpec, fmt: WeightFormat) -> dict[str, tuple[int, float]]:
    """Each module's parameters and mean bytes per parameter; their products sum to the served weights."""
    count, table = count_parameters(spec), weight_bytes(spec, fmt)
    found: dict[str, tuple[int, float]] = {}
    for module in LAYER_MODULES:
        size = sum(getattr(layer, module) for layer in count.layers)
        found[module] = (size, _average(table.layers, count, module))
    for module in ("embedding", "lm_head", "final_norm", "position", "encoder", "mtp"):
        found[module] = (getattr(count, module), table.globals_[module])
    found["global_other"] = (count.other, table.globals_["other"])
    return found


def served_bytes(spec: ModelSpec, fmt: WeightFormat) -> int:
    """Weight bytes of one whole copy as the engine loads it (no MTP modules, tied head once)."""
    parts = checkpoint_modules(spec, fmt)
    return round(sum(size * each for module, (size, each) in parts.items() if module != "mtp"))


def stored_bytes(spec: ModelSpec, fmt: WeightFormat) -> int:
    """Weight bytes of the checkpoint: ``served_bytes`` plus the MTP modules with their embedding copies."""
    size, each = checkpoint_modules(spec, fmt)["mtp"]
    return served_bytes(spec, fmt) + round(size * each) + 2 * count_parameters(spec).mtp_embeddings


def _average(layers: tuple[dict[str, float], ...], count: ParameterCount, module: str) -> float:
    name, _, part = module.partition(".")
    weighted, total = 0.0, 0
    for values, sizes in zip(layers, count.layers, strict=True):
        size = getattr(sizes.attention_parts, part) if part else getattr(sizes, name)
        weighted += size * values[module]
        total += size
    return weighted / total if total else 2.0


def _base(fmt: WeightFormat) -> float:
    return 4.0 if fmt.id == "fp32" else 2.0


def _weight_bytes(spec: ModelSpec, fmt: WeightFormat) -> WeightBytes:
    own = spec.quantization if spec.quantization and spec.quantization.weight_format == fmt.id else None
    rules = _Rules(spec, fmt, own)
    specific = own is not None and any(
        re.search(r"\d", p) for p in (*own.ignored, *own.only, *dict(own.overrides))
    )
    seen: dict[int, dict[str, float]] = {}
    layers = []
    for index, layer in enumerate((*spec.layers, *spec.mtp_layers)):
        key = index if specific else id(layer)
        is_mtp = index >= len(spec.layers)
        if is_mtp and "mtp" in rules.kept:
            layers.append(dict.fromkeys((*LAYER_MODULES, *ATTENTION_PARTS), _base(fmt)))
            continue
        if key not in seen:
            seen[key] = rules.layer(index, layer)
        layers.append(seen[key])
    main, mtp = tuple(layers[: len(spec.layers)]), tuple(layers[len(spec.layers) :])
    base = fmt.bytes_per_weight if fmt.whole_model else _base(fmt)
    globals_ = dict.fromkeys(("embedding", "lm_head", "final_norm", "position", "encoder", "other"), base)
    count = count_parameters(spec)
    size, weighted = 0, 0.0
    for values, sizes in zip(mtp, count.mtp_layers, strict=True):
        for module in LAYER_MODULES:
            size += getattr(sizes, module)
            weighted += getattr(sizes, module) * values[module]
    weighted += spec.mtp_parameters * base
    size += spec.mtp_parameters
    globals_["mtp"] = weighted / size if size else base
    return WeightBytes(format=fmt, layers=main, mtp_layers=mtp, globals_=globals_, source=rules.source)


class _Patterns:
    """An exclude list made ready: whole-name entries as a set, so that a list of hundreds costs no more than one."""

    def __init__(self, patterns: Iterable[str]) -> None:
        entries = tuple(patterns)
        self.whole = {_plain(p) for p in entries if not p.startswith("re:") and "*" not in p}
        self.rest = [p for p in entries if p.startswith("re:") or "*" in p]

    def covers(self, name: str) -> bool:
        """Whether any entry covers the tensor."""
        parts = name.split(".")
        runs = (".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))
        return any(run in self.whole for run in runs) or any(matches(p, name) for p in self.rest)


class _Rules:
    """Which tensors of one model are quantised in one format."""

    def __init__(self, spec: ModelSpec, fmt: WeightFormat, own: CheckpointQuantization | None) -> None:
        self.spec, self.fmt, self.own, self.base = spec, fmt, own, _base(fmt)
        self.modules: frozenset[str] = frozenset(fmt.quantised_modules)
        self.kept: frozenset[str] = frozenset()
        self.source = fmt.source
        self.ignored = _Patterns(own.ignored if own is not None else ())
        self.only = _Patterns(own.only if own is not None else ())
        family = spec.extra.get("family", "")
        exception = _exceptions().get((fmt.id, family))
        if own is not None and (own.ignored or own.only or own.overrides):
            self.modules = frozenset(fmt.quantised_modules) if fmt.id == "mxfp4" else frozenset(QUANTISABLE)
            self.kept = frozenset({"mtp"}) if any(p.startswith("mtp") for p in own.ignored) else frozenset()
            self.source = "the checkpoint's own exclude list"
        elif exception is not None:
            self.modules, self.kept, self.source = exception

    def layer(self, index: int, layer: Layer) -> dict[str, float]:
        if self.fmt.whole_model:
            return dict.fromkeys((*LAYER_MODULES, *ATTENTION_PARTS), self.fmt.bytes_per_weight)
        values = dict.fromkeys((*LAYER_MODULES, *ATTENTION_PARTS), self.base)
        sums: dict[str, list[float]] = {}
        for module, tensor, size in _tensors(layer, self.spec.hidden_size):
            each = self._tensor(module.split(".")[0], f"model.layers.{index}.{tensor}")
            for name in {module, module.split(".")[0]}:
                pair = sums.setdefault(name, [0.0, 0.0])
                pair[0] += size * each
                pair[1] += size
        for name, (weighted, whole) in sums.items():
            if whole:
                values[name] = weighted / whole
        return values

    def _tensor(self, module: str, name: str) -> float:
        own = self.own
        if own is not None:
            for pattern, other in own.overrides:
                if matches(pattern, name) or (pattern == "experts" and module == "experts"):
                    return _override_bytes(other)
            if self.ignored.covers(name):
                return self.base
            if own.only and not self.only.covers(name):
                return self.base
        return self.fmt.bytes_per_weight if module in self.modules else self.base


@lru_cache(maxsize=32)
def _override_bytes(format_id: str) -> float:
    return resolve_weight_format(format_id).bytes_per_weight


@lru_cache(maxsize=1)
def _exceptions() -> dict[tuple[str, str], tuple[frozenset[str], frozenset[str], str]]:
    """(format, family) to the modules that are quantised, those that stay, and the source."""
    return {
        (fmt, family): (
            frozenset(row["quantises"].split("|")),
            frozenset(row["keeps_16_bit"].split("|")),
            row["source"],
        )
        for row in read_table("format_exceptions")
        for fmt in row["formats"].split("|")
        for family in row["families"].split("|")
    }


# A repeated group or many repeats can take for ever on a name; no published checkpoint has such an entry.
SLOW_PATTERN = re.compile(r"\)[*+{]|(?:[*+}].*){9}")
MAX_PATTERN = 300


def _plain(pattern: str) -> str:
    """An entry with the wrapper's prefix replaced by the language model's own."""
    return re.sub(
        r"^(model\.language_model|language_model\.model|language_model|backbone|transformer)\.",
        "model.",
        pattern,
    )


@lru_cache(maxsize=8192)
def matches(pattern: str, name: str) -> bool:
    """Whether an exclude-list entry covers a tensor: ``re:`` regular expression, glob, or whole name parts.

    >>> matches("re:.*self_attn.*", "model.layers.0.self_attn.q_proj")
    True
    >>> matches("gate", "model.layers.0.mlp.gate_proj")
    False
    """
    if pattern.startswith("re:"):
        if len(pattern) > MAX_PATTERN or SLOW_PATTERN.search(pattern):
            return False
        try:
            return re.match(pattern[3:], name) is not None
        except re.error:
            return False
    plain = _plain(pattern)
    if "*" in plain:
        return fnmatch.fnmatchcase(name, plain) or fnmatch.fnmatchcase(name, f"{plain}.*")
    return f".{plain}." in f".{name}."


def _tensors(layer: Layer, hidden: int) -> Iterator[tuple[str, str, int]]:
    """(module or attention part, tensor name, parameters) of one layer's quantisable matrices."""
    for mixer in layer.mixers:
        if isinstance(mixer, Attention):
            yield "attention.q", "self_attn.q_proj", hidden * mixer.num_heads * mixer.head_dim
            yield "attention.kv", "self_attn.k_proj", hidden * mixer.num_kv_heads * mixer.head_dim
            yield "attention.kv", "self_attn.v_proj", hidden * mixer.num_kv_heads * mixer.v_head_dim
            yield "attention.o", "self_attn.o_proj", hidden * mixer.num_heads * mixer.v_head_dim
            if mixer.q_lora_rank:
                yield "attention.replicated", "self_attn.q_a_proj", hidden * mixer.q_lora_rank
        elif isinstance(mixer, LatentAttention):
            yield from _latent_tensors(mixer, hidden)
        else:
            inner = mixer.num_heads * mixer.head_dim
            part = "conv" if mixer.kind == "short_conv" else "linear_attn"
            yield "state", f"{part}.in_proj", 2 * hidden * inner
            yield "state", f"{part}.out_proj", hidden * inner
    if isinstance(layer.mlp, MoeMlp):
        for part in ("gate_proj", "up_proj", "down_proj"):
            yield "experts", f"mlp.experts.0.{part}", 1
            yield "shared_experts", f"mlp.shared_experts.{part}", 1
            yield "mlp", f"mlp.{part}", 1
    elif layer.mlp is not None:
        for part in ("gate_proj", "up_proj", "down_proj")[0 if layer.mlp.gated else 1 :]:
            yield "mlp", f"mlp.{part}", 1


def _latent_tensors(mixer: LatentAttention, hidden: int) -> Iterator[tuple[str, str, int]]:
    heads, qk = mixer.num_heads, mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    if mixer.q_lora_rank:
        yield "attention.replicated", "self_attn.q_a_proj", hidden * mixer.q_lora_rank
        yield "attention.q", "self_attn.q_b_proj", mixer.q_lora_rank * heads * qk
    else:
        yield "attention.q", "self_attn.q_proj", hidden * heads * qk
    width = mixer.kv_lora_rank + mixer.qk_rope_head_dim
    yield "attention.replicated", "self_attn.kv_a_proj_with_mqa", hidden * width
    up = mixer.kv_lora_rank * heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)
    yield "attention.q", "self_attn.kv_b_proj", up
    yield "attention.o", "self_attn.o_proj", heads * mixer.v_head_dim * hidden
    if mixer.indexer is not None:
        rank = mixer.q_lora_rank or hidden
        size = rank * mixer.indexer.num_heads * mixer.indexer.head_dim
        yield "attention.replicated", "self_attn.indexer.wq_b", size
