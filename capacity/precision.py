"""Weight and KV-cache formats: bytes per element with scales, and the spellings that people use for them.

Source: catalog/weight_formats.csv and kv_formats.csv. Which modules stay in 16 bit: weight_bytes.py.
Left out: what a format does to quality.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from capacity.catalog.table import read_table
from capacity.errors import CapacityError
from capacity.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """A weight format. ``bytes_per_weight`` includes scales and zero points.

    ``quantised_modules``: what is quantised when no exclude list says otherwise. ``whole_model``: the
    figure is an
    average over every tensor (GGUF). ``bits``: of one element (16 for bf16).
    """

    id: str
    name: str
    bits: float | None
    bytes_per_weight: float
    quantised_modules: tuple[str, ...]
    whole_model: bool
    activation_dtype: str
    min_hardware: str
    typically_unquantised: str
    validated_by: str
    source: str
    notes: str
    aliases: tuple[str, ...] = ()

    @property
    def is_quantised(self) -> bool:
        return self.bytes_per_weight < 1.9


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """A KV-cache format: ``element_bytes`` per number, or ``record_bytes`` per token and layer (MLA layouts).

    ``scale_bytes``: what each head keeps beside its K, and again beside its V, for every token.
    """

    id: str
    name: str
    element_bytes: float | None
    record_bytes: int | None
    scale_bytes: int
    min_hardware: str
    source: str
    notes: str
    aliases: tuple[str, ...] = ()


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split("|") if part)


@lru_cache(maxsize=1)
def weight_formats() -> dict[str, WeightFormat]:
    """Every weight format by id."""
    found = {}
    for row in read_table("weight_formats"):
        bits = row["element_bits"]
        found[row["id"]] = WeightFormat(
            id=row["id"],
            name=row["name"],
            bits=float(bits) if bits.replace(".", "").isdigit() else None,
            bytes_per_weight=float(row["effective_bytes_per_weight"]),
            quantised_modules=_split(row["quantised_modules"]),
            whole_model=row["whole_model"] == "yes",
            activation_dtype=row["activation_dtype"],
            min_hardware=row["min_hardware"],
            typically_unquantised=row["typically_unquantised"],
            validated_by=row["validated_by"],
            source=row["source"],
            notes=row["notes"],
            aliases=_split(row["aliases"]),
        )
    return found


@lru_cache(maxsize=1)
def kv_formats() -> dict[str, KvFormat]:
    """Every KV format by id."""
    return {
        row["id"]: KvFormat(
            id=row["id"],
            name=row["name"],
            element_bytes=float(row["element_bytes"]) if row["element_bytes"] else None,
            record_bytes=int(row["record_bytes"]) if row["record_bytes"] else None,
            scale_bytes=int(row["scale_bytes"] or 0),
            min_hardware=row["min_hardware"],
            source=row["source"],
            notes=row["notes"],
            aliases=_split(row["aliases"]),
        )
        for row in read_table("kv_formats")
    }


def _plain(text: str) -> str:
    return re.sub(r"[\s_.]+", "-", text.strip().lower())


@lru_cache(maxsize=1)
def _weight_spellings() -> dict[str, str]:
    found: dict[str, str] = {}
    for fmt in weight_formats().values():
        for name in (fmt.id, *fmt.aliases):
            found.setdefault(_plain(name), fmt.id)
    return found


@lru_cache(maxsize=1)
def _kv_spellings() -> dict[str, str]:
    found: dict[str, str] = {}
    for fmt in kv_formats().values():
        for name in (fmt.id, fmt.id.removeprefix("kv-"), *fmt.aliases):
            found.setdefault(_plain(name), fmt.id)
    return found


GROUPED = re.compile(r"(?P<kind>awq|gptq|ct)-int(?P<bits>[2-8])-g(?P<group>\d{1,5}|channel)(?P<sym>-sym)?")


def resolve_weight_format(text: str | None, spec: ModelSpec | None = None) -> WeightFormat:
    """The weight format that a spelling means; ``id`` and ``name`` say which one was taken.

    None and "auto" mean the checkpoint's own format, or 16 bit. A family name (fp8, int4 ...) takes the
    checkpoint's
    own variant when it has one of that family. Raises CapacityError naming close matches.

    >>> [resolve_weight_format(t).id for t in ("fp8", "awq", "gptq-int4", "nvfp4", "mxfp4", "w8a8", "fp16")]
    ['fp8-tensor', 'awq-int4-g128', 'gptq-int4-g128', 'nvfp4', 'mxfp4', 'int8-w8a8', 'bf16']
    """
    own = spec.quantization.weight_format if spec and spec.quantization else None
    if text is None or _plain(text) in ("", "auto"):
        return _by_id(own or "bf16")
    wanted = _plain(text)
    if own is not None and _covers(wanted, own):
        return _by_id(own)
    if wanted in _weight_spellings():
        return weight_formats()[_weight_spellings()[wanted]]
    if GROUPED.fullmatch(wanted):
        return _by_id(wanted)
    near = difflib.get_close_matches(wanted, list(_weight_spellings()), n=4, cutoff=0.55)
    found = list(dict.fromkeys(_weight_spellings()[key] for key in near)) or [
        "bf16",
        "fp8-tensor",
        "awq-int4-g128",
    ]
    raise CapacityError(
        f"weight_format {text[:40]!r} is unknown; close: {', '.join(found)}", field="weight_format"
    )


def _covers(wanted: str, own: str) -> bool:
    """True when a loose spelling names the family of the checkpoint's own format."""
    families = {"fp8": ("fp8",), "int4": ("awq-int4", "gptq-int4", "ct-int4"), "awq": ("awq-",),
                "gptq": ("gptq-",),
                "gptq-int4": ("gptq-int4",), "w4a16": ("ct-int4", "gptq-int4"), "fp4": ("nvfp4", "mxfp4"),
                "int8": ("int8",), "compressed-tensors": ("ct-", "fp8", "int8", "nvfp4"),
                "modelopt": ("fp8", "nvfp4"), "bitsandbytes": ("bnb-",), "bnb": ("bnb-",)}  # fmt: skip
    return any(own.startswith(start) for start in families.get(wanted, ()))


