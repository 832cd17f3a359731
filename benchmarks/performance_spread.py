"""How wide the 80 % interval must be: errors of predictions for rows that a fit never saw.

Source: splits by curve, by GPU, by model and by both inside the training rows. Left out: the fit itself
(performance_regression.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.performance_regression import Fitted, Table, fit, folds, predict
from capacity.performance.coefficients import KNOWLEDGE, load_factor

Array = NDArray[np.float64]
SHRINK_ROWS = 8.0


def known(
    table: Table, quantity: str, fitted: Fitted, gpus_seen: set[tuple[str, str]], rows: NDArray[np.bool_]
) -> list[str]:
    """What each prediction rests on: the deepest level that has a correction."""
    found = []
    for i in np.flatnonzero(rows):
        for level, name in (("gpu", "measured"), ("model", "model")):
            if table.keys[level][i] in fitted.levels[level]:
                found.append(name)
                break
        else:
            found.append("gpu" if (table.engines[i], table.gpus[i].id) in gpus_seen else "engine")
    return found


def seen_gpus(table: Table, rows: NDArray[np.bool_]) -> set[tuple[str, str]]:
    """(engine, gpu) pairs among ``rows``."""
    return {(table.engines[i], table.gpus[i].id) for i in np.flatnonzero(rows)}


@dataclass
class Spread:
    """80 % half-ranges of log error: per "gpu"-level key, per engine and pooled by what a prediction rests on."""

    keys: dict[str, float]
    pooled: dict[str, float]
    exponent: float
    engines: dict[str, float] = field(default_factory=dict)

    def measured(self, key: str) -> float:
        """The half-range of a "gpu"-level key; its engine's where no curve of it was ever held back."""
        return self.keys.get(key, self.engines.get(engine_of(key), self.pooled["measured"]))


def engine_of(key: str) -> str:
    """The engine that a key starts with: kernels, scheduler and release pace are its own, so errors are alike within it."""
    return key.split("|")[0]


def shrunk(values: list[float], level: float, towards: float) -> float:
    """The quantile of a few errors, pulled to that of a wider group by ``SHRINK_ROWS`` rows."""
    own, count = float(np.quantile(values, level)), len(values)
    return (count * own + SHRINK_ROWS * towards) / (count + SHRINK_ROWS)


# Slightly above 0.8: the errors behind it come from splits of the same rows, a new curve errs a little more.
COVER_QUANTILE = 0.82


def spread(table: Table, quantity: str, train: NDArray[np.bool_], *, inner: int = 6) -> Spread:
    """Half-ranges from splits inside ``train``: by curve, by GPU, by model, and by both."""
    train = train & table.steady & np.isfinite(table.targets[quantity])
    level = COVER_QUANTILE
    pool: dict[str, list[float]] = {name: [] for name in KNOWLEDGE}
    by_key: dict[str, list[float]] = {}
    raw: list[tuple[str, str, float, float, str]] = []
    splits: list[tuple[str, NDArray[np.bool_], NDArray[np.bool_]]] = []
    curve = folds([p.curve for p in table.points], inner, seed=1)
    splits += [("curve", train & (curve != k), train & (curve == k)) for k in range(inner)]
    gpus = np.array([g.id for g in table.gpus])
    shapes = np.array(table.shapes)
    splits += [("gpu", train & (gpus != g), train & (gpus == g)) for g in sorted(set(gpus[train]))]
    splits += [("model", train & (shapes != s), train & (shapes == s)) for s in sorted(set(shapes[train]))]
    pairs = sorted(set(zip(gpus[train].tolist(), shapes[train].tolist(), strict=True)))
    splits += [
        ("both", train & (gpus != g) & (shapes != s), train & (gpus == g) & (shapes == s)) for g, s in pairs
    ]
    for kind, fit_rows, held in splits:
        if held.sum() == 0 or fit_rows.sum() < 50:
            continue
        fitted = fit(table, quantity, fit_rows)
        error = np.abs(np.log(predict(table, quantity, fitted, held) / table.targets[quantity][held]))
        names = known(table, quantity, fitted, seen_gpus(table, fit_rows), held)
        raw += [
            (kind, name, float(e), table.points[i].concurrency, str(table.keys["gpu"][i]))
            for i, e, name in zip(np.flatnonzero(held), error, names, strict=True)
        ]
    exponent = _load_exponent(
        [(e, c, key) for kind, name, e, c, key in raw if kind == "curve" and name == "measured"]
    )
    for kind, name, e, c, key in raw:
        scaled = e / load_factor(c, exponent)
        if kind == "both" and name in ("gpu", "engine"):
            pool["engine"].append(scaled)
        elif kind != "both" and (kind == "curve") == (name == "measured"):
            pool[name].append(scaled)
        if kind == "curve" and name == "measured":
            by_key.setdefault(key, []).append(scaled)
    pooled: dict[str, float] = {}
    for name in KNOWLEDGE:
        values = pool[name]
        pooled[name] = (
            float(np.quantile(values, level)) if len(values) >= 20 else max([0.3, *pooled.values()])
        )
    for wide, narrow in (
        ("model", "measured"),
        ("gpu", "measured"),
        ("engine", "gpu"),
    ):
        pooled[wide] = max(pooled[wide], pooled[narrow])
    by_engine: dict[str, list[float]] = {}
    for key, values in by_key.items():
        by_engine.setdefault(engine_of(key), []).extend(values)
    engines = {name: shrunk(values, level, pooled["measured"]) for name, values in by_engine.items()}
    keys = {key: shrunk(values, level, engines[engine_of(key)]) for key, values in by_key.items()}
    return Spread(keys, pooled, exponent, engines)


def _load_exponent(errors: list[tuple[float, float, str]]) -> float:
    """How the relative error grows with concurrency once each group's own size is taken out."""
    groups: dict[str, list[float]] = {}
    for e, _, key in errors:
        groups.setdefault(key, []).append(e)
    scale = {key: max(float(np.quantile(values, 0.8)), 0.01) for key, values in groups.items()}
    x = np.log([c for _, c, _ in errors])
    y = np.array([e / scale[key] for e, _, key in errors])
    edges = np.quantile(x, np.linspace(0, 1, 9))
    middles, heights = [], []
    for low, high in pairwise(edges):
        inside = (x >= low) & (x <= high)
        if inside.sum() >= 20:
            middles.append(float(x[inside].mean()))
            heights.append(float(np.log(max(np.quantile(y[inside], 0.8), 0.05))))
    return float(np.clip(np.polyfit(middles, heights, 1)[0], 0.0, 0.4)) if len(middles) >= 3 else 0.0
