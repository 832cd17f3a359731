"""How far real engines stay from the physical terms: shipped coefficients and the chain of corrections on top.

Source: catalog/performance_terms.csv and performance_coefficients.csv, written by benchmarks/fit_performance.py from public
operating points. Left out: anything fitted at run time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from capacity.catalog.table import read_table
from capacity.hardware import Gpu
from capacity.performance.terms import FIRST_TERMS, STEP_TERMS
from capacity.performance.work import StepWork

Array = NDArray[np.float64]

CLASSES = ("all", "memory", "load", "fixed", "queue")
# From the widest to the narrowest; each corrects what the ones before it leave.
LEVELS: dict[str, tuple[str, ...]] = {
    "engine": ("engine",),
    "model": ("engine", "shape", "precision"),
    "gpu": ("engine", "shape", "precision", "gpu"),
    "release": ("engine", "shape", "precision", "gpu", "release"),
}
QUANTITIES = {"step": STEP_TERMS, "first_token": FIRST_TERMS}
# Cards of one die share coefficients: what differs is their memory, which the terms count.
SAME_DIE = {"h20": "h20-141"}
# What a prediction rests on, from best to worst.
KNOWLEDGE = ("measured", "model", "gpu", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """One row: log offsets by class of term, the rows it rests on and the 80 % half-range of log error."""

    offsets: tuple[float, ...]
    rows: int
    spread: float
    last_date: str = ""
    largest_concurrency: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What applies to one deployment: a factor per term, the spread, and what was never measured."""

    factors: Array
    spread: float
    knowledge: str
    rows: int
    last_date: str
    largest_concurrency: float
    reasons: tuple[str, ...]


def model_shape(work: StepWork) -> str:
    """Models of one shape share coefficients, whatever their name (DeepSeek-V3 and R1, Llama-3 and 3.1).

    >>> from capacity.catalog import model_spec
    >>> from capacity.performance.work import step_work
    >>> from capacity.precision import resolve_kv_format, resolve_weight_format
    >>> spec = model_spec("deepseek-ai/DeepSeek-R1")
    >>> model_shape(step_work(spec, resolve_weight_format("fp8", spec), resolve_kv_format("auto")))
    '61x7168e256'
    """
    return f"{work.layers}x{work.hidden}" + (f"e{work.num_experts}" if work.is_moe else "")


def release_key(text: str | None) -> str:
    """The part of a release under which coefficients are kept: 0.19.0, 1.2.0rc6.post3; "" when unknown.

    >>> release_key("0.20.1+transformers-5.8.1"), release_key("1.2.0rc6.post3"), release_key("nightly-dev"), release_key(None)
    ('0.20.1', '1.2.0rc6.post3', '', '')
    """
    match = re.match(r"v?(\d+\.\d+(?:\.\d+)?(?:rc\d+)?(?:\.post\d+)?)", (text or "").strip())
    return match[1] if match else ""


