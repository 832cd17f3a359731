"""The simulator against recorded vLLM runs with per-request timings: out of the box, and with two calibrated parameters.

Source of the runs: LLMServingSim (MIT), vLLM 0.19, 300 ShareGPT requests at 10 per second; read from the folder beside
the repository, never shipped. The two parameters scale the per-token terms and the fixed terms of the step time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from capacity.simulate_cli import Prepared, prepare, simulate
from capacity.simulation.run import Run
from capacity.simulation.step_time import StepTime
from capacity.workload import Requests

RUNS = Path(__file__).parents[2] / "shared" / "traces" / "vllm_runs_llmservingsim"
GPUS = {"RTX4090": "rtx4090", "RTXPRO6000": "rtxpro6000"}
SPAN = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recorded run: arrivals and lengths, first and last token, running and waiting once a second."""

    name: str
    requests: Requests
    first_token_s: np.ndarray
    end_s: np.ndarray
    seconds: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative errors (0.01 = 1 %) of a simulated run, and mean absolute error over time by the peak."""

    ttft_mean: float
    ttft_p99: float
    tpot_mean: float
    tpot_p99: float
    e2e_mean: float
    e2e_p99: float
    running: float
    waiting: float
    preemptions: int

    @property
    def score(self) -> float:
        """What calibration makes small: the errors with a bar, each by its bar."""
        return abs(self.e2e_mean) / 0.03 + abs(self.ttft_p99) / 0.05 + abs(self.tpot_p99) / 0.05


def recorded(folder: Path) -> Recorded:
    """Read one run. Arrival times are on the wall clock; the smallest gap to the engine's queue time ties the clocks."""
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines() if line.strip()]
    wall = np.array([row["arrival_time"] for row in rows])
    offset = float(min(row["queued_ts"] - row["arrival_time"] for row in rows))
    zero = float(wall.min() + offset)
    order = np.argsort(wall, kind="stable")

    def column(name: str) -> np.ndarray:
        return np.array([row[name] for row in rows], dtype=float)[order]

    table = np.genfromtxt(folder / "timeseries.csv", delimiter=",", names=True)
    return Recorded(
        name=folder.name,
        requests=Requests.of(
            arrival_s=wall[order] + offset - zero,
            prompt_tokens=column("input_toks").astype(int),
            output_tokens=column("output_toks").astype(int),
        ),
        first_token_s=column("first_token_ts") - zero,
        end_s=column("last_token_ts") - zero,
        seconds=table["t"],
        running=table["running"],
        waiting=table["waiting"],
        meta=json.loads((folder / "meta.json").read_text()),
    )


def prepared(run: Recorded) -> Prepared:
    """The scenario of a recorded run from what its meta.json says, step time from the performance model."""
    engine = run.meta["engine_kwargs"]
    gpu, _, _ = run.name.partition("_")
    scenario: dict[str, Any] = {
        "model": engine["model"],
        "gpu": GPUS.get(gpu, gpu.lower()),
        "engine_version": run.meta["vllm_version"],
        "tensor_parallel_size": engine["tensor_parallel_size"],
        "max_num_seqs": engine["max_num_seqs"],
        "max_num_batched_tokens": engine["max_num_batched_tokens"],
        "max_model_len": engine["max_model_len"] or 32_768,
        "workload": {
            "requests": [
                {"arrival_s": float(at), "prompt_tokens": int(prompt), "output_tokens": int(output)}
                for at, prompt, output in zip(
                    run.requests.arrival_s,
                    run.requests.prompt_tokens,
                    run.requests.output_tokens,
                    strict=True,
                )
            ]
        },
    }
    blocks = (run.meta.get("kv_cache") or {}).get("num_gpu_blocks")
    if blocks:
        scenario["num_blocks"] = blocks - 1
    return prepare(scenario)


