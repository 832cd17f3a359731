"""Fits the memory coefficients on public start-ups and says how far they move when a source is left out.

``python -m benchmarks.fit_memory`` prints catalog value, fit, range over the fits without one source, rows, residual.
Left out: coefficients read from the engine's code alone (sampler scratch, cuBLAS workspace).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from benchmarks.startup_rows import Key, Row, bill, outside_gib, resolved, startup_rows
from capacity.engine import parse_version
from capacity.memory import MemoryBill
from capacity.memory.coefficients import coefficient, coefficients
from capacity.memory.graphs import REFERENCE_GRAPHS, cuda_graphs
from capacity.memory.nontorch import conditions
from capacity.units import GIB

COUNTED_IN_CODE = ("sampler_bytes_per_logit",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted coefficient: its value, the rows behind it, and their residual (root mean square, same unit or GiB)."""

    value: float
    rows: int
    residual: float


def fit(rows: list[Row]) -> dict[Key, Fit]:
    """Coefficients from ``rows``: sampler bytes, forward factor, graphs, and non-torch memory by bucket."""
    bills = [(row, bill(row, weights_stated=True)) for row in rows]
    return {**_peaks(bills), **_graphs(bills), **_outside(bills)}


def _peaks(bills: list[tuple[Row, MemoryBill]]) -> dict[Key, Fit]:
    samplers: dict[Key, list[tuple[float, float]]] = defaultdict(list)
    forwards: list[tuple[float, float]] = []
    for row, found in bills:
        peak = found.activation
        if not row["activation_peak_gib"] or int(row["pp"]) > 1 or row["dtype"] == "float32":
            continue
        rest = float(row["activation_peak_gib"]) * GIB - peak.bytes
        r = resolved(row, weights_stated=True)
        if peak.set_by == "sampler" and peak.sampler in ("sort", "kernel"):
            key = ("sampler_bytes_per_logit", *_row_of("sampler_bytes_per_logit", row, found.runner.name))
            logits = min(r.max_num_seqs, r.max_num_batched_tokens) * r.spec.vocab_size
            samplers[key].append((coefficient(key[0], parse_version(key[1]), key[2]).value, rest / logits))
        elif peak.set_by == "forward pass" and peak.encoder_bytes == 0:
            tokens = r.max_num_batched_tokens * r.spec.hidden_size * 2
            forwards.append((coefficient("forward_hidden_factor", (0, 6, 0), "any").value, rest / tokens))
    fits = {key: _middle(values) for key, values in samplers.items()}
    if forwards:
        fits[("forward_hidden_factor", "0.6.0", "any")] = _middle(forwards)
    return fits


def _middle(values: list[tuple[float, float]]) -> Fit:
    """The median of table value plus residual over rows."""
    found = np.array([base + rest for base, rest in values])
    middle = float(np.median(found))
    return Fit(value=middle, rows=len(values), residual=float(np.sqrt(np.mean((found - middle) ** 2))))


def _row_of(name: str, row: Row, *names: str) -> tuple[str, str]:
    used = coefficient(name, parse_version(row["engine_version"]), *names)
    return ".".join(map(str, used.first_release)), used.when


