"""Fits the step-time and first-token coefficients and writes the two tables that ship with the product.

Source: benchmarks/data/performance_points.csv. Global terms first (robust, log error, weak priors), then one
correction per level of ``coefficients.LEVELS`` on what the wider levels leave. Left out: any use at run time.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.performance_data import Point, points
from capacity.catalog import model_spec
from capacity.hardware import Gpu, find_gpu
from capacity.performance.coefficients import (
    CLASSES,
    load_factor,
    LEVELS,
    QUANTITIES,
    Coefficients,
    from_rows,
    generation,
    model_shape,
    release_key,
)
from capacity.performance.bounds import room
from capacity.performance.layout import Layout, devices, link_domain
from capacity.performance.predict import engine_key
from capacity.performance.terms import first_token_terms, step_terms
from capacity.performance.work import step_work
from capacity.precision import resolve_kv_format, resolve_weight_format

Array = NDArray[np.float64]
CATALOG = Path(__file__).parent.parent / "capacity" / "catalog"

# Where a global coefficient starts: a share of peak (1 = at peak) or seconds per launch.
STEP_PRIOR = {
    "dense_weights": 1.1, "expert_weights": 1.2, "kv_read": 1.2, "matmul": 1.5, "attention": 2.0,
    "prefill_matmul": 2.0, "prefill_attention": 2.0, "all_reduce": 1.5, "prefill_all_reduce": 1.5, "all_to_all": 1.5,
    "sequence_layers": 2e-7, "prefills": 5e-3, "layers": 2e-5, "moe_layers": 1.5e-5,
    "state_layers": 2e-5, "latent_layers": 1e-5, "split_layers": 1e-5,     }  # fmt: skip
FIRST_PRIOR = {
    "prefill_matmul": 2.0, "prefill_attention": 2.0, "layers": 2e-4, "step": 1.0,
    "queue_prefill": 0.1, "tokens": 5e-6, "constant": 1e-2,
}  # fmt: skip
PRIORS = {"step": STEP_PRIOR, "first_token": FIRST_PRIOR}
GLOBAL_SD = 0.7
LEVEL_SD = {"step": 0.08, "first_token": 0.1}
ROBUST = {"step": 0.06, "first_token": 0.12}
SHRINK_ROWS = 8.0


@dataclass(frozen=True, slots=True)
class Table:
    """Points with their terms. ``terms[quantity]``: (points, terms); ``keys[level]``: one text per point."""

    points: tuple[Point, ...]
    gpus: tuple[Gpu, ...]
    engines: tuple[str, ...]
    shapes: tuple[str, ...]
    precisions: tuple[str, ...]
    terms: dict[str, Array]
    targets: dict[str, Array]
    keys: dict[str, NDArray[np.str_]]
    read_bound_s: Array
    floor_s: Array
    textbook_s: Array
    moe: NDArray[np.bool_]
    limited: NDArray[np.bool_]


def build_table(chosen: Sequence[Point]) -> Table:
    """Terms of each point through the code that the product runs."""
    step, first, bounds, floors, textbook, shapes, precisions, gpus, moe, limited = ([] for _ in range(10))
    auto = resolve_kv_format("auto")
    for point in chosen:
        spec, gpu = model_spec(point.model), find_gpu(point.gpu)
        work = step_work(spec, resolve_weight_format(point.weight_format, spec), auto)
        layout = Layout(tensor=point.tensor, data=point.data, experts_whole=point.experts_whole, link_domain=link_domain(gpu))
        prompt = np.array([point.prompt_tokens])
        running = min(point.concurrency, generous_limit(point))
        limited.append(running < point.concurrency)
        terms = step_terms(work, devices([gpu]), layout, concurrency=np.array([running]),
                           prompt_tokens=prompt, output_tokens=np.array([point.output_tokens]))  # fmt: skip
        step.append(terms.values[:, 0, 0])
        first.append(first_token_terms(terms, np.array([[point.tpot_s]]), prompt_tokens=prompt)[:, 0, 0])
        bounds.append(terms.read_bound_s[0, 0])
        floors.append(terms.floor_s[0, 0])
        textbook.append(max(terms.read_bound_s[0, 0] / 0.8, (terms.values[3] + terms.values[4])[0, 0] / 0.5)
                        + (terms.values[5] + terms.values[6])[0, 0] / 0.5)  # fmt: skip
        shapes.append(model_shape(work))
        precisions.append(work.precision)
        gpus.append(gpu)
        moe.append(work.is_moe)
    facts = {
        "engine": [engine_key(p.engine, p.engine_version) for p in chosen], "shape": shapes, "precision": precisions, "gpu": [g.id for g in gpus],
        "generation": [generation(g) for g in gpus], "release": [release_key(p.engine_version) for p in chosen],
    }  # fmt: skip
    keys = {level: np.array(["|".join(facts[n][i] for n in names) for i in range(len(chosen))]) for level, names in LEVELS.items()}
    return Table(
        points=tuple(chosen), gpus=tuple(gpus), engines=tuple(facts["engine"]), shapes=tuple(shapes), precisions=tuple(precisions),
        terms={"step": np.array(step), "first_token": np.array(first)},
        targets={"step": np.array([p.tpot_s for p in chosen]), "first_token": np.array([p.ttft_s or np.nan for p in chosen])},
        keys=keys, read_bound_s=np.array(bounds), floor_s=np.array(floors), textbook_s=np.array(textbook), moe=np.array(moe), limited=np.array(limited),
    )  # fmt: skip


@lru_cache(maxsize=8192)
def generous_limit(point: Point) -> float:
    """Requests that the cache holds. Launch arguments are not published, so it is taken as generous as such runs set it:
    8-bit cache for 8- and 4-bit weights, 95 % of memory."""
    spec, gpu = model_spec(point.model), find_gpu(point.gpu)
    fmt = resolve_weight_format(point.weight_format, spec)
    work = step_work(spec, fmt, resolve_kv_format("auto"))
    if work.precision != "bf16":
        work = step_work(spec, fmt, resolve_kv_format("fp8"))
    layout = Layout(tensor=point.tensor, data=point.data, experts_whole=point.experts_whole)
    held = room(work, layout, memory_gib=gpu.memory_gib or 1e9, utilization=0.95).requests(point.prompt_tokens + point.output_tokens / 2)
    return max(held, 1.0) * point.data


def fit_terms(terms: Array, target: Array, prior: Array, nu: float, *, iterations: int = 30) -> Array:
    """Positive coefficients that minimise the absolute log error, pulled weakly to ``prior``."""
    start, y = np.log(prior), np.log(target)
    theta = start.copy()
    for _ in range(iterations):
        parts = terms * np.exp(theta)
        total = parts.sum(1)
        jacobian, error = parts / total[:, None], y - np.log(total)
        weight = 1.0 / (np.maximum(np.abs(error), nu) * nu)
        hessian = (jacobian * weight[:, None]).T @ jacobian + np.eye(len(theta)) / GLOBAL_SD**2
        gradient = (jacobian * weight[:, None]).T @ error - (theta - start) / GLOBAL_SD**2
        move = np.clip(np.linalg.solve(hessian, gradient), -0.5, 0.5)
        theta += move
        if np.abs(move).max() < 1e-3:
            break
    return np.exp(theta)


def fit_level(parts: Array, target: Array, key: NDArray[np.str_], masks: Array, sd: float, nu: float) -> tuple[NDArray[np.str_], Array]:
    """Offsets (group, class) of one level, each pulled to zero with standard deviation ``sd``."""
    names, group = np.unique(key, return_inverse=True)
    y, theta = np.log(target), np.zeros((len(names), masks.shape[1]))
    prior = np.eye(masks.shape[1]) / sd**2
    for _ in range(12):
        scaled = parts * np.exp(theta[group] @ masks.T)
        total = scaled.sum(1)
        jacobian, error = (scaled / total[:, None]) @ masks, y - np.log(total)
        weight = 1.0 / (np.maximum(np.abs(error), nu) * nu)
        hessian = np.zeros((len(names), *prior.shape))
        gradient = np.zeros_like(theta)
        np.add.at(hessian, group, (jacobian * weight[:, None])[:, :, None] * jacobian[:, None, :])
        np.add.at(gradient, group, jacobian * (weight * error)[:, None])
        move = np.clip(np.linalg.solve(hessian + prior, (gradient - theta @ prior)[:, :, None])[:, :, 0], -0.5, 0.5)
        theta += move
        if np.abs(move).max() < 1e-3:
            break
    return names, theta


def class_masks(quantity: str) -> Array:
    """(term, class): which offsets move which term."""
    classes = list(QUANTITIES[quantity].values())
    return np.array([[1.0 if name in ("all", c) else 0.0 for name in CLASSES] for c in classes])


@dataclass
class Fitted:
    """Global coefficients and each level's offsets."""

    base: Array
    levels: dict[str, dict[str, Array]]


