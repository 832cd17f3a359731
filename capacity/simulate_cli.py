"""The verb ``simulate``: a scenario and perhaps a trace in, the run in figures out.

A scenario gives num_blocks, block_size and step_time, or the planner's keys. Left out: files (the command
line reads them), drawing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capacity.errors import CapacityError
from capacity.request_trace import parse_trace
from capacity.scenario import field_table
from capacity.scenario_keys import for_verb
from capacity.simulation import scenario as keys
from capacity.simulation.clients import Client
from capacity.simulation.fleet import FleetSettings
from capacity.simulation.report import Slo, report
from capacity.simulation.run import ClosedLoop, Run
from capacity.simulation.settings import EngineSettings, SwapTier
from capacity.simulation.simulator import Simulation
from capacity.simulation.workload_keys import WORKLOAD_KEYS, length_of, read_workload
from capacity.workload import Requests

ASSUMED_BLOCK_BYTES = 2 << 20
ASSUMED_LINK_BYTES_PER_S = 25e9
ASSUMED_HOST_FACTOR = 1
MOST_LOGGED = 20_000
TRACE_KEYS = ("speedup", "max_requests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A checked simulation scenario with its requests."""

    engine: EngineSettings
    requests: Requests
    closed_loop: ClosedLoop | None
    client: Client
    fleet: FleetSettings
    admission: Any
    slo: Slo
    warmup_s: float
    until_s: float | None
    notes: tuple[str, ...]
    timeline: bool = False
    requests_detail: bool = False
    events: bool = False


def run_simulate(
    scenario: dict[str, Any],
    *,
    trace_text: str | None = None,
    seed: int | None = None,
    progress: Callable[[float], bool] | None = None,
) -> dict[str, Any]:
    """The run of a scenario as a JSON object. Raises CapacityError for bad input.

    ``seed`` None: the scenario's own, else 0.

    >>> answer = run_simulate({"num_blocks": 100, "block_size": 16, "step_time": {"fixed_s": 0.02},
    ...     "workload": {"requests": [{"arrival_s": 0, "prompt_tokens": 200, "output_tokens": 50}]}})
    >>> answer["requests"]["finished"], round(answer["e2e_s"]["mean"], 6), answer["blocks"]["free_at_end"]
    (1, 1.0, 100)
    """
    started = time.perf_counter()
    if seed is None:
        seed = keys.mapping(scenario, "scenario").get("seed", 0)
    found = prepare(scenario, trace_text=trace_text, seed=seed)
    run = simulate(found, seed=seed, progress=progress)
    answer = report(
        run,
        slo=found.slo,
        warmup_s=found.warmup_s,
        timeline=found.timeline,
        gantt=found.requests_detail,
        notes=found.notes,
    )
    if found.events and run.record.log is not None:
        answer["events"] = [
            {
                "t_s": event.at_s,
                "event": event.kind,
                "request": event.request,
                "value": event.value,
                "replica": event.replica,
            }
            for event in sorted(run.record.log, key=lambda event: event.ticks)
        ]
    answer["settings"] = _settings(found, seed)
    answer["wall_s"] = time.perf_counter() - started
    return answer


def simulate(
    found: Prepared, *, seed: int = 0, progress: Callable[[float], bool] | None = None, log: bool = False
) -> Run:
    """Run a prepared scenario. Policies are made anew from their keys, so the same call gives the same run."""
    simulation = Simulation(
        found.engine,
        found.requests,
        seed=seed,
        policies=keys.policies(found.admission),
        client=found.client,
        fleet=found.fleet,
        closed_loop=found.closed_loop,
        log=log or found.events,
        until_s=found.until_s,
        progress=progress,
    )
    return simulation.run()


def _shared_in_part(requests: Requests) -> list[str]:
    """What to say where prompts are shorter than the prefix that they share."""
    if requests.prefixes is None:
        return []
    shared = requests.prefix_key_tokens
    short = int(
        sum(
            prefix is not None and prompt < shared
            for prefix, prompt in zip(requests.prefixes, requests.prompt_tokens, strict=True)
        )
    )
    if not short:
        return []
    return [
        f"{short:,} of {len(requests):,} prompts are shorter than the shared prefix of {shared:,} tokens: they share the whole "
        "blocks of it that they hold"
    ]


