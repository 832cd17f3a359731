"""Speed of the performance model: one estimate, a grid, a sizing run, and the command line.

Prints a table against the targets. Times are CPU time of this process (it is single-threaded), so that a busy machine
does not change them; the best of a few runs.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable

import numpy as np

from capacity.cli import main as command
from capacity.estimate_cli import run_estimate, run_size
from capacity.scenario import Scenario
from capacity.speed_grid import Axis, speed_grid

SCENARIO = {
    "model": "llama-3.1-70b",
    "gpu": "h100-sxm",
    "tensor_parallel_size": 4,
    "weight_format": "fp8",
    "prompt_tokens": 1024,
    "output_tokens": 256,
}


def best(work: Callable[[], object], runs: int = 5) -> float:
    """Smallest of ``runs`` CPU times in seconds."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def jsonl_rows_per_s(count: int = 2000) -> float:
    """Rows/s of ``estimate --jsonl`` in this process, over 60 deployments in turn."""
    models = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "gpt-oss-120b", "deepseek-ai/DeepSeek-V3")
    lines = [
        json.dumps(
            {
                **SCENARIO,
                "model": models[i % 5],
                "weight_format": None,
                "gpu": ("h200", "b200", "mi300x")[i % 3],
                "tensor_parallel_size": (8, 4)[i % 2],
                "prompt_tokens": 512 * (1 + i % 2),
                "concurrency": 1 + i % 64,
            }
        )
        for i in range(count)
    ]
    out = io.StringIO()
    start = time.process_time()
    command(["estimate", "--jsonl"], stdin=io.StringIO("\n".join(lines)), stdout=out)
    return count / (time.process_time() - start)


def main() -> str:
    """Prints the table and returns it."""
    run_estimate({**SCENARIO, "concurrency": 8})
    one = best(lambda: [run_estimate({**SCENARIO, "concurrency": c}) for c in range(1, 201)]) / 200
    scenario = Scenario.parse(SCENARIO)
    x = Axis(key="concurrency", values=tuple(np.linspace(1, 400, 100).tolist()))
    y = Axis(key="prompt_tokens", values=tuple(np.linspace(100, 8000, 100).tolist()))
    grid = best(lambda: speed_grid(scenario, x, y))
    ask = {
        "model": "llama-3.1-70b",
        "weight_formats": ["bf16", "fp8", "awq"],
        "arrival_rate_rps": 20,
        "prompt_tokens": 1024,
        "output_tokens": 256,
        "slo_ttft_s": 1.0,
        "slo_tpot_s": 0.03,
    }
    sizing = best(lambda: run_size(ask), runs=3)
    rows = max(jsonl_rows_per_s() for _ in range(3))
    table = [
        "| what | CPU time | target |",
        "|---|---:|---:|",
        f"| one estimate, warm, plan and JSON included | {1e3 * one:.2f} ms | 1 ms |",
        f"| 100 x 100 grid | {grid:.3f} s | 0.5 s |",
        f"| size over the whole catalogue, three formats | {sizing:.2f} s | 2 s |",
        f"| estimate --jsonl | {rows:,.0f} rows/s | 500 rows/s |",
    ]
    text = "\n".join(table)
    print(text)
    return text


if __name__ == "__main__":
    main()
    sys.exit(0)