def errors(run: Recorded, simulated: Run) -> Errors:
    """How far a simulated run is from the recorded one."""
    record, requests = simulated.record, run.requests
    arrival, output = requests.arrival_s, requests.output_tokens

    def figures(first: np.ndarray, end: np.ndarray) -> np.ndarray:
        ttft, e2e = first - arrival, end - arrival
        several = output > 1
        tpot = (end - first)[several] / (output[several] - 1)
        return np.array(
            [
                ttft.mean(),
                np.quantile(ttft, 0.99),
                tpot.mean(),
                np.quantile(tpot, 0.99),
                e2e.mean(),
                np.quantile(e2e, 0.99),
            ]
        )

    got = figures(np.frombuffer(record.first_token_s), np.frombuffer(record.end_s))
    off = got / figures(run.first_token_s, run.end_s) - 1
    timeline = simulated.engines[0].meter.timeline.as_columns()
    place = np.clip(np.searchsorted(timeline["t_s"], run.seconds, side="right") - 1, 0, None)
    over_time = []
    for name, truth in (("running", run.running), ("waiting", run.waiting)):
        values = np.asarray(timeline[name])[place]
        values[run.seconds > simulated.end_s] = 0
        over_time.append(float(np.abs(values - truth).mean() / truth.max()))
    return Errors(
        ttft_mean=float(off[0]),
        ttft_p99=float(off[1]),
        tpot_mean=float(off[2]),
        tpot_p99=float(off[3]),
        e2e_mean=float(off[4]),
        e2e_p99=float(off[5]),
        running=over_time[0],
        waiting=over_time[1],
        preemptions=simulated.engines[0].meter.preemptions,
    )


def with_step_time(found: Prepared, step: StepTime) -> Prepared:
    return replace(found, engine=replace(found.engine, step_time=step))


def calibrate(run: Recorded, found: Prepared) -> tuple[float, float, Errors]:
    """(work, overhead, errors): the two factors on the step time that bring the simulation closest to the run."""
    base = found.engine.step_time

    def at(work: float, overhead: float) -> Errors:
        return errors(run, simulate(with_step_time(found, base.scaled(work=work, overhead=overhead))))

    return descend(at)


def descend(at: Callable[[float, float], Errors]) -> tuple[float, float, Errors]:
    """Walk downhill from (1, 1) in steps that halve."""
    work = overhead = 1.0
    best = at(work, overhead)
    step = 0.2
    while step > SPAN:
        moves = ((step, 0.0), (-step, 0.0), (0.0, step), (0.0, -step), (step, -step), (-step, step))
        for more_work, more_overhead in moves:
            if work + more_work <= 0 or overhead + more_overhead <= 0:
                continue
            tried = at(work + more_work, overhead + more_overhead)
            if tried.score < best.score:
                work, overhead, best = work + more_work, overhead + more_overhead, tried
                break
        else:
            step /= 2
    return work, overhead, best


def main() -> str:
    """Print and return the table as markdown."""
    lines = [
        "| run | step time | TTFT mean / p99 | TPOT mean / p99 | E2E mean / p99 | running / waiting over time | preemptions |",
        "|---|---|---|---|---|---|---|",
    ]
    folders = (
        sorted(path for path in RUNS.glob("*") if (path / "requests.jsonl").exists()) if RUNS.exists() else []
    )
    for folder in folders:
        run = recorded(folder)
        found = prepared(run)
        lines.append(_row(run.name, "out of the box", errors(run, simulate(found))))
        work, overhead, best = calibrate(run, found)
        lines.append(_row(run.name, f"calibrated: per token x {work:.2f}, fixed x {overhead:.2f}", best))
    if not folders:
        lines.append("| no recorded runs beside the repository | | | | | | |")
    text = "\n".join(lines)
    print(text)
    return text


def _row(name: str, what: str, e: Errors) -> str:
    return (
        f"| {name} | {what} | {e.ttft_mean:+.1%} / {e.ttft_p99:+.1%} | {e.tpot_mean:+.1%} / {e.tpot_p99:+.1%} | "
        f"{e.e2e_mean:+.1%} / {e.e2e_p99:+.1%} | {e.running:.1%} / {e.waiting:.1%} | {e.preemptions} |"
    )


if __name__ == "__main__":
    main()
