"""How far the memory bill is from public start-ups: per term and signed, cross-validated by source, and the H100 eight.

``python -m benchmarks.accuracy_memory`` prints the tables; ``main()`` returns them as markdown for docs/accuracy.md.
Left out: rows of tests/golden/startup_logs.csv with a reason in ``left_out`` (counted below).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from benchmarks.fit_memory import leave_one_source_out
from benchmarks.startup_rows import Row, bill, coefficients_set, h100_rows, outside_gib, startup_rows
from capacity.memory import MemoryBill
from capacity.plan import plan
from capacity.scenario import Scenario
from capacity.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One row's KV memory: printed, predicted, and whether the 80 % interval holds the printed figure."""

    row: Row
    found: MemoryBill
    observed_gib: float
    predicted_gib: float

    @property
    def error(self) -> float:
        return self.predicted_gib / self.observed_gib - 1

    @property
    def inside(self) -> bool:
        kv = self.found.kv_cache
        return kv.low_bytes <= self.observed_gib * GIB <= kv.high_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors as shares: median and 90th percentile of the size, mean signed, worst, and interval coverage."""

    rows: int
    median: float
    p90: float
    signed: float
    worst: float
    coverage: float


def outcome(row: Row, *, weights_stated: bool) -> Outcome:
    found = bill(row, weights_stated=weights_stated)
    return Outcome(
        row=row,
        found=found,
        observed_gib=float(row["kv_cache_gib"]),
        predicted_gib=found.kv_cache.bytes / GIB,
    )


def outcomes(rows: list[Row], *, weights_stated: bool) -> list[Outcome]:
    return [outcome(row, weights_stated=weights_stated) for row in rows]


def cross_validated(rows: list[Row]) -> list[Outcome]:
    """Every row predicted with coefficients fitted without its source."""
    results = []
    for group, fits in leave_one_source_out(rows).items():
        with coefficients_set({key: found.value for key, found in fits.items()}):
            results.extend(outcomes([row for row in rows if row["group"] == group], weights_stated=True))
    return results


def summary(results: list[Outcome]) -> Summary:
    sizes = [abs(result.error) for result in results]
    return Summary(
        rows=len(results),
        median=median(sizes),
        p90=float(np.percentile(sizes, 90)),
        signed=mean(result.error for result in results),
        worst=max(sizes),
        coverage=mean(result.inside for result in results),
    )


def one_per_start_up(results: list[Outcome]) -> list[Outcome]:
    """One result per model, format, card, release and arguments that matter: repeats of one start-up count once."""
    kept: dict[tuple[str, ...], Outcome] = {}
    for result in results:
        row = result.row
        key = tuple(
            row[name]
            for name in ("model", "gpu", "engine_version", "tp", "pp", "weights_gib", "kv_cache_gib")
        )
        kept.setdefault(key, result)
    return list(kept.values())


def h100_outcomes(*, weights_stated: bool, adds_up: bool) -> list[tuple[Row, float]]:
    """(row, predicted KV GiB); ``adds_up``: with the utilization that fits the row's own terms."""
    found = []
    for row in h100_rows():
        column = "gpu_memory_utilization_that_adds_up" if adds_up else "gpu_memory_utilization"
        raw: dict[str, object] = {
            "model": row["model"],
            "gpu": "h100-sxm",
            "gpu_memory_gib": 79.18,
            "engine_version": "0.11.0",
            "max_model_len": 16_000,
            "tensor_parallel_size": int(row["tensor_parallel_size"]),
            "gpu_memory_utilization": float(row[column]),
        }
        if row["weight_format"]:
            raw["weight_format"] = row["weight_format"]
        if weights_stated:
            raw["weights_gib"] = float(row["weights_gib"])
        answer = plan(Scenario.parse(raw)).bill
        assert answer is not None
        found.append((row, answer.kv_cache.bytes / GIB))
    return found


def _line(name: str, results: list[Outcome]) -> str:
    s = summary(results)
    return f"| {name} | {s.rows} | {s.median:.2%} | {s.p90:.1%} | {s.signed:+.2%} | {s.worst:.1%} | {s.coverage:.0%} |"


def _totals(rows: list[Row]) -> list[str]:
    stated, computed = outcomes(rows, weights_stated=True), outcomes(rows, weights_stated=False)
    held = cross_validated(rows)
    return [
        "| KV memory, GiB | rows | median error | p90 | mean signed | worst | in 80 % interval |",
        "|---|---|---|---|---|---|---|",
        _line("weights as the log prints them", stated),
        _line("the same, coefficients fitted without the row's source", held),
        _line("the same, each start-up once", one_per_start_up(held)),
        _line("weights computed from the config", computed),
        _line("computed, each start-up once", one_per_start_up(computed)),
    ]