def _graphs(bills: list[tuple[Row, MemoryBill]]) -> dict[Key, Fit]:
    scales: list[float] = []
    seen: list[float] = []
    old: list[tuple[float, float]] = []
    for row, _ in bills:
        if not row["graph_estimate_gib"]:
            continue
        r = resolved(row, weights_stated=True)
        counted = cuda_graphs(
            gpu=r.gpu,
            version=r.release.version,
            num_layers=len(r.spec.layers) // r.parallel.pipeline,
            max_num_seqs=r.max_num_seqs,
            max_num_batched_tokens=r.max_num_batched_tokens,
            num_speculative_tokens=0,
        )
        scale = len(r.spec.layers) // r.parallel.pipeline * counted.count / REFERENCE_GRAPHS
        if r.gpu is not None and r.gpu.compute_capability.startswith(("7", "8")):
            old.append((scale, float(row["graph_estimate_gib"])))
        else:
            scales.append(scale)
            seen.append(float(row["graph_estimate_gib"]))
    fits: dict[Key, Fit] = {}
    if len(seen) >= 6:
        design = np.column_stack([np.ones(len(scales)), scales])
        solved, *_ = np.linalg.lstsq(design, np.array(seen), rcond=None)
        residual = float(np.sqrt(np.mean((design @ solved - np.array(seen)) ** 2)))
        fits[("graph_base_gib", "0.6.0", "any")] = Fit(
            value=float(solved[0]), rows=len(seen), residual=residual
        )
        fits[("graph_gib_per_layer", "0.6.0", "cc9")] = Fit(
            value=float(solved[1]), rows=len(seen), residual=residual
        )
        if old:
            slopes = np.array([(value - solved[0]) / scale for scale, value in old])
            fits[("graph_gib_per_layer", "0.6.0", "cc8")] = Fit(
                value=float(np.median(slopes)), rows=len(old), residual=float(np.std(slopes))
            )
    return fits


def _outside(bills: list[tuple[Row, MemoryBill]]) -> dict[Key, Fit]:
    buckets: dict[Key, list[float]] = defaultdict(list)
    for row, found in bills:
        r = resolved(row, weights_stated=True)
        total = (r.total_bytes or 0) / GIB
        names = conditions(r.gpu, total, r.parallel.tensor, r.parallel.pipeline)
        key = ("non_torch_gib", *_row_of("non_torch_gib", row, *names))
        buckets[key].append(outside_gib(row, found))
    fits = {}
    for key, values in buckets.items():
        middle = float(np.median(values))
        residual = float(np.sqrt(np.mean((np.array(values) - middle) ** 2)))
        fits[key] = Fit(value=middle, rows=len(values), residual=residual)
    return fits


def leave_one_source_out(rows: list[Row]) -> dict[str, dict[Key, Fit]]:
    """Source to the coefficients fitted without its rows; buckets left empty take their elders' or their class's.

    The sampler's bytes per logit are counted in the engine's code, so they are checked, not refitted.
    """
    found = {}
    for group in sorted({row["group"] for row in rows}):
        fits = {
            key: value
            for key, value in fit([row for row in rows if row["group"] != group]).items()
            if key[0] not in COUNTED_IN_CODE
        }
        found[group] = fits | _empty_buckets(fits)
    return found


def _empty_buckets(fits: dict[Key, Fit]) -> dict[Key, Fit]:
    """Non-torch buckets without a row: the newest older release's value, else the median of the TP class."""
    filled = {}
    for row in coefficients():
        key = (row.name, ".".join(map(str, row.first_release)), row.when)
        if row.name != "non_torch_gib" or key in fits:
            continue
        elders = [
            k
            for k in fits
            if k[0] == row.name and k[2] == row.when and parse_version(k[1]) < row.first_release
        ]
        if elders:
            value = fits[max(elders, key=lambda k: parse_version(k[1]))].value
        else:
            single = row.when.endswith("tp1") or row.when.endswith("pp")
            peers = [f.value for k, f in fits.items() if k[0] == row.name and k[2].endswith("tp1") == single]
            value = float(np.median(peers))
        filled[key] = Fit(value=value, rows=0, residual=0.0)
    return filled


def main() -> str:
    """The table of coefficients as markdown; printed as well."""
    rows = startup_rows()
    whole, partial = fit(rows), leave_one_source_out(rows)
    lines = [
        "| coefficient | since | for | catalog | fit | without one source | rows | residual |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key in sorted(whole):
        used = coefficient(key[0], parse_version(key[1]), key[2])
        others = [fits[key].value for fits in partial.values() if key in fits]
        span = f"{min(others):.4g} to {max(others):.4g}" if others else "-"
        found = whole[key]
        lines.append(
            f"| {key[0]} | {key[1]} | {key[2]} | {used.value:.4g} | {found.value:.4g} | {span} | {found.rows} "
            f"| {found.residual:.3g} |"
        )
    text = "\n".join(lines)
    print(text)
    return text


if __name__ == "__main__":
    main()
