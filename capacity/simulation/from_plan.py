"""An engine to simulate from a plan: its usable blocks, its block layout, and a linear step time around the
workload.

Source: capacity.plan for blocks; capacity.performance for seconds, made linear by least squares over the
operating range of the workload. Left out: what is not linear (the fit's error is reported).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capacity.performance.deployment import planned
from capacity.performance.records import Deployment
from capacity.performance.steps import step_seconds
from capacity.plan import Plan, plan
from capacity.scenario import Length, Scenario
from capacity.simulation.cohort import Layout
from capacity.simulation.step_time import StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEngine:
    """What the plan says about one engine; ``notes`` name what was derived and how well."""

    num_blocks: int
    layout: Layout
    step_time: StepTime | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_caching: bool
    block_bytes: int
    data_parallel: int
    notes: tuple[str, ...]


def planned_engine(
    raw: Mapping[str, Any], *, prompt_tokens: float, output_tokens: float, needs_step_time: bool
) -> PlannedEngine:
    """The engine of a planner scenario at the workload's mean lengths. Raises CapacityError."""
    scenario = Scenario.parse(raw)
    notes: list[str] = []
    step_time = None
    if needs_step_time:
        at = replace(
            scenario,
            prompt_tokens=Length(mean=max(prompt_tokens, 1.0)),
            output_tokens=Length(mean=max(output_tokens, 1.0)),
        )
        found = planned(at)
        made = found.plan
        step_time, error = linear_step_time(
            found.deployment, max(prompt_tokens, 1.0), max(output_tokens, 1.0)
        )
        notes += found.notes
        notes.append(
            f"step time is the performance model made linear around the workload (within {error:.0%} of it): "
            f"{step_time.fixed_s * 1e3:.3g} ms + {step_time.per_prefill_token_s * 1e6:.3g} us per prompt token + "
            f"{step_time.per_decode_token_s * 1e6:.3g} us per decoding request + "
            f"{step_time.per_context_token_s * 1e9:.3g} ns per context token"
        )
        made = made if scenario.max_model_len is not None else plan(scenario)
    else:
        made = plan(scenario)
    resolved = made.resolved
    blocks = 0 if made.pool is None else made.pool.num_blocks
    usable = max(blocks - 1, 0) if resolved.release.runner == "v1" else blocks
    return PlannedEngine(
        num_blocks=usable,
        layout=block_layout(made),
        step_time=step_time,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        max_model_len=resolved.max_model_len,
        prefix_caching=resolved.prefix_caching,
        block_bytes=made.grouping.bytes_per_block(),
        data_parallel=resolved.parallel.data,
        notes=tuple(notes),
    )


def block_layout(made: Plan) -> Layout:
    """Blocks per request as the simulator counts them: full groups, windows (one block beyond the window),
    state.
    """
    groups = [group.cache for group in made.grouping.groups]
    windows = [cache for cache in groups if cache.kind in ("sliding", "chunked") and cache.window]
    states = [cache for cache in groups if cache.kind == "state"]
    full = len(groups) - len(windows) - len(states)
    size = groups[0].block_size
    return Layout(
        block_size=size,
        full=full,
        window=len(windows),
        window_tokens=max((int(cache.window or 0) for cache in windows), default=0)
        + (size if windows else 0),
        constant=len(states),
    )


BEST_PREFILL = 0.75
"""Share of peak arithmetic that prefill reaches at best (large 16-bit matrix products sustain 0.6 to 0.75)."""


def linear_step_time(deployment: Deployment, prompt: float, output: float) -> tuple[StepTime, float]:
    """(step time, largest difference from the performance model at the workload's own lengths).

    A fit of totals can hide what a single token costs, and a simulation needs just that. So a context token never costs
    less than reading its cache at full bandwidth, a prompt token never less than its arithmetic at BEST_PREFILL of peak.
    """
    most = float(min(max(deployment.most_running, 2.0), 2048.0))
    ranks = deployment.layout.data
    counts = np.geomspace(1.0, most, 8)
    rows: list[np.ndarray] = []
    times: list[np.ndarray] = []
    near: list[bool] = []
    for longer, more in ((0.5, 1.0), (1.0, 1.0), (1.0, 4.0), (2.0, 1.0), (1.0, 0.5)):
        p, o = max(prompt * longer, 1.0), max(output * more, 1.0)
        step, _, _ = step_seconds(deployment, counts, np.full(1, p), np.full(1, o))
        running = np.maximum(counts / ranks, 1.0)
        started = np.maximum(running - 1.0, 0.0) / o
        ones = np.ones_like(running)
        rows.append(np.stack([ones, started * p, running, running * (p + o / 2)], axis=1))
        times.append(np.asarray(step, float).reshape(-1))
        near += [longer == 1.0 and more == 1.0] * len(counts)
    design, seconds = np.concatenate(rows), np.concatenate(times)
    found = _non_negative(design / seconds[:, None], np.ones_like(seconds))
    least_prefill, least_context = _bounds(deployment, prompt, output)
    found[1] = max(found[1], least_prefill)
    found[3] = max(found[3], least_context)
    error = np.abs(design @ found / seconds - 1.0)[np.array(near)]
    fixed, prefill, decode, context = (float(value) for value in found)
    return (
        StepTime(
            fixed_s=fixed, per_prefill_token_s=prefill, per_decode_token_s=decode, per_context_token_s=context
        ),
        float(error.max()),
    )


def _bounds(deployment: Deployment, prompt: float, output: float) -> tuple[float, float]:
    """Seconds that a prompt token and a context token cost at the very least, from the terms of the model itself."""
    one = np.ones(1)
    lengths = np.array([prompt, 2 * prompt])
    terms = [step_seconds(deployment, one, np.full(1, length), np.full(1, output))[2] for length in lengths]
    prefill = float(terms[0].prefill_matmul.reshape(-1)[0]) / prompt / BEST_PREFILL
    reads = [float(found.values[2].reshape(-1)[0]) for found in terms]
    return prefill, max(reads[1] - reads[0], 0.0) / prompt


def _non_negative(design: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares with coefficients of at least 0: drop the most negative one until none is left."""
    keep = list(range(design.shape[1]))
    while True:
        solved = np.linalg.lstsq(design[:, keep], target, rcond=None)[0]
        if (solved >= 0).all() or len(keep) == 1:
            break
        keep.pop(int(np.argmin(solved)))
    result = np.zeros(design.shape[1])
    result[keep] = np.maximum(solved, 0.0)
    return result