def prepare(scenario: Mapping[str, Any], *, trace_text: str | None = None, seed: int = 0) -> Prepared:
    """Check a scenario and make its requests."""
    values, foreign = for_verb(keys.mapping(scenario, "scenario"), "simulate")
    direct = "num_blocks" in values
    plan_keys = field_table()
    valid = (*keys.SIMULATION_KEYS, *(key for key in plan_keys if key not in keys.SIMULATION_KEYS))
    keys.refuse_unknown(
        values, keys.SIMULATION_KEYS if direct and not _plans(values) else valid, "the scenario"
    )
    _seed(seed)
    requests, closed_loop = _requests(values, trace_text, seed)
    if direct and not _plans(values):
        engine, notes, replicas = _direct(values, shares=requests.prefixes is not None)
    else:
        engine, notes, replicas = _from_plan(values, requests)
    if engine.preemption_mode == "swap" and engine.swap is None:
        tier = SwapTier(
            host_blocks=engine.num_blocks * ASSUMED_HOST_FACTOR,
            block_s=ASSUMED_BLOCK_BYTES / ASSUMED_LINK_BYTES_PER_S,
        )
        engine = replace(engine, swap=tier)
        notes.append(
            f"swap is not given: assumed {tier.host_blocks:,} host blocks (as many as the pool) and "
            f"{tier.block_s * 1e6:.0f} us per block each way (2 MiB over 25 GB/s)"
        )
    if trace_text is None:
        notes.extend(_shared_in_part(requests))
    keys.policies(values.get("admission"))  # checked now, made anew for each run
    if values.get("events") and len(requests) > MOST_LOGGED:
        raise CapacityError(
            f"events are logged for at most {MOST_LOGGED:,} requests; the run has {len(requests):,}",
            field="events",
        )
    return Prepared(
        engine=engine,
        requests=requests,
        closed_loop=closed_loop,
        client=keys.client(values.get("client")),
        fleet=keys.fleet(values.get("fleet"), replicas=replicas),
        admission=values.get("admission"),
        slo=keys.slo(values.get("slo")),
        warmup_s=keys.number(values.get("warmup_s", 0.0), "warmup_s"),
        until_s=keys.number(values.get("until_s"), "until_s", low=1e-9, high=1e9, optional=True),
        notes=(*foreign, *notes),
        timeline=keys.flag(values.get("timeline"), "timeline", False),
        requests_detail=keys.flag(values.get("requests_detail"), "requests_detail", False),
        events=keys.flag(values.get("events"), "events", False),
    )


def _preemption(values: Mapping[str, Any]) -> Any:
    given = values.get("preemption_mode")
    return "recompute" if given is None else given


def _plans(values: Mapping[str, Any]) -> bool:
    return any(key in values for key in ("model", "model_config", "gpu"))


def _seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise CapacityError(f"seed is {keys.seen(seed)}; expected a whole number, 0 or more", field="seed")


def _limits(values: Mapping[str, Any], seats: int, budget: int) -> dict[str, int]:
    """max_num_seqs and max_num_batched_tokens as given, or as the engine would set them."""
    given = {
        name: keys.number(values[name], name, whole=True, low=1, high=most)
        for name, most in (("max_num_seqs", 1_000_000), ("max_num_batched_tokens", 10_000_000))
        if values.get(name) is not None
    }
    budget = given.get("max_num_batched_tokens", max(budget, given.get("max_num_seqs", 1)))
    return {"max_num_seqs": given.get("max_num_seqs", min(seats, budget)), "max_num_batched_tokens": budget}


def _overlap(values: Mapping[str, Any], step: Any) -> Any:
    """The step time with the scenario's calibration factors; ``async_scheduling`` decides whether host time hides."""
    step = keys.scaled(step, values.get("step_time_factors"))
    if values.get("async_scheduling") is None:
        return step
    return replace(step, overlap=keys.flag(values["async_scheduling"], "async_scheduling", True))


def _direct(values: Mapping[str, Any], *, shares: bool) -> tuple[EngineSettings, list[str], int]:
    if values.get("step_time") is None:
        raise CapacityError(
            "step_time is missing; give fixed_s, per_prefill_token_s, per_decode_token_s and per_context_token_s, or "
            "the planner's keys (model, gpu)",
            field="step_time",
        )
    engine = EngineSettings(
        num_blocks=keys.number(values.get("num_blocks"), "num_blocks", whole=True, low=1, high=1e9),
        block_size=keys.number(values.get("block_size", 16), "block_size", whole=True, low=1, high=65_536),
        step_time=_overlap(values, keys.step_time(values["step_time"])),
        scheduler=keys.scheduler(values.get("scheduler"), _limits(values, 256, 8192)),
        preemption_mode=_preemption(values),
        swap=keys.swap(values["swap"]) if values.get("swap") is not None else None,
        enable_prefix_caching=keys.flag(values.get("enable_prefix_caching"), "enable_prefix_caching", shares),
        max_model_len=keys.number(
            values.get("max_model_len"), "max_model_len", whole=True, low=1, high=1e9, optional=True
        ),
    )
    return engine, [], 1


