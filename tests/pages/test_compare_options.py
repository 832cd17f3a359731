"""The Options tab: every format, cache, layout and split with its figure or its reason, and the words about quality."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from capacity.estimate import estimate
from capacity.performance.deployment import planned
from capacity.scenario import Scenario
from capacity.speed_options import (
    OFFLOADS,
    QUALITY,
    disaggregated_splits,
    format_variants,
    layout_variants,
    option_variants,
    prefix_note,
)
from capacity.units import GIB
from pages.ui.compare_option_rows import (
    best,
    extrapolations,
    format_name,
    format_rows,
    layout_name,
    layout_rows,
    split_rows,
    variant_csv,
)
from pages.ui.compare_state import EXAMPLE
from pages.ui.format import table_csv
from pages.ui.link import pack

ROOT = Path(__file__).parents[2]
BASE = Scenario.parse({**EXAMPLE, "shared_prefix_tokens": 1024})


def page(**link: str) -> AppTest:
    found = AppTest.from_file(str(ROOT / "pages" / "compare.py"), default_timeout=30)
    packed = pack(json.dumps([{**EXAMPLE, "shared_prefix_tokens": 1024}]))
    assert packed is not None
    for key, value in {"cmp_set": packed, "cmp_tab": "Options", **link}.items():
        found.query_params[key] = value
    return found.run()


def test_every_format_cache_prefix_and_offload_is_there() -> None:
    rows = option_variants(BASE, concurrency=32)
    seen = {
        (
            r.changes["weight_format"],
            r.changes["kv_cache_dtype"],
            r.changes["enable_prefix_caching"],
            r.changes.get("kv_offloading_size_gib"),
            r.changes.get("cpu_offload_gib"),
        )
        for r in rows
    }
    assert len(seen) == len(rows) == 6 * 2 * 2 * 3  # mxfp4 would quantise nothing of a dense model
    for row in rows:
        assert (row.forecast is None) == (row.reason is not None)
        assert row.quality or row.reason


def test_figures_are_those_of_the_changed_scenario() -> None:
    for row in format_variants(BASE, concurrency=16, prefix=True, offload=OFFLOADS[2]):
        changed = Scenario.parse({**BASE.to_json(), **row.changes})
        assert row.forecast is not None
        assert row.forecast.tpot_s.value[0] == estimate(changed, 16.0).forecast.tpot_s.value[0]
        assert row.kv_concurrency == planned(changed).kv_requests


def test_weights_in_host_memory_cross_pcie_in_every_step() -> None:
    """8 GiB over the 64 GB/s of H100's PCIe: 134.2 ms on top of each step, and out of the GPU's weights."""
    plain = format_variants(BASE, concurrency=16, weights=("fp8",), caches=("auto",))[0]
    kept = format_variants(BASE, concurrency=16, weights=("fp8",), caches=("auto",), offload=OFFLOADS[2])[0]
    assert plain.forecast is not None and kept.forecast is not None
    more = kept.forecast.tpot_s.value[0] - plain.forecast.tpot_s.value[0]
    assert more == pytest.approx(8 * GIB / 64e9, rel=1e-6)
    assert plain.weights_gib is not None and kept.weights_gib == pytest.approx(plain.weights_gib - 8)
    assert any("host memory" in reason for reason in kept.forecast.reasons)
    assert kept.kv_concurrency > plain.kv_concurrency
    assert kept.forecast.parts["host_memory"][0] == pytest.approx(8 * GIB / 64e9, rel=1e-6)


def test_a_tier_of_kv_blocks_says_what_it_holds_and_costs() -> None:
    """Qwen3-32B: 64 layers x 8 heads x 128 x 2 x 2 bytes = 256 KiB a token; 2,048 tokens are 0.5 GiB, 8.4 ms over PCIe."""
    row = format_variants(BASE, concurrency=16, weights=("fp8",), caches=("auto",), offload=OFFLOADS[1])[0]
    assert "64 GiB of host memory hold 128 more prompts of 2,048 tokens" in row.note
    assert "at least 8.4 ms" in row.note


def test_prefix_notes() -> None:
    none = Scenario.parse(EXAMPLE)
    assert "saves nothing" in prefix_note(none, True)
    assert "first 1,024 tokens" in prefix_note(BASE, None)
    assert "whole prompt" in prefix_note(BASE, False)


def test_rows_on_screen_and_in_the_file() -> None:
    small = Scenario.parse({**BASE.to_json(), "gpu": "l4"})
    rows = format_variants(small, concurrency=32)
    shown = format_rows(rows)
    assert [row["Option"] for row in shown[:2]] == ["bf16 weights", "bf16 weights, fp8 KV"]
    assert "oes not fit" in shown[0]["Quality"] and shown[0]["TPOT"] == "–"
    lines = list(csv.DictReader(io.StringIO(table_csv(variant_csv(rows)))))
    assert lines[0]["tpot_s"] == "" and "does not fit" in lines[0]["reason"]
    assert len(lines) == len(rows)
    assert best(rows[:1], format_name) == "None of these can run"
    layouts = layout_rows(layout_variants(BASE, gpus=4, concurrency=32))
    assert {row["Layout"] for row in layouts} == {"DP4", "PP2 x DP2", "PP4", "TP2 x DP2", "TP2 x PP2", "TP4"}
    assert "Why not" not in layouts[0]
    reasons = extrapolations(layout_variants(BASE, gpus=4, concurrency=32), layout_name)
    assert reasons[1].startswith("PP2 x DP2; PP4; TP2 x PP2: pipeline parallel: no measured point")
    assert reasons[0].startswith("Release 0.32.0 was not measured here")


def test_splits_are_the_replicas_in_every_way_best_first() -> None:
    fast = Scenario.parse({**BASE.to_json(), "weight_format": "fp8"})
    rows = disaggregated_splits(fast, replicas=4, concurrency=32)
    assert {(r.prefill_replicas, r.decode_replicas) for r in rows} == {(1, 3), (2, 2), (3, 1)}
    rates = [r.requests_per_s for r in rows]
    assert rates == sorted(rates, reverse=True)
    assert split_rows(rows)[0]["GPUs"] == "4"


def test_the_tab_holds_three_tables_with_the_caveats_and_their_sources() -> None:
    found = page()
    assert not found.exception and not found.error
    assert len(found.table) == 4
    said = " ".join(str(one.value) for one in found.caption).replace("\\", "")
    for kind in ("16 bit", "8 bit", "4 bit", "fp8 cache"):
        assert f"Quality, {kind}: {QUALITY[kind]}." in said
    assert "arXiv 2411.02355" in said and "Extrapolated" in said and ".." not in said
    titles = " ".join(str(one.value) for one in found.markdown).replace("\\", "")
    assert (
        "Formats: fp8 weights, fp8 KV is best" in titles
        and "Layouts of 2 GPUs: " in titles
        and "apart: 1 + 3 replicas" in titles
    )


def test_bad_numbers_are_sentences_and_the_rest_stays() -> None:
    found = page(cmp_gpus="0", cmp_replicas="x")
    assert not found.exception
    said = " ".join(str(one.value) for one in found.info).replace("\\", "")
    assert "GPUs is '0'; expected a number, 1 to 64" in said
    assert "eplicas is 'x'; expected a number, 2 to 64" in said
    assert len(found.table) == 2
