"""Memory outside torch on one GPU: CUDA context, NCCL, attention workspaces, and the V2 runner's own state.

Source: start-up logs, grouped by release, link and tensor parallelism (catalog/memory_coefficients.csv).
Left out: other processes on the card (other_memory_gib).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from capacity.engine import Version
from capacity.hardware import Gpu
from capacity.memory.coefficients import coefficient
from capacity.units import GIB

DATA_CENTRE_GIB = 70.0
UNIFIED = "12.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class NonTorch:
    """Value and interval in bytes; ``known`` False where no start-up log is near."""

    bytes: float
    low_bytes: float
    high_bytes: float
    known: bool
    source: str


def non_torch(
    *,
    gpu: Gpu | None,
    total_gib: float,
    version: Version,
    runner: Literal["v0", "v1", "v2"],
    tensor_parallel_size: int,
    pipeline_parallel_size: int,
    data_parallel_size: int,
    max_num_seqs: int,
    vocab_size: int,
) -> NonTorch:
    """What one GPU holds outside torch at the end of the profile."""
    names = conditions(gpu, total_gib, tensor_parallel_size, pipeline_parallel_size)
    age = version
    if data_parallel_size > 1 and (0, 17, 0) <= version < (0, 20, 0):
        age = (0, 16, 0)
    row = coefficient("non_torch_gib", age, *names)
    value, low, high = row.value * GIB, row.low * GIB, row.high * GIB
    source = row.source
    if runner == "v2":
        state = coefficient("sampler_state_bytes_per_logit", version, "v2")
        logits = float(max_num_seqs) * vocab_size
        value, low, high = value + state.value * logits, low + state.low * logits, high + state.high * logits
        if state.value:
            source = f"{source}; and {state.source}"
    return NonTorch(
        bytes=value, low_bytes=low, high_bytes=high, known=row.rows > 0 and gpu is not None, source=source
    )


def conditions(gpu: Gpu | None, total_gib: float, tp: int, pp: int) -> tuple[str, ...]:
    """Row conditions from the nearest to the most general."""
    if gpu is None:
        if tp == 1:
            return ("nvidia pp",) if pp > 1 else ("nvidia tp1",)
        link = "nvlink" if total_gib >= DATA_CENTRE_GIB else "pcie"
        return (f"{link} tp4" if tp > 2 else f"{link} tp2", "pcie tp")
    if gpu.vendor == "AMD":
        return ("amd tp1",) if tp == 1 else ("amd tp",)
    if gpu.vendor != "NVIDIA":
        return ("other tp",)
    if gpu.compute_capability == UNIFIED:
        return ("unified tp",)
    blackwell = gpu.arch.startswith("Blackwell")
    if tp == 1:
        if pp > 1:
            return ("nvidia pp",)
        return (
            ("blackwell tp1", "nvidia tp1")
            if blackwell and gpu.compute_capability == "12.0"
            else ("nvidia tp1",)
        )
    if gpu.interconnect.startswith("NVLink") and "bridge" not in gpu.interconnect:
        if float(gpu.compute_capability) < 9:
            return ("pcie tp",) if tp == 2 else ("nvlink-a100 tp4", "pcie tp")
        return ("nvlink tp4",) if tp > 2 else ("nvlink tp2",)
    return ("blackwell-pcie tp", "pcie tp") if blackwell else ("pcie tp",)