def _from_plan(values: Mapping[str, Any], requests: Requests) -> tuple[EngineSettings, list[str], int]:
    from capacity.simulation.from_plan import planned_engine

    own = set(keys.SIMULATION_KEYS) - set(field_table())
    raw = {key: value for key, value in values.items() if key not in own}
    mean = [float(np.mean(column)) if len(requests) else 1.0 for column in _lengths(requests)]
    made = planned_engine(
        raw, prompt_tokens=mean[0], output_tokens=mean[1], needs_step_time=values.get("step_time") is None
    )
    blocks = made.num_blocks
    if values.get("num_blocks") is not None:
        blocks = keys.number(values["num_blocks"], "num_blocks", whole=True, low=1, high=1e9)
    if blocks < 1:
        raise CapacityError("the plan does not fit: there is no block to simulate with", field="gpu")
    step = made.step_time if values.get("step_time") is None else keys.step_time(values["step_time"])
    assert step is not None
    swap = keys.swap(values["swap"]) if values.get("swap") is not None else None
    if swap is None and values.get("preemption_mode") == "swap":
        swap = SwapTier(host_blocks=blocks, block_s=made.block_bytes / ASSUMED_LINK_BYTES_PER_S)
    engine = EngineSettings(
        num_blocks=blocks,
        block_size=made.layout.block_size,
        step_time=_overlap(values, step),
        scheduler=keys.scheduler(
            values.get("scheduler"), _limits(values, made.max_num_seqs, made.max_num_batched_tokens)
        ),
        preemption_mode=_preemption(values),
        swap=swap,
        layout=made.layout,
        enable_prefix_caching=made.prefix_caching,
        max_model_len=made.max_model_len,
    )
    return engine, list(made.notes), made.data_parallel


def _lengths(requests: Requests) -> tuple[np.ndarray, np.ndarray]:
    used = requests.prompt_tokens > 0
    return (
        (requests.prompt_tokens[used], requests.output_tokens[used])
        if used.any()
        else (requests.prompt_tokens, requests.output_tokens)
    )


def _requests(
    values: Mapping[str, Any], trace_text: str | None, seed: int
) -> tuple[Requests, ClosedLoop | None]:
    given = values.get("workload")
    if trace_text is not None:
        if not isinstance(trace_text, str):
            raise CapacityError("the trace is not text; expected CSV or JSON lines", field="trace")
        found = parse_trace(trace_text)
        extra = keys.mapping(given, "workload") if given is not None else {}
        keys.refuse_unknown(extra, (*TRACE_KEYS, *WORKLOAD_KEYS), "workload (with a trace)")
        replaced = [key for key in extra if key not in TRACE_KEYS]
        if replaced:
            note = f"the trace takes the place of the workload's {', '.join(replaced)}"
            found = replace(found, notes=(*found.notes, note))
        return _cut(found, extra), None
    if given is None:
        raise CapacityError(
            "workload is missing; give arrival and lengths, requests, or a trace", field="workload"
        )
    lengths = {
        name: length_of(values[name], name)
        for name in ("prompt_tokens", "output_tokens")
        if values.get(name) is not None
    }
    return read_workload(given, seed=seed, lengths=lengths)


def _cut(found: Requests, extra: Mapping[str, Any]) -> Requests:
    """A trace played faster (``speedup``) or only its first ``max_requests``."""
    count = len(found)
    if extra.get("max_requests") is not None:
        count = min(count, keys.number(extra["max_requests"], "workload.max_requests", whole=True, low=1))
    speedup = keys.number(extra.get("speedup", 1.0), "workload.speedup", low=1e-6, high=1e6)
    return replace(
        found,
        arrival_s=found.arrival_s[:count] / speedup,
        prompt_tokens=found.prompt_tokens[:count],
        output_tokens=found.output_tokens[:count],
        priority=found.priority[:count],
        prefixes=None if found.prefixes is None else found.prefixes[:count],
        sessions=None if found.sessions is None else found.sessions[:count],
    )


def _settings(found: Prepared, seed: int) -> dict[str, Any]:
    """What was simulated, defaults included."""
    engine, scheduler, step = found.engine, found.engine.scheduler, found.engine.step_time
    return {
        "rules": scheduler.rules,
        "scheduling_policy": scheduler.scheduling_policy,
        "preemption_mode": engine.preemption_mode,
        "num_blocks": engine.num_blocks,
        "block_size": engine.block_size,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": engine.max_model_len,
        "replicas": found.fleet.replicas,
        "router": found.fleet.router,
        "step_time": {
            name: getattr(step, name)
            for name in ("fixed_s", "per_prefill_token_s", "per_decode_token_s", "per_context_token_s")
        },
        "seed": seed,
    }
