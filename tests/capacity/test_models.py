"""The model catalogue: every row against its published count and its facts."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from capacity.catalog import find_model_id, model_config, model_ids, model_spec, published_count
from capacity.catalog.table import read_table
from capacity.errors import CapacityError
from capacity.hf_config import parse_config_text
from capacity.model import Attention, LatentAttention, ModelSpec, RecurrentState
from capacity.parameters import ParameterCount, count_parameters

GOLDEN = Path(__file__).parents[1] / "golden" / "model_parameters.csv"
ROWS = list(csv.DictReader(GOLDEN.open(encoding="utf-8")))


def counted(count: ParameterCount, basis: str) -> int:
    """The count with what the published figure includes."""
    extra = {
        "main": 0,
        "main+mtp": count.mtp + count.mtp_embeddings,
        "main+mtp(shared embeddings)": count.mtp,
        "main+stored lm_head copy": count.embedding,
    }
    return count.total + extra[basis]


def kv_bytes_per_token(spec: ModelSpec) -> int:
    """16-bit bytes of one token that lies inside every window."""
    total = 0
    for mixer in spec.mixers():
        if isinstance(mixer, Attention) and not mixer.shares_kv:
            total += 2 * mixer.num_kv_heads * (mixer.head_dim + mixer.v_head_dim)
        elif isinstance(mixer, LatentAttention):
            total += 2 * (mixer.kv_lora_rank + mixer.qk_rope_head_dim)
    return total


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["model_id"])
def test_row_counts_to_its_published_figure(row: dict[str, str]) -> None:
    spec = model_spec(row["model_id"])
    mine = counted(count_parameters(spec), row["basis"])
    assert mine == pytest.approx(int(row["published"]), rel=0.02)
    assert spec.published_parameters == int(row["published"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["model_id"])
def test_row_has_its_layers_and_cache_widths(row: dict[str, str]) -> None:
    spec = model_spec(row["model_id"])
    mixers = list(spec.mixers())
    windows = [m for m in mixers if isinstance(m, Attention) and m.kind != "full"]
    states = [m for m in mixers if isinstance(m, RecurrentState)]
    assert len(windows) == int(row["sliding_layers"])
    assert len(states) == int(row["state_layers"])
    assert len(mixers) - len(windows) - len(states) == int(row["full_layers"])
    if spec.kv_layout_known and row["kv_bytes_per_token_16bit"]:
        assert kv_bytes_per_token(spec) == int(row["kv_bytes_per_token_16bit"])


def test_most_rows_are_exact() -> None:
    exact = sum(
        counted(count_parameters(model_spec(r["model_id"])), r["basis"]) == int(r["published"]) for r in ROWS
    )
    assert exact >= 120


def test_every_row_of_the_table_is_in_the_golden_table() -> None:
    assert set(model_ids()) == {row["model_id"] for row in ROWS}
    assert len(model_ids()) == 142


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"),
        ("gpt-oss-120b", "openai/gpt-oss-120b"),
        ("OPENAI/GPT-OSS-120B", "openai/gpt-oss-120b"),
        ("Qwen/qwen3-32b", "Qwen/Qwen3-32B"),
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
        ("gemma-3-27b", "google/gemma-3-27b-it"),
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("llama 3.3 70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("Llama_3.3_70B_Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("qwen 3 32b", "Qwen/Qwen3-32B"),
        (" gpt  oss 120b ", "openai/gpt-oss-120b"),
        ("deepseek v3", "deepseek-ai/DeepSeek-V3"),
    ],
)
def test_short_and_other_case_names(name: str, model_id: str) -> None:
    assert find_model_id(name) == model_id


@pytest.mark.parametrize(
    ("part", "held"),
    [
        ("llama 3.3", ["meta-llama/Llama-3.3-70B-Instruct", "nvidia/Llama-3_3-Nemotron-Super-49B-v1"]),
        ("phi_3.5", ["microsoft/Phi-3.5-MoE-instruct", "microsoft/Phi-3.5-mini-instruct"]),
        ("gpt oss", ["openai/gpt-oss-20b", "openai/gpt-oss-120b"]),
    ],
)
def test_part_of_a_name_is_answered_with_the_ids_that_hold_it(part: str, held: list[str]) -> None:
    with pytest.raises(CapacityError) as caught:
        find_model_id(part)
    said = str(caught.value)
    assert said == f"model {part!r} is not in the catalogue; close: {', '.join(held)}, or give a config.json"


@pytest.mark.parametrize("row", read_table("model_aliases"), ids=lambda row: row["alias"])
def test_an_alias_keeps_its_own_length_however_it_is_looked_up(row: dict[str, str]) -> None:
    found = model_spec(f"organisation/{row['alias']}")
    assert found.max_position_embeddings == (
        int(row["max_position_embeddings"] or 0) or model_spec(row["model_id"]).max_position_embeddings
    )


def test_unknown_name_lists_close_ones() -> None:
    with pytest.raises(CapacityError, match=r"Llama-3.1-8B-Instruct") as caught:
        model_spec("llama-3.1-9b")
    assert caught.value.field == "model"
    assert "\n" not in str(caught.value)


def test_compressed_sparse_cache_is_marked_as_unknown() -> None:
    spec = model_spec("deepseek-v4-flash")
    assert not spec.kv_layout_known
    assert "compress" in str(spec.kv_layout_reason)
    assert model_spec("deepseek-v3").kv_layout_known


def test_published_figure_names_its_source() -> None:
    figure = published_count("qwen3-0.6b")
    assert figure.parameters == 751_632_384
    assert figure.basis == "main+stored lm_head copy"
    assert figure.source


@pytest.mark.parametrize(
    "name", ["gpt-oss-20b", "deepseek-v3", "qwen3.5-9b", "gemma-4-26b-a4b", "ai21-jamba-mini-1.5"]
)
def test_config_of_a_row_reads_back_to_the_same_layers(name: str) -> None:
    assert parse_config_text(json.dumps(model_config(name))).layers == model_spec(name).layers


def test_active_parameters() -> None:
    assert count_parameters(model_spec("qwen3-30b-a3b")).active == 3_353_032_704
    assert count_parameters(model_spec("deepseek-v3")).active == 37_552_297_472
