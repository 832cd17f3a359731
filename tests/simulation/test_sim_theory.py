"""Queueing theory: waits of M/M/1, M/D/1 and M/M/c, Little's law, conservation, within stated tolerances."""

from __future__ import annotations

import math

import numpy as np
import pytest

from capacity.simulation.report import Table, report
from capacity.simulation.run import Run
from capacity.simulation.settings import EngineSettings, SchedulerSettings
from capacity.simulation.simulator import Simulation
from capacity.simulation.step_time import StepTime
from capacity.workload import ArrivalProcess, Lengths, Requests, Workload

STEP_S = 0.001
COUNT = 40_000


def queue(rate: float, *, servers: int, outputs: Lengths, seed: int = 3) -> Run:
    """A pool of ``servers`` seats with steps of 1 ms whatever the batch: one token is one millisecond of service."""
    workload = Workload(
        arrival=ArrivalProcess(rate_rps=rate),
        prompt_tokens=Lengths(mean=1),
        output_tokens=outputs,
        num_requests=COUNT,
    )
    settings = EngineSettings(
        num_blocks=1_000_000,
        step_time=StepTime(fixed_s=STEP_S),
        scheduler=SchedulerSettings(max_num_seqs=servers, max_num_batched_tokens=8192),
    )
    return Simulation(settings, workload.requests(seed)).run()


def mean_wait(run: Run) -> float:
    waits = Table(run).queue_s
    return float(waits[len(waits) // 20 :].mean())


def test_m_m_1_wait() -> None:
    mean_s, rho = 0.1, 0.7
    run = queue(rho / mean_s, servers=1, outputs=Lengths(distribution="exponential", mean=100))
    # exponential lengths rounded up to whole tokens: half a token longer on average
    service = mean_s + STEP_S / 2
    load = rho / mean_s * service
    expected = load * service / (1 - load)
    assert mean_wait(run) == pytest.approx(expected, rel=0.08)


def test_m_d_1_wait_is_half_of_it() -> None:
    mean_s, rho = 0.1, 0.7
    run = queue(rho / mean_s, servers=1, outputs=Lengths(mean=100))
    expected = rho * mean_s / (2 * (1 - rho))
    assert mean_wait(run) == pytest.approx(expected, rel=0.06)


def test_m_m_c_wait() -> None:
    servers, mean_s, rho = 4, 0.1, 0.8
    run = queue(
        servers * rho / mean_s, servers=servers, outputs=Lengths(distribution="exponential", mean=100)
    )
    service = mean_s + STEP_S / 2
    offered = servers * rho / mean_s * service
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    erlang_c = last / (sum(offered**k / math.factorial(k) for k in range(servers)) + last)
    expected = erlang_c * service / (servers - offered)
    # plus half a step: a request starts at a step boundary
    assert mean_wait(run) == pytest.approx(expected + STEP_S / 2, rel=0.08)


def test_littles_law() -> None:
    run = queue(28, servers=4, outputs=Lengths(distribution="exponential", mean=100))
    table = Table(run)
    meter = run.engines[0].meter
    span = run.end_s - float(table.arrival_s[0])
    inside = float(np.nansum(table.end_s - table.scheduled_s)) / span
    assert meter.running_area / 1e15 / span == pytest.approx(inside, rel=1e-6)
    answer = report(run)
    assert answer["request_rate_rps"] * answer["e2e_s"]["mean"] == pytest.approx(
        float(np.nansum(table.e2e_s)) / span, rel=1e-6
    )


def test_work_is_conserved() -> None:
    run = queue(28, servers=4, outputs=Lengths(distribution="exponential", mean=100))
    meter = run.engines[0].meter
    assert meter.output_tokens == int(run.requests.output_tokens.sum())
    assert meter.prompt_tokens == int(run.requests.prompt_tokens.sum()) + meter.recomputed_tokens
    assert report(run)["itl_s"]["count"] == meter.output_tokens - len(run.requests)


def test_mean_gap_between_tokens_matches_tpot() -> None:
    requests = Requests.of(arrival_s=[0.0] * 5, prompt_tokens=[10] * 5, output_tokens=[101] * 5)
    settings = EngineSettings(num_blocks=1000, step_time=StepTime(fixed_s=0.01, per_context_token_s=1e-5))
    answer = report(Simulation(settings, requests).run())
    assert answer["itl_s"]["mean"] == pytest.approx(answer["tpot_s"]["mean"], rel=1e-9)


def test_continuous_batching_beats_static_batching() -> None:
    workload = Workload(
        arrival=ArrivalProcess(rate_rps=20),
        prompt_tokens=Lengths(mean=100),
        output_tokens=Lengths(distribution="lognormal", mean=150, cv=1.2),
        num_requests=600,
    )
    rates = {}
    for rules in ("vllm-v1", "static", "request-level"):
        settings = EngineSettings(
            num_blocks=2000,
            step_time=StepTime(fixed_s=0.01, per_prefill_token_s=1e-5),
            scheduler=SchedulerSettings(rules=rules, max_num_seqs=32),  # type: ignore[arg-type]
        )
        rates[rules] = report(Simulation(settings, workload.requests(1)).run())
    assert rates["vllm-v1"]["output_tokens_per_s"] > 1.5 * rates["static"]["output_tokens_per_s"]
    assert rates["request-level"]["ttft_s"]["mean"] > rates["static"]["ttft_s"]["mean"]


@pytest.mark.parametrize("seed", range(3))
def test_same_seed_same_run(seed: int) -> None:
    workload = Workload(arrival=ArrivalProcess(process="gamma", rate_rps=5, cv=3), num_requests=200)
    settings = EngineSettings(num_blocks=300, step_time=StepTime(fixed_s=0.02))
    runs = [Simulation(settings, workload.requests(seed), seed=seed).run() for _ in range(2)]
    assert runs[0].record.end_s == runs[1].record.end_s
    other = Simulation(settings, workload.requests(seed + 100), seed=seed).run()
    assert runs[0].record.end_s != other.record.end_s
