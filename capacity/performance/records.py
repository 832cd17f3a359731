"""What is predicted for, and what comes out: a deployment, and a forecast with its intervals.

Left out: the arithmetic (predict.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capacity.hardware import Gpu
from capacity.performance.layout import Layout
from capacity.performance.work import StepWork

Array = NDArray[np.float64]

SLOWEST_PCIE_GBS = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What is run: ``work`` of the model, the GPU, the layout, the engine, and the limits of the plan.

    ``most_running``: requests of the whole deployment that KV cache and seats allow at this workload; ``limited_by`` names
    the smaller one ("KV-bound" or "seat-bound"). ``speculative_tokens`` with ``acceptance`` = the share of them accepted.
    ``host_bytes``: weights of one GPU that stay in host memory and cross its PCIe link in every step.
    """

    work: StepWork
    gpu: Gpu
    layout: Layout
    engine: str = "vllm"
    release: str | None = None
    most_running: float = float("inf")
    limited_by: str = "KV-bound"
    cached_tokens: float = 0.0
    speculative_tokens: int = 0
    acceptance: float | None = None
    host_bytes: float = 0.0

    @property
    def host_s(self) -> float:
        """Seconds that reading the weights in host memory takes per step."""
        return self.host_bytes / ((self.gpu.pcie_gbs or SLOWEST_PCIE_GBS) * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A value per operating point with the ends of its 80 % interval."""

    value: Array
    low: Array
    high: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Arrays over operating points of the whole deployment. ``running`` + ``waiting`` = concurrency.

    ``e2e_s`` includes waiting for a seat, as does ``ttft_s``. ``parts``: seconds per step by what they are spent on.
    """

    concurrency: Array
    running: Array
    waiting: Array
    tpot_s: Band
    itl_s: Band
    ttft_s: Band
    e2e_s: Band
    output_tokens_per_s: Band
    total_tokens_per_s: Band
    requests_per_s: Band
    mfu: Array
    mbu: Array
    bound: tuple[str, ...]
    floor_s: Array
    parts: dict[str, Array]
    knowledge: str
    extrapolated: bool
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
