"""Accelerators: the memory that the engine sees, and the spellings that logs and people use."""

from __future__ import annotations

import pytest

from capacity.errors import CapacityError
from capacity.hardware import find_gpu, gpu_ids, gpus


def test_every_row_is_complete_or_says_why() -> None:
    assert len(gpu_ids()) == 44
    for gpu in gpus().values():
        assert gpu.source and gpu.memory_basis
        if gpu.memory_gib is None:
            assert gpu.memory_basis.startswith("unknown")
        else:
            assert gpu.memory_low_gib is not None and gpu.memory_high_gib is not None
            assert gpu.memory_low_gib <= gpu.memory_gib <= gpu.memory_high_gib
            assert gpu.memory_gb_nominal is None or gpu.memory_gib < gpu.memory_gb_nominal * 1.01
        for value in (gpu.bandwidth_gbs, gpu.bf16_tflops, gpu.fp8_tflops):
            assert value is None or value > 0


@pytest.mark.parametrize(
    ("gpu_id", "memory_gib"),
    [
        ("h100-sxm", 79.18),
        ("h200", 139.81),
        ("rtx3090", 23.58),
        ("l40s", 44.4),
        ("b300", 267.69),
        ("gb10", 121.69),
        ("mi300x", 191.98),
    ],
)
def test_memory_is_what_start_up_logs_print(gpu_id: str, memory_gib: float) -> None:
    assert find_gpu(gpu_id).memory_gib == memory_gib


@pytest.mark.parametrize(
    ("spelling", "gpu_id"),
    [
        ("H100", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("h100 pcie", "h100-pcie"),
        ("NVIDIA H100 NVL 94GB", "h100-nvl"),
        ("NVIDIA A100-SXM4-80GB", "a100-80-sxm"),
        ("A100-80GB", "a100-80-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-40-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX A6000 48GB", "a6000"),
        ("NVIDIA T4 16GB", "t4"),
        ("Tesla V100S-PCIE-32GB", "v100s-32"),
        ("Tesla V100-PCIE-32GB", "v100-32"),
        ("A800", "a100-80-sxm"),
        ("Tesla T4", "t4"),
        ("RTX PRO 6000", "rtxpro6000"),
        ("DGX Spark", "gb10"),
        ("AMD Instinct MI300X", "mi300x"),
        ("B300 SXM6", "b300"),
    ],
)
def test_spellings(spelling: str, gpu_id: str) -> None:
    assert find_gpu(spelling).id == gpu_id


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("a100", "ambiguous.*a100-80-sxm"), ("h300", "close: .*h"), ("", "expected one of")],
)
def test_unknown_or_ambiguous(name: str, sentence: str) -> None:
    with pytest.raises(CapacityError, match=sentence) as caught:
        find_gpu(name)
    assert caught.value.field == "gpu"


def test_two_devices_of_one_module_are_planned_apart() -> None:
    assert find_gpu("mi250x").memory_gib == 63.98
