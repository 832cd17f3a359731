"""Public start-ups that print KV memory and a block or token count, as scenarios: the exact half of the plan.

Source: tests/golden/startup_pools.csv. Left out: rows whose ``left_out`` says why.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from capacity.errors import CapacityError
from capacity.plan import Plan, plan
from capacity.scenario import Scenario

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "startup_pools.csv"
WHOLE = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "decode_context_parallel_size",
    "num_speculative_tokens",
)
TEXT = ("model", "engine_version", "gpu", "dtype", "kv_cache_dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One figure of one row: printed, planned, and the share that the printed memory's rounding leaves open."""

    row: str
    model: str
    figure: str
    printed: float
    planned: float
    rounding: float

    @property
    def error(self) -> float:
        return self.planned / self.printed - 1

    @property
    def right(self) -> bool:
        return abs(self.error) <= self.rounding


def pool_rows() -> list[dict[str, str]]:
    """Every row, also those left out."""
    with GOLDEN.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def planned(row: dict[str, str]) -> Plan:
    """The plan of one row from its printed KV memory. A length above the catalogue's limit is dropped with the figures
    that depend on it; a card that is not in the table is left open."""
    raw: dict[str, object] = {"kv_cache_gib": float(row["kv_cache_gib"])}
    raw.update({key: row[key] for key in TEXT if row[key]})
    raw.update({key: int(float(row[key])) for key in WHOLE if row[key]})
    for _ in range(3):
        try:
            return plan(Scenario.parse(raw))
        except CapacityError as error:
            if error.field not in ("max_model_len", "gpu", "gpu_memory_gib") or error.field not in {
                *raw,
                "gpu_memory_gib",
            }:
                raise
            raw.pop("gpu" if error.field == "gpu_memory_gib" else error.field)
    raise AssertionError(f"{row['id']} cannot be planned")


def check(row: dict[str, str]) -> list[Checked]:
    """Blocks, tokens and concurrency of one row against the plan."""
    found = planned(row)
    assert found.pool is not None
    memory = float(row["kv_cache_gib"])
    rounding = 0.0055 / memory + 2 * found.pool.bytes_per_block / (memory * 2**30)
    figures = [("blocks", row["num_gpu_blocks"], float(found.pool.num_blocks), rounding)]
    same_length = row["max_model_len"] == str(found.resolved.max_model_len)
    if same_length or found.grouping.uniform:
        figures.append(("tokens", row["tokens"], float(found.pool.tokens_logged), rounding))
    if same_length and row["concurrency"]:
        printed = 0.006 / float(row["concurrency"])
        figures.append(("concurrency", row["concurrency"], found.pool.max_concurrency, rounding + printed))
    return [
        Checked(
            row=row["id"], model=row["model"], figure=name, printed=float(text), planned=value, rounding=room
        )
        for name, text, value, room in figures
        if text
    ]