@lru_cache(maxsize=256)
def _by_id(format_id: str) -> WeightFormat:
    if format_id in weight_formats():
        return weight_formats()[format_id]
    match = GROUPED.fullmatch(format_id)
    if match is None:
        raise CapacityError(f"weight_format {format_id[:40]!r} is unknown", field="weight_format")
    bits, group = int(match["bits"]), match["group"]
    size = int(group) if group != "channel" else 0
    zero = 0 if match["sym"] else bits
    effective = bits + ((16 + zero) / size if size else 0.01)
    base = weight_formats()["gptq-int4-g128"]
    return replace(
        base,
        id=format_id,
        name=f"INT{bits}, {'per channel' if not size else f'group {size}'}",
        bits=float(bits),
        bytes_per_weight=effective / 8,
        validated_by="",
        source="arithmetic: element + (16-bit scale + zero point) / group",
        notes="",
        aliases=(),
    )


def resolve_kv_format(text: str | None) -> KvFormat:
    """The KV format that vLLM's ``kv_cache_dtype`` spelling means (None and "auto": 16 bit). Raises
    CapacityError.

    >>> resolve_kv_format("fp8_e4m3").element_bytes, resolve_kv_format("fp8_ds_mla").record_bytes
    (1.0, 656)
    """
    wanted = _plain(text or "auto")
    if wanted in _kv_spellings():
        return kv_formats()[_kv_spellings()[wanted]]
    near = difflib.get_close_matches(wanted, list(_kv_spellings()), n=3, cutoff=0.5)
    hint = ", ".join(near) or "auto, fp8, fp8_e4m3, fp8_e5m2, bfloat16"
    raise CapacityError(
        f"kv_cache_dtype {str(text)[:40]!r} is unknown; expected one of {hint}", field="kv_cache_dtype"
    )