class Coefficients:
    """Terms and corrections of both quantities ("step", "first_token"). ``kept`` is a cache that predict.py fills."""

    def __init__(
        self,
        terms: Mapping[str, Mapping[str, float]],
        corrections: Mapping[tuple[str, str, tuple[str, ...]], Correction],
        spreads: Mapping[tuple[str, str], float],
    ) -> None:
        self.base = {q: np.array([terms[q][t] for t in QUANTITIES[q]]) for q in terms}
        self.corrections = dict(corrections)
        self.spreads = dict(spreads)
        self._chains: dict[tuple[str, ...], Chain] = {}
        self.kept: dict[object, object] = {}
        self._known: dict[tuple[str, ...], tuple[tuple[str, int], ...]] = {}
        for (quantity, level, key), correction in corrections.items():
            if level == "gpu":
                place = (quantity, *key[:3])
                self._known[place] = (*self._known.get(place, ()), (key[3], correction.rows))

    def known_gpus(
        self, quantity: str, engine: str, shape: str, precision: str
    ) -> tuple[tuple[str, int], ...]:
        """(GPU, rows) with corrections of their own for this engine, model and precision."""
        return self._known.get((quantity, engine, shape, precision), ())

    def chain(
        self, quantity: str, *, engine: str, shape: str, precision: str, gpu: Gpu, release: str
    ) -> Chain:
        """The corrections that apply, narrowest last."""
        key = (quantity, engine, shape, precision, gpu.id, gpu.arch, release)
        found = self._chains.get(key)
        if found is None:
            found = self._chain(quantity, engine, shape, precision, gpu, release)
            if len(self._chains) > 20_000:
                self._chains.clear()
            self._chains[key] = found
        return found

    def _chain(self, quantity: str, engine: str, shape: str, precision: str, gpu: Gpu, release: str) -> Chain:
        facts = {
            "engine": engine,
            "shape": shape,
            "precision": precision,
            "gpu": SAME_DIE.get(gpu.id, gpu.id),
            "release": release,
        }
        offsets = np.zeros(len(CLASSES))
        hit: dict[str, Correction] = {}
        for level, names in LEVELS.items():
            correction = self.corrections.get((quantity, level, tuple(facts[n] for n in names)))
            if correction is not None and not (level == "release" and not release):
                offsets += correction.offsets
                hit[level] = correction
        classes = list(QUANTITIES[quantity].values())
        spread_out = np.array([offsets[0] + offsets[CLASSES.index(c)] for c in classes])
        knowledge = (
            "measured"
            if "gpu" in hit
            else "model"
            if "model" in hit
            else ("gpu" if self._gpu_seen(quantity, engine, gpu) else "engine")
        )
        deepest = hit.get("gpu") or hit.get("model") or hit.get("engine")
        pooled = self.spreads.get((quantity, knowledge), 0.5)
        spread = hit["gpu"].spread if "gpu" in hit else pooled
        reasons = []
        if "gpu" not in hit:
            what = {
                "model": f"{gpu.name} with this model and precision; the model was on other GPUs",
                "gpu": "this model and precision on this engine; the GPU was with others",
                "engine": "this model or GPU on this engine",
            }[knowledge]
            reasons.append(f"never measured: {what}")
        elif release and "release" not in hit:
            reasons.append(
                f"release {release} was not measured here; the coefficients "
                + (f"end {deepest.last_date}" if deepest.last_date else "are of runs without a date")
                if deepest
                else ""
            )
        return Chain(
            factors=self.base[quantity] * np.exp(spread_out),
            spread=spread,
            knowledge=knowledge,
            rows=deepest.rows if deepest else 0,
            last_date=deepest.last_date if deepest else "",
            largest_concurrency=deepest.largest_concurrency if deepest else 0.0,
            reasons=tuple(reasons),
        )

    def load_scale(self, quantity: str, running: Array) -> Array:
        """``load_factor`` of the quantity over an array of running requests."""
        exponent = self.spreads.get((quantity, "load_exponent"), 0.0)
        return np.clip((np.maximum(running, 1.0) / 16.0) ** exponent, 0.5, 3.0)

    def _gpu_seen(self, quantity: str, engine: str, gpu: Gpu) -> bool:
        return any(gpu.id in dict(ids) and key[:2] == (quantity, engine) for key, ids in self._known.items())


def load_factor(concurrency: float, exponent: float) -> float:
    """How much wider the half-range is than at 16 running requests.

    >>> load_factor(16, 0.2), round(load_factor(256, 0.2), 2)
    (1.0, 1.74)
    """
    return float(min(max((max(concurrency, 1.0) / 16.0) ** exponent, 0.5), 3.0))


@lru_cache(maxsize=1)
def coefficients() -> Coefficients:
    """The shipped coefficients."""
    return from_rows(read_table("performance_terms"), read_table("performance_coefficients"))


def from_rows(terms: Iterable[Mapping[str, str]], rows: Iterable[Mapping[str, str]]) -> Coefficients:
    """Coefficients from table rows."""
    base: dict[str, dict[str, float]] = {}
    for row in terms:
        base.setdefault(row["quantity"], {})[row["term"]] = float(row["coefficient"])
    corrections: dict[tuple[str, str, tuple[str, ...]], Correction] = {}
    spreads: dict[tuple[str, str], float] = {}
    for row in rows:
        if row["level"] == "spread":
            spreads[row["quantity"], row["key"]] = float(row["spread"])
            continue
        corrections[row["quantity"], row["level"], tuple(row["key"].split("|"))] = Correction(
            offsets=tuple(float(row[name] or 0) for name in CLASSES),
            rows=int(row["rows"]),
            spread=float(row["spread"] or 0),
            last_date=row["last_date"],
            largest_concurrency=float(row["largest_concurrency"] or 0),
        )
    return Coefficients(base, corrections, spreads)
