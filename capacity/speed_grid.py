"""Speeds over a grid of one or two scenario inputs, as arrays: heat maps, lines and Pareto fronts.

Source: performance.predict, one array call per deployment; concurrency and lengths are array axes, any other key is planned
value by value. Left out: drawing, progress bars (``on_row`` tells how far it is and may stop it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capacity.errors import CapacityError
from capacity.performance.deployment import Planned, planned, pool_requests
from capacity.performance.predict import forecast
from capacity.performance.records import Forecast
from capacity.scenario import Scenario, field_table

Array = NDArray[np.float64]

ARRAY_KEYS = ("concurrency", "prompt_tokens", "output_tokens")
MEASURES = (
    "tpot_s",
    "ttft_s",
    "e2e_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "mfu",
    "mbu",
)
MOST_CELLS = 250_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One swept key and its values: ``concurrency`` or any scenario key."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedGrid:
    """``measures[name]`` has the shape (y values, x values); NaN where nothing fits, with the reason in ``reasons``.

    ``low`` and ``high`` hold the 80 % interval of the measures that have one. ``complete`` is False when it was stopped.
    """

    x: Axis
    y: Axis | None
    measures: dict[str, Array]
    low: dict[str, Array]
    high: dict[str, Array]
    reasons: dict[tuple[int, int], str]
    gpus: Array
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """One non-dominated point: output tokens/s per GPU against tokens/s that one user sees (1 / TPOT)."""

    concurrency: float
    tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float


def speed_grid(
    scenario: Scenario,
    x: Axis,
    y: Axis | None = None,
    *,
    concurrency: float = 16.0,
    on_row: Callable[[float], bool] | None = None,
) -> SpeedGrid:
    """Every measure over ``x`` and ``y``. ``on_row(share done)`` is called after each planned deployment; returning False
    stops there. Raises CapacityError for an unknown key or too many cells."""
    shape = (len(y.values) if y else 1, len(x.values))
    _check(x, y, shape)
    found = {name: np.full(shape, np.nan) for name in MEASURES}
    low, high = ({name: np.full(shape, np.nan) for name in MEASURES[:6]} for _ in range(2))
    gpus, reasons = np.full(shape, np.nan), {}
    jobs = list(_jobs(x, y))
    complete = True
    for number, (changes, rows, columns) in enumerate(jobs, start=1):
        cells = np.ix_(rows, columns)
        try:
            _fill(scenario, changes, x, y, rows, columns, concurrency, found, low, high, gpus)
        except CapacityError as error:
            reasons.update({(i, j): str(error) for i in rows for j in columns})
            gpus[cells] = np.nan
        if on_row is not None and not on_row(number / len(jobs)) and number < len(jobs):
            complete = False
            break
    return SpeedGrid(
        x=x, y=y, measures=found, low=low, high=high, reasons=reasons, gpus=gpus, complete=complete
    )


def _check(x: Axis, y: Axis | None, shape: tuple[int, int]) -> None:
    for axis in (x, y):
        if axis is None:
            continue
        if axis.key != "concurrency" and axis.key not in field_table():
            raise CapacityError(
                f"{axis.key[:40]!r} cannot be swept; expected concurrency or a scenario key",
                field=axis.key[:40],
            )
        if not axis.values:
            raise CapacityError(f"{axis.key} has no values to sweep; expected at least 1", field=axis.key)
    if y is not None and x.key == y.key:
        raise CapacityError(f"both axes sweep {x.key}; expected two different keys", field=x.key)
    if shape[0] * shape[1] > MOST_CELLS:
        raise CapacityError(
            f"{shape[0]:,} x {shape[1]:,} cells; expected at most {MOST_CELLS:,}", field=x.key
        )


def _jobs(x: Axis, y: Axis | None) -> Iterator[tuple[dict[str, Any], list[int], list[int]]]:
    """(changed keys, rows, columns) of each deployment that must be planned."""
    rows = [[0]] if y is None else _places(y)
    columns = _places(x)
    for some_rows in rows:
        for some_columns in columns:
            changes: dict[str, Any] = {}
            if y is not None and y.key not in ARRAY_KEYS:
                changes[y.key] = y.values[some_rows[0]]
            if x.key not in ARRAY_KEYS:
                changes[x.key] = x.values[some_columns[0]]
            yield changes, some_rows, some_columns


def _places(axis: Axis) -> list[list[int]]:
    """All values at once where the axis is an array axis, else one at a time."""
    every = list(range(len(axis.values)))
    return [every] if axis.key in ARRAY_KEYS else [[i] for i in every]


def _fill(
    scenario: Scenario,
    changes: dict[str, Any],
    x: Axis,
    y: Axis | None,
    rows: list[int],
    columns: list[int],
    concurrency: float,
    found: dict[str, Array],
    low: dict[str, Array],
    high: dict[str, Array],
    gpus: Array,
) -> None:
    raw = {**scenario.to_json(), **changes}
    grids = {"concurrency": np.full((len(rows), len(columns)), float(concurrency))}
    for axis, place in ((y, rows), (x, columns)):
        if axis is not None and axis.key in ARRAY_KEYS:
            values = np.array([float(axis.values[i]) for i in place])
            grids[axis.key] = np.broadcast_to(
                values[:, None] if axis is y else values[None, :], (len(rows), len(columns))
            ).copy()
    for key in ("prompt_tokens", "output_tokens"):
        if key in grids:
            raw[key] = float(grids[key].max())
    deployment = planned(Scenario.parse(raw))
    size = grids["concurrency"].shape
    prompt = np.full(size, deployment.prompt_tokens).ravel()
    if "prompt_tokens" in grids:  # the longest is planned; images come on top of each
        prompt = prompt + (grids["prompt_tokens"] - grids["prompt_tokens"].max()).ravel()
    output = np.maximum(grids.get("output_tokens", np.full(size, deployment.output_tokens)), 1.0).ravel()
    one = forecast(
        deployment.deployment,
        grids["concurrency"].ravel(),
        prompt,
        output,
        most_running=running_limit(deployment, prompt, output),
    )
    cells = np.ix_(rows, columns)
    for name in MEASURES:
        value = getattr(one, name)
        found[name][cells] = (value if name in ("mfu", "mbu") else value.value).reshape(size)
        if name in low:
            low[name][cells], high[name][cells] = value.low.reshape(size), value.high.reshape(size)
    gpus[cells] = deployment.deployment.layout.gpus


def running_limit(found: Planned, prompt: Array, output: Array) -> Array:
    """Requests that pool and seats allow, per pair of lengths."""
    held = pool_requests(found.plan, prompt, output, found.deployment.cached_tokens)
    held = held * found.deployment.layout.data
    return np.asarray(np.minimum(held, found.seats))


def pareto(scenario: Scenario, *, points: int = 64) -> list[ParetoPoint]:
    """The front of one deployment from one request up to its limit, most tokens/s per user first."""
    found = planned(scenario)
    grid = np.geomspace(1.0, max(min(found.deployment.most_running, 1e5), 1.0), points)
    one: Forecast = forecast(found.deployment, grid, found.prompt_tokens, found.output_tokens)
    return front(grid, one.output_tokens_per_s.value / found.deployment.layout.gpus, 1.0 / one.tpot_s.value)


def front(concurrency: Array, per_gpu: Array, per_user: Array) -> list[ParetoPoint]:
    """Points that no other beats on both axes.

    >>> [p.concurrency for p in front(np.array([1.0, 2, 4]), np.array([10.0, 9, 30]), np.array([90.0, 80, 70]))]
    [1.0, 4.0]
    """
    found, best = [], -np.inf
    for i in np.lexsort((-per_gpu, -per_user)):
        if per_gpu[i] > best:
            best = float(per_gpu[i])
            found.append(
                ParetoPoint(
                    concurrency=float(concurrency[i]),
                    tokens_per_s_per_gpu=best,
                    tokens_per_s_per_user=float(per_user[i]),
                )
            )
    return found


def side_by_side(
    scenario: Scenario, variants: Sequence[dict[str, Any]], *, concurrency: float
) -> list[dict[str, Any]]:
    """One row per variant (changed keys): speed, limits and the reason where it cannot run."""
    rows = []
    for changes in variants:
        row: dict[str, Any] = {**changes, "reason": None, "forecast": None, "planned": None}
        try:
            found = planned(Scenario.parse({**scenario.to_json(), **changes}))
            row["planned"], row["forecast"] = (
                found,
                forecast(
                    found.deployment, np.array([float(concurrency)]), found.prompt_tokens, found.output_tokens
                ),
            )
        except CapacityError as error:
            row["reason"] = str(error)
        rows.append(row)
    return rows