def _terms(rows: list[Row]) -> list[str]:
    gaps: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        stated, computed = bill(row, weights_stated=True), bill(row, weights_stated=False)
        gaps["weights (computed)"].append(computed.terms[0].bytes / GIB - float(row["weights_gib"]))
        if row["activation_peak_gib"]:
            gaps["activation"].append(stated.terms[1].bytes / GIB - float(row["activation_peak_gib"]))
        if row["graph_estimate_gib"]:
            gaps["CUDA graphs, estimate"].append(
                stated.terms[2].bytes / GIB - float(row["graph_estimate_gib"])
            )
        name = "non-torch" if row["non_torch_gib"] else "non-torch (by subtraction)"
        gaps[name].append(stated.terms[3].bytes / GIB - outside_gib(row, stated))
    lines = [
        "| term | rows | mean signed, GiB | median size | p90 size | worst |",
        "|---|---|---|---|---|---|",
    ]
    for name in sorted(gaps):
        values = gaps[name]
        sizes = [abs(value) for value in values]
        lines.append(
            f"| {name} | {len(values)} | {mean(values):+.3f} | {median(sizes):.3f} | {np.percentile(sizes, 90):.2f} "
            f"| {max(values, key=abs):+.2f} |"
        )
    return lines


def _sources(rows: list[Row]) -> list[str]:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for result in cross_validated(rows):
        groups[result.row["group"]].append(result)
    lines = [
        "| source | rows | median error | mean signed | worst | in interval |",
        "|---|---|---|---|---|---|",
    ]
    for name, results in sorted(groups.items(), key=lambda item: -len(item[1])):
        s = summary(results)
        lines.append(
            f"| {name} | {s.rows} | {s.median:.2%} | {s.signed:+.2%} | {s.worst:.1%} | {s.coverage:.0%} |"
        )
    return lines


def _far(rows: list[Row]) -> list[str]:
    far = [result for result in outcomes(rows, weights_stated=True) if abs(result.error) > 0.03]
    lines = [
        "| row | release | model | card | printed KV | predicted | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in sorted(far, key=lambda r: -abs(r.error)):
        row = result.row
        card = f"{row['gpu'] or row['total_gib'] + ' GiB'} TP{row['tp']}"
        lines.append(
            f"| {row['id']} | {row['engine_version']} | {row['model']} | {card} | {result.observed_gib:.2f} "
            f"| {result.predicted_gib:.2f} | {result.error:+.1%} |"
        )
    return lines


def _h100() -> list[str]:
    lines = [
        "| model | TP | printed KV | weights stated | weights computed | computed, utilization that adds up |",
        "|---|---|---|---|---|---|",
    ]
    runs = (
        h100_outcomes(weights_stated=True, adds_up=True),
        h100_outcomes(weights_stated=False, adds_up=False),
        h100_outcomes(weights_stated=False, adds_up=True),
    )
    for stated, computed, adding in zip(*runs, strict=True):
        row = stated[0]
        observed = float(row["kv_cache_gib"])
        cells = " | ".join(
            f"{value:.2f} ({value / observed - 1:+.1%})" for _, value in (stated, computed, adding)
        )
        lines.append(f"| {row['model']} | {row['tensor_parallel_size']} | {observed:.2f} | {cells} |")
    return lines


def main() -> str:
    """All tables as markdown; printed as well."""
    rows, every = startup_rows(), startup_rows(all_rows=True)
    skipped = Counter(row["left_out"] for row in every if row["left_out"])
    parts = [
        f"{len(every)} public start-ups that print KV memory, {len(rows)} determined by their arguments; left out: "
        + ", ".join(f"{count} {why}" for why, count in skipped.most_common())
        + ".",
        "\n".join(_totals(rows)),
        "Terms, predicted less printed:",
        "\n".join(_terms(rows)),
        "By source, coefficients fitted without it:",
        "\n".join(_sources(rows)),
        "Rows more than 3 % off (weights as printed):",
        "\n".join(_far(rows)),
        "Eight H100 start-ups published by the llm-d planner (79.18 GiB, max_model_len 16,000, 0.11.0):",
        "\n".join(_h100()),
    ]
    text = "\n\n".join(parts)
    print(text)
    return text


if __name__ == "__main__":
    main()
