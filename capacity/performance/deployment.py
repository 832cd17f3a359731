"""From a scenario to a deployment that the performance model understands: work, layout, and the limits of the plan.

Source: plan.py for what fits (its pool at the workload's lengths, and the seats). Left out: speed itself (predict.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from capacity.concurrency import prompt_of
from capacity.engine import known_releases
from capacity.errors import CapacityError
from capacity.kv_cache.pool import blocks_of_lengths, shared_blocks
from capacity.performance.layout import Layout, link_domain
from capacity.performance.records import Deployment
from capacity.performance.work import step_work
from capacity.plan import Plan, plan
from capacity.scenario import Scenario
from capacity.units import GIB

Array = NDArray[np.float64]

WORKLOAD_KEYS = ("prompt_tokens", "output_tokens", "shared_prefix_tokens", "safe_percentile")
LONGEST = 100_000_000
# SGLang and TensorRT-LLM take what is left after their own reserve; vLLM's default share says nothing about them.
OTHER_ENGINES_UTILIZATION = 0.97
PROGRESS = (np.arange(8) + 0.5) / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A deployment with the plan behind it and what had to be assumed to get there.

    ``prompt_tokens`` and ``output_tokens`` are means; the prompt holds the images that every request carries.
    """

    deployment: Deployment
    plan: Plan
    prompt_tokens: float
    output_tokens: float
    kv_requests: float
    seats: float
    notes: tuple[str, ...]


def planned(scenario: Scenario, *, acceptance: float | None = None) -> Planned:
    """The deployment of ``scenario`` at its mean lengths. Raises CapacityError where it does not fit."""
    _length(scenario, "prompt_tokens")
    prompt, output = prompt_of(scenario).mean, _length(scenario, "output_tokens")
    if output < 1:
        raise CapacityError(
            f"output_tokens is {output:g}; expected at least 1 for a time per output token",
            field="output_tokens",
        )
    if prompt == 0:
        raise CapacityError(
            "prompt_tokens is 0; expected at least 1: an engine refuses an empty prompt",
            field="prompt_tokens",
        )
    if prompt + output > LONGEST:
        raise CapacityError(
            f"prompt_tokens plus output_tokens is {prompt + output:,.0f}; expected at most {LONGEST:,}",
            field="prompt_tokens",
        )
    if scenario.gpu is None:
        raise CapacityError("gpu is missing; a speed needs a known accelerator such as h100-sxm", field="gpu")
    asked = {key: value for key, value in scenario.to_json().items() if key not in WORKLOAD_KEYS}
    asked.setdefault("max_model_len", min(LONGEST, 1 << max(9, int(np.ceil(np.log2(prompt + output))))))
    found, notes = _plan(json.dumps(asked, sort_keys=True), scenario.max_model_len is not None)
    r = found.resolved
    if prompt + output > r.max_model_len:
        raise CapacityError(
            f"prompt_tokens plus output_tokens is {prompt + output:,.0f}; expected at most max_model_len {r.max_model_len:,}",
            field="prompt_tokens",
        )
    if found.fit == "no" or found.pool is None:
        raise CapacityError(f"does not fit: {found.reason or 'no KV cache is left'}", field="gpu")
    assert r.gpu is not None
    for key in ("prompt_tokens", "output_tokens"):
        given = getattr(scenario, key)
        if given.cv or len(set(given.values)) > 1:
            notes = (
                *notes,
                f"{key} vary: speeds are at their mean of {given.mean:,.0f}; simulate plays the spread",
            )
    work = step_work(r.spec, r.weight_format, r.kv_format)
    layout = Layout(
        tensor=r.parallel.tensor,
        pipeline=r.parallel.pipeline,
        data=r.parallel.data,
        experts_whole=r.parallel.expert,
        link_domain=link_domain(r.gpu),
    )
    shared = min(float(scenario.shared_prefix_tokens), max(prompt - 1.0, 0.0)) if r.prefix_caching else 0.0
    held = pool_requests(found, np.array([prompt]), np.array([output]), shared)
    kv_requests = float(held[0]) * layout.data
    if kv_requests < 1:
        raise CapacityError(
            f"does not fit: the pool of {found.pool.num_blocks:,} blocks holds less than one request of {prompt + output:,.0f} "
            "tokens; use more or larger GPUs, a smaller format or shorter requests",
            field="gpu",
        )
    given_seats = scenario.max_num_seqs is not None or scenario.engine == "vllm"
    seats = float(r.max_num_seqs * layout.data) if given_seats else float("inf")
    deployment = Deployment(
        work=work,
        gpu=r.gpu,
        layout=layout,
        engine=scenario.engine,
        release=scenario.engine_version,
        most_running=min(kv_requests, seats),
        limited_by="KV-bound" if kv_requests <= seats else "seat-bound",
        cached_tokens=shared,
        speculative_tokens=scenario.num_speculative_tokens,
        acceptance=acceptance,
        host_bytes=min(scenario.cpu_offload_gib * GIB, max(stage.total for stage in found.weights.stages)),
    )
    return Planned(
        deployment=deployment,
        plan=found,
        prompt_tokens=prompt,
        output_tokens=output,
        kv_requests=kv_requests,
        seats=seats,
        notes=notes,
    )