def fit(table: Table, quantity: str, train: NDArray[np.bool_]) -> Fitted:
    """Everything of one quantity on the rows in ``train``."""
    train = train & np.isfinite(table.targets[quantity])
    terms, target = table.terms[quantity][train], table.targets[quantity][train]
    prior = np.array([PRIORS[quantity][t] for t in QUANTITIES[quantity]])
    base = fit_terms(terms, target, prior, ROBUST[quantity])
    masks, parts, levels = class_masks(quantity), terms * base, {}
    for level in LEVELS:
        key = table.keys[level][train]
        usable = np.array([not k.endswith("|") for k in key])
        names, offsets = fit_level(parts[usable], target[usable], key[usable], masks, LEVEL_SD[quantity], ROBUST[quantity])
        levels[level] = dict(zip(names.tolist(), offsets, strict=True))
        parts = parts * np.exp(np.array([levels[level].get(k, np.zeros(len(CLASSES))) for k in key]) @ masks.T)
    return Fitted(base, levels)


def predict(table: Table, quantity: str, fitted: Fitted, rows: NDArray[np.bool_], terms: Array | None = None) -> Array:
    """Seconds for ``rows``."""
    masks = class_masks(quantity)
    offsets = np.zeros((int(rows.sum()), len(CLASSES)))
    for level in LEVELS:
        offsets += np.array([fitted.levels[level].get(k, np.zeros(len(CLASSES))) for k in table.keys[level][rows]])
    used = table.terms[quantity][rows] if terms is None else terms
    return np.asarray((used * fitted.base * np.exp(offsets @ masks.T)).sum(1))


