"""Physical terms and layouts: hand counts, bounds, and what each input may do to them."""

from __future__ import annotations

import numpy as np
import pytest

from capacity.catalog import model_spec
from capacity.errors import CapacityError
from capacity.hardware import find_gpu
from capacity.performance.bounds import room
from capacity.performance.layout import Layout, devices, link_domain
from capacity.performance.terms import FIRST_TERMS, STEP_TERMS, first_token_terms, step_terms
from capacity.performance.work import StepWork, precision_of, step_work
from capacity.precision import resolve_kv_format, resolve_weight_format

NAMES = list(STEP_TERMS)


def work_of(model: str, fmt: str | None = "bf16", kv: str = "auto") -> StepWork:
    spec = model_spec(model)
    return step_work(spec, resolve_weight_format(fmt, spec), resolve_kv_format(kv))


def terms_of(
    work: StepWork, gpu: str = "h100-sxm", *, c: float = 8, p: float = 1024, o: float = 256, **layout: object
):
    return step_terms(
        work,
        devices([find_gpu(gpu)]),
        Layout(**layout),  # type: ignore[arg-type]
        concurrency=np.array([c]),
        prompt_tokens=np.array([p]),
        output_tokens=np.array([o]),
    )


def term(terms, name: str) -> float:
    return float(terms.values[NAMES.index(name), 0, 0])


def test_weights_over_bandwidth_by_hand():
    # 8.03e9 parameters less the 0.525e9 of the embedding table, two bytes each, over 3,350 GB/s
    assert term(terms_of(work_of("llama-3.1-8b")), "dense_weights") == pytest.approx(
        15.01e9 / 3350e9, rel=2e-3
    )


def test_cache_read_by_hand():
    # 32 layers x 2 x 8 heads x 128 x 2 bytes = 131,072 bytes a token; context 1,024 + 128; 8 sequences
    expected = 131_072 * (1024 + 128) * 8 / 3350e9
    assert term(terms_of(work_of("llama-3.1-8b")), "kv_read") == pytest.approx(expected)


def test_latent_cache_is_not_split_by_tensor_parallelism():
    work = work_of("deepseek-ai/DeepSeek-V3", "fp8")
    one, eight = terms_of(work, "h200", tensor=1), terms_of(work, "h200", tensor=8)
    assert term(one, "kv_read") == pytest.approx(term(eight, "kv_read"))
    grouped = work_of("llama-3.1-70b", "fp8")
    assert term(terms_of(grouped, tensor=8), "kv_read") == pytest.approx(
        term(terms_of(grouped, tensor=1), "kv_read") / 8
    )


def test_expert_coverage_grows_from_the_routed_share_to_all():
    work = work_of("qwen3-235b-a22b-fp8", None)
    whole = work.expert_bytes / (find_gpu("h200").bandwidth_gbs * 1e9)
    assert term(terms_of(work, "h200", c=1), "expert_weights") == pytest.approx(whole * 8 / 128)
    assert term(terms_of(work, "h200", c=512), "expert_weights") == pytest.approx(whole, rel=1e-6)


def test_sliding_layers_read_their_window_only():
    work = work_of("gpt-oss-120b", None)
    short, long = terms_of(work, p=4096, o=2), terms_of(work, p=8192, o=2)
    full = 36_864  # bytes a token of the 18 full layers
    grown = (term(long, "kv_read") - term(short, "kv_read")) * 3350e9 / 8
    assert grown == pytest.approx(full * 4096, rel=1e-6)


def test_fp4_runs_in_16_bit_where_the_gpu_has_no_fp4():
    work = work_of("llama-3.1-70b", "nvfp4")
    hopper, blackwell = devices([find_gpu("h100-sxm")]), devices([find_gpu("b200")])
    assert hopper.peak(work.dense_compute).item() == find_gpu("h100-sxm").bf16_tflops * 1e12
    assert blackwell.peak(work.dense_compute).item() == find_gpu("b200").fp4_tflops * 1e12


def test_a_lone_request_waits_for_no_neighbour():
    terms = terms_of(work_of("llama-3.1-8b"), c=1)
    assert term(terms, "prefill_matmul") == 0
    assert term(terms, "prefills") == 0


