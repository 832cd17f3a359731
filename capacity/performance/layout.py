"""How a deployment splits a model, and what one device of it can do per second.

Source: vLLM's parallel groups (experts are spread over all tensor and data parallel ranks). Left out: NUMA and rail
topology inside a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capacity.errors import CapacityError
from capacity.hardware import Gpu

NODE_GPUS = 8
RACK_GPUS = 72

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parallel sizes. With experts, data parallel ranks share them (attention is data parallel);
    without, they are independent replicas. ``link_domain``: GPUs that one fast link domain joins."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts_whole: bool = False
    link_domain: int = NODE_GPUS

    def __post_init__(self) -> None:
        for name, key in (
            ("tensor", "tensor_parallel_size"),
            ("pipeline", "pipeline_parallel_size"),
            ("data", "data_parallel_size"),
        ):
            if getattr(self, name) < 1:
                raise CapacityError(f"{key} is {getattr(self, name)}; expected at least 1", field=key)

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def effective_tensor(self) -> int:
        """Ranks that help one step. Beyond the link domain the all-reduce crosses the network and no clean measured point
        exists, so such a size counts as its square root at most (docs/performance.md).

        >>> Layout(tensor=8).effective_tensor, Layout(tensor=16).effective_tensor, Layout(tensor=64).effective_tensor
        (8, 4, 8)
        """
        if self.tensor <= self.link_domain:
            return self.tensor
        return min(self.link_domain, math.isqrt(self.tensor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Peaks of one or several accelerators as columns (n, 1): bytes/s, operations/s, link bytes/s per direction."""

    bandwidth: Array
    bf16: Array
    fp8: Array
    int8: Array
    fp4: Array
    link: Array

    def peak(self, types: tuple[str, ...]) -> Array:
        """Peak of the first compute type that a device has, else of 16 bit."""
        found = self.bf16
        for name in reversed(types):
            if name == "fp4_as_fp8":
                found = np.where(self.fp4 > 0, self.fp8, found)
            else:
                column: Array = getattr(self, name)
                found = np.where(column > 0, column, found)
        return found


def devices(gpus: Sequence[Gpu]) -> Devices:
    """Columns of ``gpus``. Raises CapacityError where bandwidth or 16-bit peak is not stated.

    >>> from capacity.hardware import find_gpu
    >>> devices([find_gpu("h100-sxm")]).peak(("fp4", "fp8")).item() / 1e12
    1979.0
    """
    rows = []
    for gpu in gpus:
        half = (gpu.bf16_tflops if gpu.native_bf16 else None) or gpu.fp16_tflops or gpu.bf16_tflops
        if not gpu.bandwidth_gbs or not half:
            raise CapacityError(
                f"gpu {gpu.id!r} has no stated bandwidth or 16-bit peak, so speed is unknown", field="gpu"
            )
        link = (gpu.interconnect_gbs if gpu.has_fast_links else None) or (gpu.pcie_gbs or 16.0) / 2
        fp8 = gpu.fp8_tflops if gpu.native_fp8 and gpu.fp8_tflops else 0.0
        fp4 = gpu.fp4_tflops if gpu.native_fp4 and gpu.fp4_tflops else 0.0
        int8 = gpu.int8_tops if gpu.native_int8 and gpu.int8_tops else 0.0
        rows.append((gpu.bandwidth_gbs * 1e9, half * 1e12, fp8 * 1e12, int8 * 1e12, fp4 * 1e12, link * 1e9))
    table = np.array(rows, dtype=float).T[:, :, None]
    return Devices(
        bandwidth=table[0], bf16=table[1], fp8=table[2], int8=table[3], fp4=table[4], link=table[5]
    )


def link_domain(gpu: Gpu) -> int:
    """GPUs that one fast link domain joins: 72 in an NVL72 rack, else 8."""
    return RACK_GPUS if "NVL72" in gpu.interconnect else NODE_GPUS
