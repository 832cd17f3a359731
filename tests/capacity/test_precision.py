"""Formats and their spellings."""

from __future__ import annotations

import pytest

from capacity.catalog import model_spec
from capacity.errors import CapacityError
from capacity.precision import kv_formats, resolve_kv_format, resolve_weight_format, weight_formats


@pytest.mark.parametrize(
    ("spelling", "format_id"),
    [
        (None, "bf16"), ("auto", "bf16"), ("bf16", "bf16"), ("FP16", "bf16"), ("bfloat16", "bf16"),
        ("float32", "fp32"), ("fp8", "fp8-tensor"), ("FP8_DYNAMIC", "fp8-channel"), ("fp8-block128",
        "fp8-block128"),
        ("awq", "awq-int4-g128"), ("gptq", "gptq-int4-g128"), ("gptq-int4", "gptq-int4-g128"),
        ("int4_awq", "awq-int4-g128"), ("nvfp4-awq", "nvfp4"), ("fp8e4m3", "fp8-tensor"), ("16-bit", "bf16"),
        ("int4", "gptq-int4-g128"), ("w4a16", "ct-int4-g128-sym"), ("w8a8", "int8-w8a8"), ("int8",
        "int8-w8a8"),
        ("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"), ("bitsandbytes", "bnb-nf4"), ("Q4_K_M", "gguf-q4_k_m"),
        ("awq-int4-g64", "awq-int4-g64"),
    ],
)  # fmt: skip
def test_weight_spellings(spelling: str | None, format_id: str) -> None:
    assert resolve_weight_format(spelling).id == format_id


def test_the_checkpoint_decides_what_a_loose_name_means() -> None:
    deepseek = model_spec("deepseek-v3")
    assert resolve_weight_format("fp8", deepseek).id == "fp8-block128"
    assert resolve_weight_format("auto", deepseek).id == "fp8-block128"
    assert resolve_weight_format("bf16", deepseek).id == "bf16"
    assert resolve_weight_format("int4", model_spec("kimi-k2.5")).id == "ct-int4-g32-sym"


def test_unknown_format_lists_close_ones() -> None:
    with pytest.raises(CapacityError, match=r"close: .*fp8") as caught:
        resolve_weight_format("fp9")
    assert caught.value.field == "weight_format"


@pytest.mark.parametrize(
    ("spelling", "element_bytes"),
    [(None, 2), ("auto", 2), ("fp8", 1), ("fp8_e5m2", 1), ("bfloat16", 2), ("nvfp4", 0.5625)],
)
def test_kv_spellings(spelling: str | None, element_bytes: float) -> None:
    assert resolve_kv_format(spelling).element_bytes == element_bytes


def test_latent_record_sizes() -> None:
    assert resolve_kv_format("fp8_ds_mla").record_bytes == 656
    assert kv_formats()["kv-dsa-indexer"].record_bytes == 132
    with pytest.raises(CapacityError, match="kv_cache_dtype"):
        resolve_kv_format("fp7")


def test_every_format_has_bytes_and_a_source() -> None:
    assert len(weight_formats()) >= 33
    for fmt in weight_formats().values():
        assert 0.3 < fmt.bytes_per_weight <= 4
        assert fmt.source
        assert fmt.whole_model == fmt.id.startswith("gguf")


def test_no_spelling_means_two_formats() -> None:
    seen: dict[str, str] = {}
    for fmt in weight_formats().values():
        for alias in fmt.aliases:
            assert seen.setdefault(alias, fmt.id) == fmt.id