def test_prefix_hits_shorten_prefill_only():
    work, args = (
        work_of("llama-3.1-8b"),
        {
            "concurrency": np.array([8.0]),
            "prompt_tokens": np.array([2048.0]),
            "output_tokens": np.array([64.0]),
        },
    )
    device = devices([find_gpu("h100-sxm")])
    cold = step_terms(work, device, Layout(), **args)
    warm = step_terms(work, device, Layout(), cached_tokens=1024.0, **args)
    assert term(warm, "prefill_matmul") == pytest.approx(term(cold, "prefill_matmul") / 2)
    assert term(warm, "kv_read") == term(cold, "kv_read")


@pytest.mark.parametrize(
    "model",
    ["llama-3.1-8b", "gpt-oss-120b", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3.5-397B-A17B", "zai-org/GLM-5"],
)
def test_no_term_falls_with_concurrency_and_none_outgrows_it(model: str):
    work = work_of(model, None)
    c = np.geomspace(1, 2048, 60)
    terms = step_terms(
        work,
        devices([find_gpu("b200")]),
        Layout(tensor=8),
        concurrency=c,
        prompt_tokens=np.array([2048.0]),
        output_tokens=np.array([512.0]),
    )
    values = terms.values[:, 0]
    assert (np.diff(values, axis=1) >= -1e-15).all()
    neighbours = [
        NAMES.index(n) for n in ("prefill_matmul", "prefill_attention", "prefill_all_reduce", "prefills")
    ]
    for i in range(len(NAMES)):
        if i not in neighbours:
            assert (np.diff(values[i] / c) <= 1e-12 * np.abs(values[i] / c).max()).all(), NAMES[i]


def test_terms_are_finite_for_every_model_of_the_catalogue():
    from capacity.catalog import model_ids

    for model in model_ids():
        terms = terms_of(work_of(model, None), "h200", c=16)
        first = first_token_terms(terms, np.array([[0.01]]), prompt_tokens=np.array([1024.0]))
        assert np.isfinite(terms.values).all(), model
        assert (terms.values >= 0).all(), model
        assert np.isfinite(first).all(), model
        assert terms.floor_s[0, 0] > 0, model


@pytest.mark.parametrize(
    ("model", "engine", "data", "c", "share"),
    [
        ("deepseek-ai/DeepSeek-V3", "trtllm", 8, 256, (1 - 1 / 8) * (1 - 1 / 256)),
        ("openai/gpt-oss-120b", "trtllm", 2, 64, 0.5 * (1 - 1 / 64)),
        ("deepseek-ai/DeepSeek-V3", "trtllm", 8, 1, 0.0),  # nothing is in flight
        ("deepseek-ai/DeepSeek-V3", "trtllm", 1, 256, 0.0),  # one rank
        ("deepseek-ai/DeepSeek-V3", "vllm", 8, 256, 0.0),  # takes a prompt at once
        ("llama-3.1-70b", "trtllm", 8, 256, 0.0),  # replicas of a dense model run by themselves
    ],
)
def test_a_prompt_waits_for_the_other_ranks_where_the_engine_balances_them(model, engine, data, c, share):
    terms = terms_of(work_of(model, None), "b200", c=c, data=data, experts_whole=data > 1)
    own = first_token_terms(terms, np.array([[0.02]]), prompt_tokens=np.array([1024.0]), engine=engine)
    assert own[list(FIRST_TERMS).index("ranks_wait"), 0, 0] == pytest.approx(0.02 * share)


def test_precisions_of_formats():
    seen = {
        fmt: precision_of(fmt)
        for fmt in ("bf16", "fp8-block128", "mxfp4", "nvfp4", "awq-int4-g128", "int8-w8a8", "gguf-q4_k_m")
    }
    assert list(seen.values()) == ["bf16", "fp8", "fp4", "fp4", "int4", "int8", "int4"]


def test_layouts_beyond_the_link_domain_count_no_further():
    assert Layout(tensor=64).effective_tensor == 8
    assert Layout(tensor=16).effective_tensor == 4
    assert Layout(tensor=16, link_domain=link_domain(find_gpu("gb200"))).effective_tensor == 16
    with pytest.raises(CapacityError, match="tensor_parallel_size is 0"):
        Layout(tensor=0)


def test_room_says_when_weights_do_not_fit():
    assert room(work_of("llama-3.1-70b"), Layout(), memory_gib=79.18).requests(100) == 0
    assert room(work_of("llama-3.1-70b"), Layout(tensor=4), memory_gib=79.18).requests(2048) > 100
