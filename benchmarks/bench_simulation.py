"""How fast the simulator is, and how time and memory grow with the number of requests. One core.

Source: generated requests of 200 output tokens on a pool that runs 200 of them; the Azure conversation trace where it
lies beside the repository. Each size runs in a process of its own so that peak memory is that run's.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from capacity.simulate_cli import prepare, run_simulate, simulate

AZURE = Path(__file__).parents[2] / "shared" / "traces" / "azure_llm_2023_conv.csv"
SIZES = (1_000, 10_000, 100_000, 1_000_000)


def pool_of_200(count: int) -> dict[str, Any]:
    """Poisson traffic that keeps about 200 requests of 512 + 200 tokens running."""
    return {
        "num_blocks": 10_000,
        "block_size": 16,
        "max_num_seqs": 200,
        "max_num_batched_tokens": 8192,
        "step_time": {
            "fixed_s": 0.008,
            "per_prefill_token_s": 2e-5,
            "per_decode_token_s": 2e-5,
            "per_context_token_s": 1e-7,
        },
        "workload": {
            "arrival": {"process": "poisson", "rate_rps": 29},
            "prompt_tokens": {"distribution": "lognormal", "mean": 512, "cv": 0.6},
            "output_tokens": 200,
            "num_requests": count,
        },
    }


def azure() -> dict[str, Any]:
    """The hour of conversations on one engine with 40,000 blocks."""
    return {
        "num_blocks": 40_000,
        "block_size": 16,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "step_time": {
            "fixed_s": 0.01,
            "per_prefill_token_s": 3e-5,
            "per_decode_token_s": 3e-5,
            "per_context_token_s": 8e-8,
        },
    }


def measure(what: str, repeats: int) -> dict[str, float]:
    """Best of ``repeats`` runs in this process: wall and CPU seconds, requests, peak MB."""
    best: dict[str, float] = {}
    for _ in range(repeats):
        begin, cpu = time.perf_counter(), time.process_time()
        if what == "azure":
            answer = run_simulate(azure(), trace_text=AZURE.read_text())
            running, finished = answer["steps"]["mean_running"], answer["requests"]["finished"]
        else:
            run = simulate(prepare(pool_of_200(int(what))))
            meter = run.engines[0].meter
            running, finished = meter.running_area / meter.busy_ticks, meter.finished
        wall, spent = time.perf_counter() - begin, time.process_time() - cpu
        if not best or spent < best["cpu_s"]:
            best = {"wall_s": wall, "cpu_s": spent, "finished": finished, "running": running}
    best["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return best


def in_process(what: str, repeats: int = 1) -> dict[str, float]:
    """``measure`` in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_simulation", "--measure", what, str(repeats)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> str:
    """Print and return the table as markdown."""
    lines = [
        "| run | requests | mean running | wall s | CPU s | requests per CPU second | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for size in SIZES:
        found = in_process(str(size), repeats=3 if size <= 10_000 else 1)
        lines.append(_row("200 output tokens, pool of 200", found))
    if AZURE.exists():
        lines.append(
            _row("Azure conversation trace, reading and report included", in_process("azure", repeats=3))
        )
    text = "\n".join(lines)
    print(text)
    return text


def _row(name: str, found: dict[str, float]) -> str:
    return (
        f"| {name} | {found['finished']:,.0f} | {found['running']:.0f} | {found['wall_s']:.2f} | {found['cpu_s']:.2f} | "
        f"{found['finished'] / found['cpu_s']:,.0f} | {found['peak_mb']:.0f} MB |"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
    else:
        main()
