"""How fast the planner answers: one plan warm, the command line as a whole, 10,000 plans in a stream.

``python -m benchmarks.bench [--only plan|page|live|performance|simulation]``. Each table stands beside a reference
(a textbook one-liner, an empty interpreter, ``import numpy``), since machines differ. Bars: one plan 2 ms, the
command line 0.5 s, 10,000 plans 20 s. Nothing is kept.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.scenarios import varied
from capacity.plan import plan
from capacity.scenario import Scenario
from capacity.search import search

ROOT = Path(__file__).resolve().parents[1]
OTHERS = ("page", "live", "performance", "simulation")
PLANS = {
    "Llama-3.1-8B, H100": {"model": "llama-3.1-8b", "gpu": "h100", "max_model_len": 8192},
    "the same with a workload": {
        "model": "llama-3.1-8b",
        "gpu": "h100",
        "max_model_len": 8192,
        "prompt_tokens": {"mean": 1000, "cv": 1},
        "output_tokens": {"mean": 300, "cv": 1},
    },
    "Gemma-3-27B, 7 groups": {"model": "gemma-3-27b", "gpu": "h100", "tensor_parallel_size": 2},
    "DeepSeek-V3, 8 x H200": {"model": "deepseek-v3", "gpu": "h200", "tensor_parallel_size": 8},
    "Qwen3-Next, 4 x H100, PP 2": {
        "model": "qwen3-next-80b-a3b",
        "gpu": "h100",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
    },
}


def textbook(memory: float, weights: float, layers: int, heads: int, width: int, tokens: int) -> int:
    """The one-liner that peers use, as the reference for speed."""
    return int((memory - weights) / (2 * 2 * layers * heads * width * tokens))


def timed(call: Callable[[], object], *, repeat: int = 200) -> tuple[float, float]:
    """(best, median) seconds of one warm call."""
    call()
    spent = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return min(spent), median(spent)


def warm_plans() -> None:
    """Prints one warm plan per kind of model beside the one-liner."""
    print(f"{'one plan, warm':34} {'best':>10} {'median':>10}   bar 2 ms")
    best, middle = timed(lambda: textbook(80e9, 16e9, 32, 8, 128, 8192))
    print(f"{'textbook one-liner (reference)':34} {best * 1e6:8.2f}us {middle * 1e6:8.2f}us")
    for name, raw in PLANS.items():
        scenario = Scenario.parse(raw)
        best, middle = timed(lambda scenario=scenario: plan(scenario))
        print(f"{name:34} {best * 1e3:8.3f}ms {middle * 1e3:8.3f}ms   {_met(middle <= 0.002)}")
    scenario = Scenario.parse({"model": "llama-3.1-70b", "gpu": "h100"})
    best, middle = timed(lambda: search(scenario, "cheapest", concurrency=8), repeat=3)
    print(f"{'search: cheapest for 8 requests':34} {best * 1e3:8.1f}ms {middle * 1e3:8.1f}ms")


def command_line(runs: int = 10) -> None:
    """Prints the whole process beside two references; compiled modules are used, as after an install."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    plain = ["-m", "capacity", "plan", "--model", "gemma-3-27b", "--gpu", "h100", "--json"]
    commands = {
        "python -c pass (reference)": ["-c", "pass"],
        'python -c "import numpy" (reference)': ["-c", "import numpy"],
        "python -m capacity plan": plain,
        "python -m capacity plan, workload": [*plain, "--prompt-tokens", "1000", "--output-tokens", "300"],
        "python -m capacity export, report": ["-m", "capacity", "export", "--what", "report", *plain[3:7]],
    }
    print(f"\n{'whole process, ' + str(runs) + ' runs':38} {'best':>8} {'median':>8}   bar 0.5 s")
    for name, arguments in commands.items():

        def run(arguments: list[str] = arguments) -> None:
            subprocess.run(
                [sys.executable, *arguments], cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL
            )

        best, middle = timed(run, repeat=runs)
        bar = "" if "reference" in name else f"   {_met(middle <= 0.5)}"
        print(f"{name:38} {best:7.3f}s {middle:7.3f}s{bar}")


def stream(count: int = 10_000) -> None:
    """Prints the time of ``count`` varied plans through ``--jsonl``."""
    lines = "".join(json.dumps(scenario) + "\n" for scenario in varied(count))
    start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run = subprocess.run(
        [sys.executable, "-m", "capacity", "plan", "--jsonl"],
        cwd=ROOT,
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    )
    spent = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    refused = sum("error" in answer for answer in answers)
    small = sum(answer.get("fits") is False for answer in answers)
    bar = 20 * count / 10_000
    print(
        f"\n{len(answers):,} plans through --jsonl: {spent:.1f} s ({used:.1f} s of one core), bar {bar:g} s: ",
        end="",
    )
    print(f"{_met(spent <= bar)}; {small:,} do not fit and list fixes, {refused:,} refused by their release")
    assert len(answers) == count


def _met(good: bool) -> str:
    return "met" if good else "MISSED"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; 0 always: speed is for people to judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("plan", *OTHERS), help="one part")
    parser.add_argument("--plans", type=int, default=10_000, help="plans in the stream")
    options = parser.parse_args(argv)
    if options.only in (None, "plan"):
        warm_plans()
        command_line()
        stream(options.plans)
    for name in OTHERS:
        module = f"benchmarks.bench_{name}"
        if options.only not in (None, name):
            continue
        if importlib.util.find_spec(module) is None:
            print(f"\n{module} is not here")
            continue
        print(f"\n== {name}", flush=True)
        run = importlib.import_module(module).main
        run([]) if inspect.signature(run).parameters else run()  # each prints its own table
    return 0


if __name__ == "__main__":
    sys.exit(main())