def pool_requests(found: Plan, prompt: Array, output: Array, prefix_tokens: float = 0.0) -> Array:
    """Requests in decode that the pool of one data parallel rank holds, per pair of lengths in tokens (not rounded).

    Counted as the plan counts typical requests: ``prefix_tokens`` that all share once, windows with the tokens of running
    decode steps alone. Pairs have the shape (n,); zeros where there is no pool.
    """
    if found.pool is None:
        return np.zeros(prompt.shape)
    r, inputs = found.resolved, found.inputs
    flying = inputs.concurrent_steps * (1 + inputs.num_speculative_tokens)
    pairs, back = np.unique(np.stack([prompt, output]), axis=1, return_inverse=True)
    tokens = np.ceil(pairs[0][:, None] + pairs[1][:, None] * PROGRESS)
    held = blocks_of_lengths(found.grouping, tokens, inputs, r.release.kv, in_flight=flying)
    once = shared_blocks(found.grouping, np.clip(pairs[0] - 1.0, 0.0, prefix_tokens), inputs)
    usable = found.pool.num_blocks - (1 if r.release.runner == "v1" else 0)
    own = np.maximum(held - once[:, None], 1.0).mean(1)
    return np.asarray((np.maximum(usable - once, 0.0) / own)[back.ravel()])


def _length(scenario: Scenario, key: str) -> float:
    value = getattr(scenario, key)
    if value is None:
        raise CapacityError(f"{key} is missing; expected a mean length in tokens", field=key)
    return float(value.mean)


@lru_cache(maxsize=2048)
def _plan(text: str, own_length: bool) -> tuple[Plan, tuple[str, ...]]:
    """The plan of a scenario without its workload. Releases that the planner does not know plan as the newest."""
    raw = json.loads(text)
    scenario = Scenario.parse(raw)
    release, notes = scenario.engine_version, []
    if release is not None and scenario.engine != "vllm":
        scenario = replace(scenario, engine_version=None)
    try:
        found = _fitting(scenario, own_length)
    except CapacityError as error:
        if error.field != "engine_version" or not _plausible(release):
            raise
        stand_in = min(known_releases(), key=_numbers) if "older than any" in str(error) else None
        rules = f"of vLLM {stand_in}" if stand_in else "of the newest known vLLM"
        notes.append(f"release {release!r} is not known: memory is planned with the rules {rules}")
        found = _fitting(replace(scenario, engine_version=stand_in), own_length)
    if found.fit == "no" and scenario.engine != "vllm" and scenario.gpu_memory_utilization is None:
        fuller = _fitting(replace(scenario, gpu_memory_utilization=OTHER_ENGINES_UTILIZATION), own_length)
        if fuller.fit != "no":
            notes.append(
                f"memory is planned at {OTHER_ENGINES_UTILIZATION:.0%} of the GPU: under vLLM's default share this does not "
                f"fit, and {scenario.engine} sets its own"
            )
            found = fuller
    return found, tuple(notes)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".")[:3])


def _fitting(scenario: Scenario, own_length: bool) -> Plan:
    """With no max_model_len given, the model's own limit may be shorter than the power of two that was tried."""
    try:
        return plan(scenario)
    except CapacityError as error:
        if error.field != "max_model_len" or own_length:
            raise
        return plan(replace(scenario, max_model_len=None))


def _plausible(release: str | None) -> bool:
    """A release name that is only unknown (0.6.3, nightly-5b8c, gpt-oss-dev), not nonsense."""
    text = (release or "").strip().lower()
    return any(ch.isdigit() for ch in text) or any(
        word in text for word in ("nightly", "dev", "main", "latest", "master")
    )