def folds(keys: Sequence[str], count: int = 8, seed: int = 0) -> NDArray[np.int64]:
    """A fold per key, so that rows of one key never part."""
    rng = np.random.default_rng(seed)
    names = sorted(set(keys))
    drawn = dict(zip(names, rng.integers(0, count, len(names)), strict=True))
    return np.array([drawn[k] for k in keys])


def fit_both(table: Table, train: NDArray[np.bool_]) -> dict[str, Fitted]:
    """Step time, then first token with the step that the fit gives (never the measured one)."""
    step = fit(table, "step", train)
    set_step(table, predict(table, "step", step, np.ones(len(table.points), dtype=bool)))
    return {"step": step, "first_token": fit(table, "first_token", train)}


def set_step(table: Table, step_s: Array) -> None:
    """Puts predicted step times into the first-token terms."""
    table.terms["first_token"][:, list(QUANTITIES["first_token"]).index("step")] = step_s


def cross_validate(table: Table, fold: NDArray[np.int64]) -> dict[str, Array]:
    """Out-of-fold predictions of both quantities."""
    found = {quantity: np.full(len(table.points), np.nan) for quantity in QUANTITIES}
    for number in np.unique(fold):
        held = fold == number
        fitted = fit_both(table, ~held)
        for quantity in QUANTITIES:
            found[quantity][held] = predict(table, quantity, fitted[quantity], held)
    return found


def known(table: Table, quantity: str, fitted: Fitted, gpus_seen: set[tuple[str, str]], rows: NDArray[np.bool_]) -> list[str]:
    """What each prediction rests on: the deepest level that has a correction."""
    found = []
    for i in np.flatnonzero(rows):
        for level, name in (("gpu", "measured"), ("generation", "generation"), ("model", "model")):
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
    """80 % half-ranges of log error: per "gpu"-level key and pooled by what a prediction rests on."""

    keys: dict[str, float]
    pooled: dict[str, float]
    exponent: float

    def of(self, key: str, knowledge: str, concurrency: float) -> float:
        """The half-range of one point."""
        half = self.keys.get(key, self.pooled[knowledge]) if knowledge == "measured" else self.pooled[knowledge]
        return half * load_factor(concurrency, self.exponent)


# Slightly above 0.8: the errors behind it come from splits of the same rows, a new curve errs a little more.
COVER_QUANTILE = {"step": 0.82, "first_token": 0.81}


def spread(table: Table, quantity: str, train: NDArray[np.bool_], *, inner: int = 6) -> Spread:
    """Half-ranges from splits inside ``train``: by curve, by GPU, by model, and by both."""
    train = train & np.isfinite(table.targets[quantity])
    level = COVER_QUANTILE[quantity]
    pool: dict[str, list[float]] = {name: [] for name in ("measured", "generation", "model", "gpu", "engine")}
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
    splits += [("both", train & (gpus != g) & (shapes != s), train & (gpus == g) & (shapes == s)) for g, s in pairs]
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
    exponent = _load_exponent([(e, c, key) for kind, name, e, c, key in raw if kind == "curve" and name == "measured"])
    for kind, name, e, c, key in raw:
        scaled = e / load_factor(c, exponent)
        if kind == "both" and name in ("gpu", "engine"):
            pool["engine"].append(scaled)
        elif kind != "both" and (kind == "curve") == (name == "measured"):
            pool[name].append(scaled)
        if kind == "curve" and name == "measured":
            by_key.setdefault(key, []).append(scaled)
    pooled = {}
    for name in ("measured", "generation", "model", "gpu", "engine"):
        values = pool[name]
        pooled[name] = float(np.quantile(values, level)) if len(values) >= 20 else max([0.3, *pooled.values()])
    for wide, narrow in (("generation", "measured"), ("model", "generation"), ("gpu", "generation"), ("engine", "gpu")):
        pooled[wide] = max(pooled[wide], pooled[narrow])
    keys = {}
    for key, values in by_key.items():
        own = float(np.quantile(values, level))
        keys[key] = (len(values) * own + SHRINK_ROWS * pooled["measured"]) / (len(values) + SHRINK_ROWS)
    return Spread(keys, pooled, exponent)


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
    for low, high in zip(edges, edges[1:], strict=False):
        inside = (x >= low) & (x <= high)
        if inside.sum() >= 20:
            middles.append(float(x[inside].mean()))
            heights.append(float(np.log(max(np.quantile(y[inside], 0.8), 0.05))))
    return float(np.clip(np.polyfit(middles, heights, 1)[0], 0.0, 0.4)) if len(middles) >= 3 else 0.0


