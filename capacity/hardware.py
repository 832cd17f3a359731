"""Accelerators: the memory that the engine sees, bandwidth, peaks, links and price range.

Source: catalog/gpus.csv, where a start-up log's figure wins over a page's. Left out: clocks under load.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache

from capacity.catalog.table import read_table
from capacity.errors import CapacityError


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator. None = not stated.

    ``memory_gib`` is what torch reports as total (H100 79.18, not 80), between ``memory_low_gib`` and
    ``memory_high_gib`` in public logs; ``memory_basis`` says measured, estimated or unknown. Bandwidth in
    1e9 bytes/s, peaks in dense 1e12 operations/s, links per direction.
    """

    id: str
    name: str
    vendor: str
    arch: str
    compute_capability: str
    memory_gb_nominal: float | None
    memory_gib: float | None
    memory_low_gib: float | None
    memory_high_gib: float | None
    memory_basis: str
    visible_mib_smi: str
    bandwidth_gbs: float | None
    bf16_tflops: float | None
    fp16_tflops: float | None
    fp8_tflops: float | None
    int8_tops: float | None
    fp4_tflops: float | None
    bf16_measured_tflops: float | None
    interconnect: str
    interconnect_gbs: float | None
    pcie_gbs: float | None
    tdp_w: float | None
    price_low_usd_per_hour: float | None
    price_high_usd_per_hour: float | None
    price_source: str
    native_bf16: bool
    native_fp8: bool
    native_fp4: bool
    native_int8: bool
    source: str
    confidence: str
    notes: str
    aliases: tuple[str, ...] = ()

    @property
    def has_fast_links(self) -> bool:
        """True where GPUs talk over more than PCIe."""
        return not self.interconnect.lower().startswith("pcie") and bool(self.interconnect_gbs)


def _number(text: str) -> float | None:
    """A number, the middle of a range "a-b", or None for a blank."""
    parts = re.findall(r"\d+(?:\.\d+)?", text)
    return sum(map(float, parts[:2])) / len(parts[:2]) if parts else None


@lru_cache(maxsize=1)
def gpus() -> dict[str, Gpu]:
    """Every accelerator by id, in the table's order."""
    return {row["id"]: _gpu(row) for row in read_table("gpus")}


def _gpu(row: dict[str, str]) -> Gpu:
    return Gpu(
        id=row["id"],
        name=row["name"],
        vendor=row["vendor"],
        arch=row["arch"],
        compute_capability=row["compute_capability"],
        memory_gb_nominal=_number(row["memory_gb_nominal"]),
        memory_gib=_number(row["memory_gib"]),
        memory_low_gib=_number(row["memory_low_gib"]),
        memory_high_gib=_number(row["memory_high_gib"]),
        memory_basis=row["memory_basis"],
        visible_mib_smi=row["visible_mib_smi"],
        bandwidth_gbs=_number(row["mem_bw_gbs"]),
        bf16_tflops=_number(row["bf16_dense_tflops"]),
        fp16_tflops=_number(row["fp16_dense_tflops"]),
        fp8_tflops=_number(row["fp8_dense_tflops"]),
        int8_tops=_number(row["int8_dense_tops"]),
        fp4_tflops=_number(row["fp4_dense_tflops"]),
        bf16_measured_tflops=_number(row["bf16_measured_tflops"]),
        interconnect=row["interconnect"],
        interconnect_gbs=_number(row["interconnect_gbs_per_direction"]),
        pcie_gbs=_number(row["pcie_gbs_per_direction"]),
        tdp_w=_number(row["tdp_w"]),
        price_low_usd_per_hour=_number(row["price_low_usd_gpu_h"]),
        price_high_usd_per_hour=_number(row["price_high_usd_gpu_h"]),
        price_source=row["price_source"],
        native_bf16=row["native_bf16"].startswith("yes"),
        native_fp8=row["native_fp8"].startswith("yes"),
        native_fp4=row["native_fp4"].startswith("yes"),
        native_int8=row["native_int8"].startswith("yes"),
        source=row["source"],
        confidence=row["confidence"],
        notes=row["notes"],
        aliases=tuple(part for part in row["aliases"].split("|") if part),
    )


def gpu_ids() -> tuple[str, ...]:
    """All ids in the table's order."""
    return tuple(gpus())


MAKERS = {
    "nvidia",
    "geforce",
    "tesla",
    "amd",
    "instinct",
    "intel",
    "google",
    "huawei",
    "hbm3",
    "hbm3e",
    "hbm2e",
    "gpu",
}


def _plain(text: str) -> str:
    words = re.findall(r"[a-z0-9]+", text.lower())
    return "".join(word for word in words if word not in MAKERS)


@lru_cache(maxsize=1)
def _spellings() -> dict[str, str]:
    found: dict[str, str] = {}
    for gpu in gpus().values():
        for spelling in (gpu.id, *gpu.aliases, gpu.name):
            found.setdefault(_plain(spelling), gpu.id)
    return found


def find_gpu(name: str) -> Gpu:
    """The accelerator by id or by a common spelling. Raises CapacityError naming close matches.

    >>> find_gpu("NVIDIA H100 80GB HBM3").id, find_gpu("h200").memory_gib
    ('h100-sxm', 139.81)
    """
    wanted = name.strip()
    if wanted.lower() in gpus():
        return gpus()[wanted.lower()]
    plain = _plain(wanted)
    if plain in _spellings():
        return gpus()[_spellings()[plain]]
    size = re.search(r"[\s-](\d+)\s?gb\b", wanted, re.IGNORECASE)
    without = _plain(wanted.replace(size[0], " ")) if size is not None else ""
    if size is not None and without in _spellings():
        gpu = gpus()[_spellings()[without]]
        if gpu.memory_gb_nominal == float(size[1]):
            return gpu
    starts = [gpu_id for gpu_id in gpus() if plain and _plain(gpu_id).startswith(plain)]
    if starts:
        raise CapacityError(
            f"gpu {wanted[:40]!r} is ambiguous; expected one of {', '.join(starts)}", field="gpu"
        )
    near = difflib.get_close_matches(plain, list(_spellings()), n=4, cutoff=0.6)
    found = list(dict.fromkeys(_spellings()[key] for key in near))
    hint = f"close: {', '.join(found)}" if found else f"expected one of {', '.join(list(gpus())[:6])} ..."
    raise CapacityError(
        f"gpu {wanted[:40]!r} is not in the catalogue; {hint}; a plan also takes gpu_memory_gib in place of gpu",
        field="gpu",
    )
