"""Public start-up rows as scenarios and bills: what the memory benchmarks share.

Source: tests/golden/startup_logs.csv (printed figures of public logs). Left out: rows whose ``left_out`` says why.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capacity.memory import MemoryBill
from capacity.memory import coefficients as table
from capacity.memory_terms import stage_bills
from capacity.resolve import Resolved, resolve
from capacity.scenario import Scenario
from capacity.units import GIB

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
Row = dict[str, str]
Key = tuple[str, str, str]
WHOLE = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")


def startup_rows(*, all_rows: bool = False) -> list[Row]:
    """The golden rows; without ``all_rows`` only those that the engine's arguments determine."""
    with (GOLDEN / "startup_logs.csv").open(encoding="utf-8", newline="") as lines:
        return [row for row in csv.DictReader(lines) if all_rows or not row["left_out"]]


def h100_rows() -> list[Row]:
    """The eight H100 start-ups published by the llm-d planner."""
    with (GOLDEN / "h100_startups.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def resolved(row: Row, *, weights_stated: bool) -> Resolved:
    """The row's arguments with every open key at the release's default."""
    raw: dict[str, object] = {
        "model": row["model"],
        "engine_version": row["engine_version"],
        "tensor_parallel_size": int(row["tp"]),
        "pipeline_parallel_size": int(row["pp"]),
        "data_parallel_size": int(row["dp"] or 1),
        "enforce_eager": row["enforce_eager"] == "true",
        "enable_expert_parallel": row["ep"] == "on",
    }
    raw.update({key: int(row[key]) for key in WHOLE if row[key]})
    for key, column in (
        ("gpu", "gpu"),
        ("usage", "usage"),
        ("weight_format", "weight_format"),
    ):
        if row[column]:
            raw[key] = row[column]
    if row["dtype"] == "float32":
        raw["dtype"] = "float32"
    if row["total_gib"]:
        raw["gpu_memory_gib"] = float(row["total_gib"])
    if row["gpu_memory_utilization"]:
        raw["gpu_memory_utilization"] = float(row["gpu_memory_utilization"])
    if weights_stated:
        raw["weights_gib"] = float(row["weights_gib"])
    return resolve(Scenario.parse(raw))


def bill(row: Row, *, weights_stated: bool) -> MemoryBill:
    """The bill of the rank that the row describes (logs of pipelines print rank 0)."""
    bills = stage_bills(resolved(row, weights_stated=weights_stated))
    assert bills is not None
    return bills.bills[0 if int(row["pp"]) > 1 else bills.tightest]


def outside_gib(row: Row, found: MemoryBill) -> float:
    """Non-torch memory as printed, or what the row's figures leave for it."""
    if row["non_torch_gib"]:
        return float(row["non_torch_gib"])
    peak = float(row["activation_peak_gib"]) if row["activation_peak_gib"] else found.terms[1].bytes / GIB
    graphs = float(row["graph_estimate_gib"] or found.terms[2].bytes / GIB) if found.graphs_in_budget else 0.0
    return found.budget_bytes / GIB - float(row["weights_gib"]) - float(row["kv_cache_gib"]) - peak - graphs


@contextmanager
def coefficients_set(values: dict[Key, float]) -> Iterator[None]:
    """Run with other values for some coefficients (name, first release, condition); intervals keep their width."""
    original = table.read_table

    def changed(name: str) -> list[dict[str, str]]:
        rows = [dict(row) for row in original(name)]
        for row in rows:
            value = values.get((row["name"], row["first_release"], row["when"]))
            if value is not None:
                shift = value - float(row["value"])
                row["value"], row["low"], row["high"] = (
                    str(value),
                    str(float(row["low"]) + shift),
                    str(float(row["high"]) + shift),
                )
        return rows

    table.coefficients.cache_clear()
    table.coefficient.cache_clear()
    table.read_table = changed
    try:
        yield
    finally:
        table.read_table = original
        table.coefficients.cache_clear()
        table.coefficient.cache_clear()