def correction_rows(table: Table, quantity: str, fitted: Fitted, spreads: Spread, train: NDArray[np.bool_]) -> list[dict[str, str]]:
    """Rows of performance_coefficients.csv for one quantity."""
    train = train & np.isfinite(table.targets[quantity])
    found: list[dict[str, str]] = []
    for level in LEVELS:
        for key, offsets in fitted.levels[level].items():
            rows = np.flatnonzero(train & (table.keys[level] == key))
            half = spreads.keys.get(key, spreads.pooled["measured"]) if level == "gpu" else 0.0
            dates = sorted(d for d in (table.points[i].measured for i in rows) if d[:2] == "20")
            found.append({
                "quantity": quantity, "level": level, "key": key, "rows": str(len(rows)),
                **{name: f"{value:.4f}" if abs(value) >= 5e-5 else "" for name, value in zip(CLASSES, offsets, strict=True)},
                "spread": f"{half:.4f}" if half else "", "first_date": dates[0] if dates else "", "last_date": dates[-1] if dates else "",
                "largest_concurrency": f"{max(table.points[i].concurrency for i in rows):g}",
                "model": table.points[int(rows[0])].model if level != "engine" else "",
                "source": "; ".join(sorted({table.points[i].source.split(':')[0] for i in rows})),
            })  # fmt: skip
    for name, value in [*spreads.pooled.items(), ("load_exponent", spreads.exponent)]:
        found.append({"quantity": quantity, "level": "spread", "key": name, "rows": str(int(train.sum())), "spread": f"{value:.4f}",
                      "source": "cross-validation by curve, by GPU, by model"})  # fmt: skip
    return found


ROW_COLUMNS = ("quantity", "level", "key", "rows", *CLASSES, "spread", "first_date", "last_date", "largest_concurrency", "model", "source")
TERM_COLUMNS = ("quantity", "term", "class", "coefficient", "source")


def term_rows(quantity: str, fitted: Fitted, rows: int) -> list[dict[str, str]]:
    """Rows of performance_terms.csv for one quantity."""
    return [
        {"quantity": quantity, "term": term, "class": kind, "coefficient": f"{value:.6g}",
         "source": f"fit on {rows} public operating points, benchmarks/fit_performance.py"}
        for (term, kind), value in zip(QUANTITIES[quantity].items(), fitted.base, strict=True)
    ]  # fmt: skip


def make(table: Table, train: NDArray[np.bool_], *, spreads: bool = True) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """(term rows, correction rows) of both quantities."""
    fitted = fit_both(table, train)
    terms: list[dict[str, str]] = []
    rows: list[dict[str, str]] = []
    for quantity in QUANTITIES:
        halves = spread(table, quantity, train) if spreads else Spread({}, dict.fromkeys(("measured", *("generation", "model", "gpu", "engine")), 0.2), 0.0)
        terms += term_rows(quantity, fitted[quantity], int(train.sum()))
        rows += correction_rows(table, quantity, fitted[quantity], halves, train)
    return terms, rows


def as_coefficients(terms: list[dict[str, str]], rows: list[dict[str, str]]) -> Coefficients:
    """The same rows as the product would read them."""
    return from_rows(terms, [{**dict.fromkeys(ROW_COLUMNS, ""), **row} for row in rows])


def fit_points() -> list[Point]:
    """The points to fit on."""
    return [p for p in points() if p.use == "fit"]


def main(argv: Sequence[str]) -> int:
    """Writes both tables into capacity/catalog (or the folder given)."""
    out = Path(argv[0]) if argv else CATALOG
    table = build_table(fit_points())
    terms, rows = make(table, np.ones(len(table.points), dtype=bool))
    for name, columns, found in (("performance_terms", TERM_COLUMNS, terms), ("performance_coefficients", ROW_COLUMNS, rows)):
        with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)
        print(f"{name}.csv: {len(found)} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
