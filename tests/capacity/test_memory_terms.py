"""Each term of the memory bill against figures printed by public start-ups."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from capacity.catalog import model_spec
from capacity.engine import engine_release, parse_version
from capacity.memory import MemoryBill, model_runner
from capacity.memory.coefficients import coefficient, coefficients
from capacity.memory.graphs import capture_sizes
from capacity.memory_terms import stage_bills
from capacity.resolve import resolve
from capacity.scenario import Scenario
from capacity.units import GIB

GOLDEN = Path(__file__).parents[1] / "golden"


def bill(**raw: object) -> MemoryBill:
    found = stage_bills(resolve(Scenario.parse({"gpu": "h100-sxm", "max_model_len": 8192, **raw})))
    assert found is not None
    return found.bills[found.tightest]


PEAKS = [  # printed "peak activation" in GiB: model, release, arguments, figure, tolerance
    ("llama-3.1-8b", "0.11.0", {}, 4.76, 0.02),
    ("qwen3-0.6b", "0.11.0", {}, 5.56, 0.02),
    ("qwen3-14b", "0.16.0", {}, 5.64, 0.02),
    ("qwen3-14b", "0.17.0", {}, 2.23, 0.02),
    ("gpt-oss-20b", "0.11.0", {}, 7.38, 0.02),
    ("gpt-oss-20b", "0.19.0", {}, 2.87, 0.02),
    ("llama-3.3-70b-instruct", "0.19.0", {"tensor_parallel_size": 2}, 1.96, 0.02),
    ("granite-3.3-8b-instruct", "0.19.0", {}, 0.85, 0.02),
    ("deepseek-v2-lite", "0.19.0", {}, 1.93, 0.02),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "0.19.0", {"tensor_parallel_size": 2}, 1.21, 0.02),
    ("qwen3-30b-a3b", "0.19.0", {}, 2.68, 0.03),
    ("gemma-2-27b-it", "0.19.0", {}, 3.66, 0.03),
    ("gemma-3-27b-it", "0.19.0", {}, 3.99, 0.08),
    ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "0.11.0", {}, 2.12, 0.08),
    ("qwen3-4b", "0.12.0", {"gpu": "rtx4090", "max_num_seqs": 4, "max_num_batched_tokens": 8192}, 0.59, 0.03),
    ("llama-3.1-8b", "0.9.2", {"gpu": "mi300x", "max_model_len": 131072}, 14.63, 0.5),
]


@pytest.mark.parametrize(("model", "release", "extra", "printed", "tolerance"), PEAKS)
def test_activation_peak(
    model: str, release: str, extra: dict[str, object], printed: float, tolerance: float
) -> None:
    found = bill(**{"model": model, "engine_version": release, "weights_gib": 1.0, **extra})
    assert found.terms[1].bytes / GIB == pytest.approx(printed, abs=tolerance)


def test_last_pipeline_stage_holds_the_sampler() -> None:
    """Llama-3.1-8B PP2 on 0.19.0: 1.10 GiB on the first stage, 2.01 on the last."""
    raw = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine_version": "0.19.0", "max_model_len": 8192}
    found = stage_bills(resolve(Scenario.parse({**raw, "pipeline_parallel_size": 2})))
    assert found is not None
    first, last = (each.terms[1].bytes / GIB for each in found.bills)
    assert first == pytest.approx(1.10, abs=0.06)
    assert last == pytest.approx(2.01, abs=0.06)


@pytest.mark.parametrize(
    ("model", "release", "quantised", "name", "charged"),
    [
        ("qwen3-8b", "0.19.1", False, "v1", False),
        ("qwen3-8b", "0.20.0", False, "v1", True),
        ("qwen3-8b", "0.22.0", False, "v2", False),
        ("qwen3-8b", "0.22.0", True, "v1", True),
        ("llama-3.1-8b", "0.22.0", False, "v1", True),
        ("llama-3.1-8b", "0.25.1", True, "v2", False),
        ("qwen3-30b-a3b", "0.27.1", False, "v1", True),
        ("qwen3-next-80b-a3b-instruct", "0.28.0", False, "v1", True),
        ("qwen3-30b-a3b", "0.29.0", False, "v2", True),
        ("llama-3.1-8b", "0.7.3", False, "v0", False),
    ],
)
def test_model_runner_and_graph_charge(
    model: str, release: str, quantised: bool, name: str, charged: bool
) -> None:
    found = model_runner(model_spec(model), engine_release(release), quantised=quantised)
    assert (found.name, found.charges_graphs) == (name, charged)


@pytest.mark.parametrize(("largest", "sizes"), [(512, 51), (256, 35), (128, 19), (8, 4), (2, 2), (1, 1)])
def test_default_capture_sizes(largest: int, sizes: int) -> None:
    assert capture_sizes(largest) == sizes


def test_eager_captures_no_graph_and_a_given_figure_wins() -> None:
    eager = bill(model="llama-3.1-8b", enforce_eager=True)
    assert (eager.terms[2].bytes, eager.terms[2].basis) == (0.0, "exact")
    given = bill(model="llama-3.1-8b", cuda_graph_gib=1.5)
    assert (given.terms[2].bytes, given.terms[2].basis) == (1.5 * GIB, "measured")


def test_images_off_drops_the_vision_tower() -> None:
    seen = bill(model="qwen2.5-vl-7b-instruct", engine_version="0.19.0", max_num_seqs=8)
    blind = bill(
        model="qwen2.5-vl-7b-instruct", engine_version="0.19.0", max_num_seqs=8, images_per_request=0
    )
    assert seen.activation.set_by == "vision tower"
    assert blind.activation.set_by == "forward pass"
    assert blind.terms[1].bytes < seen.terms[1].bytes - GIB


def test_qwen3_vl_pads_its_items_to_the_video_budget_up_to_0_12() -> None:
    """153,600 tokens x 2,048 x 4 x 2 B = 2.34 GiB of encoder cache, gone with 0.13."""
    raw = {"model": "Qwen/Qwen3-VL-30B-A3B-Instruct", "tensor_parallel_size": 2, "max_num_seqs": 64}
    before, after = (bill(engine_version=release, **raw).activation for release in ("0.12.0", "0.13.0"))
    assert before.encoder_bytes / GIB == pytest.approx(2.34 + 0.10, abs=0.02)
    assert after.encoder_bytes / GIB < 0.5


def test_v0_is_taken_where_the_engine_falls_back() -> None:
    assert bill(model="llama-3.2-3b-instruct", gpu="t4", engine_version="0.8.5").runner.name == "v0"
    assert bill(model="llama-3.2-3b-instruct", gpu="t4", engine_version="0.10.2").runner.name == "v1"
    assert bill(model="llama-3.2-3b-instruct", gpu="a10", engine_version="0.8.5").runner.name == "v1"


def test_every_coefficient_holds_its_value_and_names_a_source() -> None:
    assert len(coefficients()) > 30
    for row in coefficients():
        assert row.low <= row.value <= row.high, row
        assert row.source and row.unit, row


def test_a_coefficient_follows_the_release_and_the_nearest_condition() -> None:
    assert coefficient("sampler_bytes_per_logit", parse_version("0.16.0"), "v1").value == 38
    assert coefficient("sampler_bytes_per_logit", parse_version("0.17.0"), "v1").value == 14
    assert coefficient("sampler_scratch_rows", (0, 19, 0), "rtx3090", "any").value == 82
    assert coefficient("sampler_scratch_rows", (0, 19, 0), "not-a-card", "any").value == 132
    with pytest.raises(KeyError, match="no_such_name"):
        coefficient("no_such_name", (0, 19, 0), "any")


def test_the_h100_start_ups_have_every_printed_term() -> None:
    with (GOLDEN / "h100_startups.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 8
    for row in rows:
        found = bill(
            model=row["model"],
            engine_version="0.11.0",
            max_model_len=16_000,
            tensor_parallel_size=int(row["tensor_parallel_size"]),
            weights_gib=float(row["weights_gib"]),
        )
        assert found.terms[1].bytes / GIB == pytest.approx(float(row["activation_peak_gib"]), abs=0.08)
        assert found.terms[3].bytes / GIB == pytest.approx(float(row["non_torch_gib"]), abs=0.02)


def test_no_term_is_below_nothing_while_its_spread_counts_for_kv() -> None:
    # release 0.8.5, one GPU: non-torch 0.10 GiB with a residual spread of 0.20 below
    found = bill(model="Qwen/Qwen3-8B", gpu="h100-sxm", engine_version="0.8.5", max_model_len=8192)
    non_torch = found.terms[3]
    assert (non_torch.low_bytes, non_torch.bytes / GIB) == (0.0, pytest.approx(0.10))
    assert all(term.low_bytes >= 0 for term in found.terms)
    above = (found.kv_cache.high_bytes - found.kv_cache.bytes) / GIB
    assert above >= 0.20
