"""The simulator against recorded vLLM runs with per-request timings: out of the box, and as ``calibrate`` makes it.

Source of the runs: LLMServingSim (MIT), vLLM 0.19, 300 ShareGPT requests at 10 per second; read from the folder beside
the repository, never shipped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capacity.calibrate_cli import run_calibrate
from capacity.simulate_cli import prepare, simulate
from capacity.simulation.run import Run

RUNS = Path(__file__).parents[2] / "shared" / "traces" / "vllm_runs_llmservingsim"
GPUS = {"RTX4090": "rtx4090", "RTXPRO6000": "rtxpro6000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recorded run: its timings as text, running and waiting once a second, and what its meta.json says."""

    name: str
    timings: str
    seconds: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    meta: dict[str, Any]


def folders() -> list[Path]:
    """The recorded runs beside the repository; none without them."""
    return (
        sorted(path for path in RUNS.glob("*") if (path / "requests.jsonl").exists()) if RUNS.exists() else []
    )


def recorded(folder: Path) -> Recorded:
    """Read one run."""
    table = np.genfromtxt(folder / "timeseries.csv", delimiter=",", names=True)
    return Recorded(
        name=folder.name,
        timings=(folder / "requests.jsonl").read_text(),
        seconds=table["t"],
        running=table["running"],
        waiting=table["waiting"],
        meta=json.loads((folder / "meta.json").read_text()),
    )


def scenario(run: Recorded) -> dict[str, Any]:
    """The scenario of a recorded run from what its meta.json says, step time from the performance model."""
    engine = run.meta["engine_kwargs"]
    gpu, _, _ = run.name.partition("_")
    found: dict[str, Any] = {
        "model": engine["model"],
        "gpu": GPUS.get(gpu, gpu.lower()),
        "engine_version": run.meta["vllm_version"],
        "tensor_parallel_size": engine["tensor_parallel_size"],
        "max_num_seqs": engine["max_num_seqs"],
        "max_num_batched_tokens": engine["max_num_batched_tokens"],
        "max_model_len": engine["max_model_len"] or 32_768,
    }
    blocks = (run.meta.get("kv_cache") or {}).get("num_gpu_blocks")
    if blocks:
        found["num_blocks"] = blocks - 1
    return found


def over_time(run: Recorded, simulated: Run) -> tuple[float, float]:
    """Mean absolute differences of running and of waiting, by their recorded peaks."""
    timeline = simulated.engines[0].meter.timeline.as_columns()
    place = np.clip(np.searchsorted(timeline["t_s"], run.seconds, side="right") - 1, 0, None)
    found = []
    for name, truth in (("running", run.running), ("waiting", run.waiting)):
        values = np.asarray(timeline[name])[place]
        values[run.seconds > simulated.end_s] = 0
        found.append(float(np.abs(values - truth).mean() / truth.max()))
    return found[0], found[1]


def checked(folder: Path) -> tuple[dict[str, Any], tuple[float, float], tuple[float, float]]:
    """``calibrate``'s answer for a run, and running and waiting over time before and after."""
    run = recorded(folder)
    answer = run_calibrate(scenario(run), measured_text=run.timings)
    after = simulate(prepare(answer["scenario"]))
    before = simulate(prepare({**answer["scenario"], "step_time": answer["step_time_before"]}))
    return answer, over_time(run, before), over_time(run, after)


def main() -> str:
    """Print and return the table as markdown."""
    lines = [
        "| run | step time | TTFT mean / p99 | TPOT mean / p99 | E2E mean / p99 | running / waiting over time | preemptions |",
        "|---|---|---|---|---|---|---|",
    ]
    for folder in folders():
        answer, before, after = checked(folder)
        found = answer["parameters"]
        how = f"calibrated: per token x {found['per_token']:.2f}, fixed x {found['fixed']:.2f}"
        lines.append(_row(folder.name, "out of the box", answer["error_before"], before))
        lines.append(_row(folder.name, how, answer["error_after"], after))
    if len(lines) == 2:
        lines.append("| no recorded runs beside the repository | | | | | | |")
    text = "\n".join(lines)
    print(text)
    return text


def _row(name: str, what: str, error: dict[str, Any], times: tuple[float, float]) -> str:
    pairs = (f"{error[f'{key}_mean']:+.1%} / {error[f'{key}_p99']:+.1%}" for key in ("ttft", "tpot", "e2e"))
    return f"| {name} | {what} | {' | '.join(pairs)} | {times[0]:.1%} / {times[1]:.1%} | {error['preemptions']} |"


if __name__ == "__main__":
    main()
