"""The fit behind the step-time and first-token coefficients: terms of each point, robust regression, levels.

Source: benchmarks/data/performance_points.csv. Global terms first (robust, log error, weak priors), then one
correction per level of ``coefficients.LEVELS`` on what the wider levels leave. Left out: any use at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.performance_data import CONTRADICTS, Point
from capacity.catalog import model_spec
from capacity.hardware import Gpu, find_gpu
from capacity.performance.bounds import room
from capacity.performance.coefficients import (
    CLASSES,
    LEVELS,
    QUANTITIES,
    model_shape,
    release_key,
)
from capacity.performance.layout import Layout, devices, link_domain
from capacity.performance.steps import engine_key
from capacity.performance.terms import FIRST_TERMS, first_token_terms, step_terms
from capacity.performance.work import step_work
from capacity.precision import resolve_kv_format, resolve_weight_format

Array = NDArray[np.float64]

# Where a global coefficient starts: a share of peak (1 = at peak) or seconds per launch.
STEP_PRIOR = {
    "dense_weights": 1.1,
    "expert_weights": 1.2,
    "kv_read": 1.2,
    "matmul": 1.5,
    "attention": 2.0,
    "prefill_matmul": 2.0,
    "prefill_attention": 2.0,
    "all_reduce": 1.5,
    "prefill_all_reduce": 1.5,
    "all_to_all": 1.5,
    "sequence_layers": 2e-7,
    "prefills": 5e-3,
    "layers": 2e-5,
    "moe_layers": 1.5e-5,
    "state_layers": 2e-5,
    "latent_layers": 1e-5,
    "split_layers": 1e-5,
}
FIRST_PRIOR = {
    "prefill_matmul": 2.0,
    "prefill_attention": 2.0,
    "layers": 2e-4,
    "busy_step": 1.0,
    "queue_prefill": 0.1,
    "tokens": 5e-6,
    "constant": 1e-2,
    "ranks_wait": 50.0,
}
PRIORS = {"step": STEP_PRIOR, "first_token": FIRST_PRIOR}
GLOBAL_SD = 0.7
LEVEL_SD = {"step": 0.08, "first_token": 0.1}
RELEASE_SD = 0.25  # releases differ by 4 % in the middle and by half in the tail
ROBUST = {"step": 0.06, "first_token": 0.12}


@dataclass(frozen=True, slots=True)
class Table:
    """Points with their terms. ``terms[quantity]``: (points, terms); ``keys[level]``: one text per point.

    ``steady``: not of a run that contradicts itself; the others are predicted and never fitted.
    """

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
    batch: Array
    ranks_share: Array
    steady: NDArray[np.bool_]


def build_table(chosen: Sequence[Point]) -> Table:
    """Terms of each point through the code that the product runs."""
    step, first, bounds, floors, textbook, shapes, precisions, gpus, moe, limited, batch, shares = (
        [] for _ in range(12)
    )
    auto = resolve_kv_format("auto")
    for point in chosen:
        spec, gpu = model_spec(point.model), find_gpu(point.gpu)
        work = step_work(spec, resolve_weight_format(point.weight_format, spec), auto)
        layout = Layout(
            tensor=point.tensor,
            data=point.data,
            experts_whole=point.experts_whole,
            link_domain=link_domain(gpu),
        )
        prompt = np.array([point.prompt_tokens])
        running = min(point.concurrency, generous_limit(point))
        limited.append(running < point.concurrency)
        batch.append(max(running / point.data, 1.0))
        terms = step_terms(
            work,
            devices([gpu]),
            layout,
            concurrency=np.array([running]),
            prompt_tokens=prompt,
            output_tokens=np.array([point.output_tokens]),
        )
        step.append(terms.values[:, 0, 0])
        own = first_token_terms(terms, np.array([[point.tpot_s]]), prompt_tokens=prompt, engine=point.engine)
        first.append(own[:, 0, 0])
        shares.append(own[list(FIRST_TERMS).index("ranks_wait"), 0, 0] / point.tpot_s)
        bounds.append(terms.read_bound_s[0, 0])
        floors.append(terms.floor_s[0, 0])
        textbook.append(
            max(terms.read_bound_s[0, 0] / 0.8, (terms.values[3] + terms.values[4])[0, 0] / 0.5)
            + (terms.values[5] + terms.values[6])[0, 0] / 0.5
        )
        shapes.append(model_shape(work))
        precisions.append(work.precision)
        gpus.append(gpu)
        moe.append(work.is_moe)
    facts = {
        "engine": [engine_key(p.engine, p.engine_version) for p in chosen],
        "shape": shapes,
        "precision": precisions,
        "gpu": [g.id for g in gpus],
        "release": [release_key(p.engine_version) for p in chosen],
    }
    keys = {
        level: np.array(["|".join(facts[n][i] for n in names) for i in range(len(chosen))])
        for level, names in LEVELS.items()
    }
    return Table(
        points=tuple(chosen),
        gpus=tuple(gpus),
        engines=tuple(facts["engine"]),
        shapes=tuple(shapes),
        precisions=tuple(precisions),
        terms={"step": np.array(step), "first_token": np.array(first)},
        targets={
            "step": np.array([p.tpot_s for p in chosen]),
            "first_token": np.array([p.ttft_s or np.nan for p in chosen]),
        },
        keys=keys,
        read_bound_s=np.array(bounds),
        floor_s=np.array(floors),
        textbook_s=np.array(textbook),
        moe=np.array(moe),
        limited=np.array(limited),
        batch=np.array(batch),
        ranks_share=np.array(shares),
        steady=np.array([p.use != CONTRADICTS for p in chosen]),
    )


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
    held = room(work, layout, memory_gib=gpu.memory_gib or 1e9, utilization=0.95).requests(
        point.prompt_tokens + point.output_tokens / 2
    )
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


def fit_level(
    parts: Array, target: Array, key: NDArray[np.str_], masks: Array, sd: float, nu: float
) -> tuple[NDArray[np.str_], Array]:
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
        move = np.clip(
            np.linalg.solve(hessian + prior, (gradient - theta @ prior)[:, :, None])[:, :, 0], -0.5, 0.5
        )
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
    """Everything of one quantity on the steady rows in ``train``."""
    train = train & table.steady & np.isfinite(table.targets[quantity])
    terms, target = table.terms[quantity][train], table.targets[quantity][train]
    prior = np.array([PRIORS[quantity][t] for t in QUANTITIES[quantity]])
    base = fit_terms(terms, target, prior, ROBUST[quantity])
    masks, parts, levels = class_masks(quantity), terms * base, {}
    for level in LEVELS:
        key = table.keys[level][train]
        usable = np.array([not k.endswith("|") for k in key])
        names, offsets = fit_level(
            parts[usable],
            target[usable],
            key[usable],
            masks,
            RELEASE_SD if level == "release" else LEVEL_SD[quantity],
            ROBUST[quantity],
        )
        levels[level] = dict(zip(names.tolist(), offsets, strict=True))
        parts = parts * np.exp(
            np.array([levels[level].get(k, np.zeros(len(CLASSES))) for k in key]) @ masks.T
        )
    return Fitted(base, levels)


def predict(
    table: Table, quantity: str, fitted: Fitted, rows: NDArray[np.bool_], terms: Array | None = None
) -> Array:
    """Seconds for ``rows``."""
    masks = class_masks(quantity)
    offsets = np.zeros((int(rows.sum()), len(CLASSES)))
    for level in LEVELS:
        offsets += np.array(
            [fitted.levels[level].get(k, np.zeros(len(CLASSES))) for k in table.keys[level][rows]]
        )
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
    names = list(QUANTITIES["first_token"])
    table.terms["first_token"][:, names.index("busy_step")] = step_s * (1.0 - 1.0 / table.batch)
    table.terms["first_token"][:, names.index("ranks_wait")] = step_s * table.ranks_share


def cross_validate(table: Table, fold: NDArray[np.int64]) -> dict[str, Array]:
    """Out-of-fold predictions of both quantities."""
    found = {quantity: np.full(len(table.points), np.nan) for quantity in QUANTITIES}
    for number in np.unique(fold):
        held = fold == number
        fitted = fit_both(table, ~held)
        for quantity in QUANTITIES:
            found[quantity][held] = predict(table, quantity, fitted[quantity], held)
    return found
