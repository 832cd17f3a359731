"""What watching costs: history drawn, replicas polled, a page read, ten people watching. Prints tables.

``python -m benchmarks.bench_live [--only history|poller|payload|prometheus|page]``. Bars: any window of 7 days at
5 s for 20 engines in 1 s; 50 replicas every 5 s under 10 % of one core and 150 MB; a page of 2.2 MB in 0.5 s; 24 h
at 15 s of 20 engines from a real Prometheus in 2 s; ten sessions at 2 s under 50 % of one core, p95 0.4 s.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from capacity.intervals import COUNTERS, FACTS, GAUGES, HISTOGRAMS, PEAKS, HistogramDelta
from connectors.history import History
from connectors.history.rows import layout_json, layout_of

DAY_S = 86_400
END_S = 1_800_000_000 // 900 * 900
WINDOWS = {"5 min": 300, "1 h": 3600, "6 h": 6 * 3600, "24 h": DAY_S, "7 d": 7 * DAY_S}
BUCKETS = {"step_tokens": 14, "request_prompt_tokens": 13, "request_generation_tokens": 13}


def fill_week(history: History, *, engines: int, step_s: int) -> int:
    """A week of made-up rows; one day is generated and summed up, the others are copies of it."""
    con = history._con
    assert con is not None
    histograms = {}
    for name in HISTOGRAMS:
        size = BUCKETS.get(name, 22)
        bounds = tuple(float(i + 1) for i in range(size))
        histograms[name] = HistogramDelta(bounds=bounds, counts=(0,) * (size + 1), sum=0.0)
    width = sum(len(h.counts) for h in histograms.values())
    con.execute("INSERT INTO layouts VALUES (1, ?)", [layout_json(layout_of(histograms))])
    for e in range(engines):
        con.execute(
            "INSERT INTO engines VALUES (?, ?, '0', 'bench', '0.32', false)",
            [e + 1, f"http://bench-{e}/metrics"],
        )
    first_day = END_S - 7 * DAY_S
    gauges = ", ".join(f"(random() * 40)::FLOAT AS {name}" for name in (*GAUGES, *PEAKS))
    facts = ", ".join(f"4609.0 AS {name}" for name in FACTS)
    counters = ", ".join(f"floor(random() * 900) AS {name}" for name in COUNTERS)
    sums = ", ".join(f"random() * 50 AS {name}_sum" for name in HISTOGRAMS)
    con.execute(
        f"INSERT INTO samples BY NAME SELECT {first_day} + t.i * {step_s} AS end_s, e.engine_id, "
        f"{step_s} AS seconds, {step_s} AS counted_s, 'ok' AS state, 1 AS layout_id, "
        f"list_transform(range({width}), lambda x: CASE WHEN x % 20 IN (4, 5, 6) THEN "
        "(random() * 40)::UINTEGER ELSE 0::UINTEGER END) AS counts, "
        f"{gauges}, {facts}, {counters}, {sums} "
        f"FROM range(1, {DAY_S // step_s + 1}) t(i), engines e ORDER BY end_s"
    )
    history._read_names(con)
    history._sum_up(con, float(first_day + DAY_S + 15))
    for tier in history.tiers:
        for day in range(1, 7):
            con.execute(
                f"INSERT INTO {tier.table} SELECT * REPLACE (end_s + {day * DAY_S} AS end_s) "
                f"FROM {tier.table} WHERE end_s > {first_day} AND end_s <= {first_day + DAY_S}"
            )
        history._summed_s[tier.table] = float(END_S)
    con.execute("CHECKPOINT")
    row = con.execute("SELECT count(*) FROM samples").fetchone()
    return int(row[0]) if row else 0


def bench_history(*, engines: int = 20, step_s: int = 5) -> bool:
    """Every window, newest and in the middle of the week; the drawing's percentiles included."""
    from capacity.live_series import latency_series, pool_series

    good = True
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "week.duckdb")
        with History(path, memory_limit="256MB") as history:
            began = time.perf_counter()
            rows = fill_week(history, engines=engines, step_s=step_s)
            print(f"filled {rows:,} rows of {engines} engines in {time.perf_counter() - began:.0f} s")
        size = os.path.getsize(path)
        print(f"file {size / 1e6:.0f} MB, {size / rows:.0f} bytes per row")
        with History(path) as history:
            print("| window | at | read s | read and series s | bar s |\n|---|---|---|---|---|")
            for name, seconds in WINDOWS.items():
                for place, end_s in (("newest", END_S), ("mid-week", END_S - 3 * DAY_S - 700)):
                    if place == "mid-week" and seconds > 3 * DAY_S:
                        continue
                    began = time.perf_counter()
                    intervals = history.window(end_s - seconds, end_s)
                    read_s = time.perf_counter() - began
                    step = max(float(step_s), seconds / 300)
                    pool_series(intervals, step_s=step)
                    for signal in ("ttft_s", "itl_s"):
                        latency_series(intervals, signal, step_s=step)
                    all_s = time.perf_counter() - began
                    good &= all_s <= 1.0
                    print(f"| {name} | {place} | {read_s:.2f} | {all_s:.2f} | 1.00 |")
    return good


def _memory_mb(what: str) -> float:
    """VmRSS or VmHWM of this process; getrusage's peak would be that of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) * 1024 / 1e6


def poll_child(urls: Sequence[str], *, interval_s: float, seconds: float) -> None:
    """The measured process: poller, history and nothing else."""
    from connectors.poller import Poller
    from connectors.service import poll_target
    from connectors.targets import Target

    with tempfile.TemporaryDirectory() as folder, History(os.path.join(folder, "h.duckdb")) as history:
        targets = [poll_target(Target(name=url, url=url)) for url in urls]
        poller = Poller(targets, interval_s=interval_s, keep=history.record)
        poller.start()
        time.sleep(2 * interval_s)
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        time.sleep(seconds)
        after, took = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - began
        views = poller.views()
        poller.stop()
        cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / took
        scrapes = sum(v.load.scrapes for v in views)
        failed = sum(1 for v in views if v.failures)
        print(
            f"RESULT {cpu:.4f} {_memory_mb('VmRSS'):.1f} {_memory_mb('VmHWM'):.1f} {scrapes} {failed} "
            f"{history.rows_written} {sum(len(v.snapshots) for v in views)}"
        )


def bench_poller(*, replicas: int = 50, interval_s: float = 5.0, seconds: float = 60.0) -> bool:
    """Demonstration engines in one process, the poller in another, whose CPU and memory count."""
    from connectors.demo_engine import DemoPool

    with DemoPool(replicas=replicas, warm_up_s=40.0) as pool:
        command = [
            sys.executable,
            "-m",
            "benchmarks.bench_live",
            "--child",
            str(interval_s),
            str(seconds),
            *pool.urls,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120)
    line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT")), None)
    if line is None:
        print(done.stderr[-2000:])
        return False
    cpu, rss, peak, scrapes, failed, rows, _ = (float(x) for x in line.split()[1:])
    print("| replicas | every s | one core | memory MB | peak MB | scrapes | failed | rows kept |")
    print("|---|---|---|---|---|---|---|---|")
    print(
        f"| {replicas} | {interval_s:g} | {cpu:.1%} (bar 10 %) | {rss:.0f} | {peak:.0f} (bar 150) "
        f"| {scrapes:.0f} | {failed:.0f} | {rows:.0f} |"
    )
    return cpu < 0.10 and peak < 150 and not failed


def _best(call: Callable[[], object], *, times: int = 5) -> float:
    """Seconds of the fastest of several calls: a shared machine disturbs the others."""
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return min(spent)


def bench_payload(*, megabytes: float = 2.2) -> bool:
    """A large metrics page: ours beside prometheus_client's parser alone."""
    from prometheus_client.parser import text_string_to_metric_families

    from connectors.demo_engine import DemoPool
    from connectors.scrape import snapshot_of

    with DemoPool(replicas=1, warm_up_s=60.0) as pool:
        page = pool.payload(pool.engines, 0)
    comments = [line for line in page.splitlines() if line.startswith("#")]
    samples = [line for line in page.splitlines() if line and not line.startswith("#")]
    copies = math.ceil(megabytes * 1e6 / len("\n".join(samples)))
    lines = [line.replace('engine="0"', f'engine="{copy}"') for line in samples for copy in range(copies)]
    large = "\n".join([*comments, *lines, ""])
    body = large.encode()
    found = snapshot_of(body, target="bench", time_s=0.0)
    count = sum(len(family.samples) for family in text_string_to_metric_families(large))
    ours_s = _best(lambda: snapshot_of(body, target="bench", time_s=0.0))
    theirs_s = _best(lambda: list(text_string_to_metric_families(large)))
    print(
        "| page MB | engines | samples | read s | prometheus_client alone s | bar s |\n|---|---|---|---|---|---|"
    )
    print(
        f"| {len(large) / 1e6:.1f} | {len(found.engines)} | {count:,} | {ours_s:.2f} | {theirs_s:.2f} | 0.50 |"
    )
    return ours_s <= 0.5


def _others(name: str) -> Any:
    """A part of its own, imported when it runs: the measured process must not carry it."""
    return importlib.import_module(f"benchmarks.{name}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run every part; 0 when every bar is met."""
    parts: dict[str, Callable[[float], bool]] = {
        "history": lambda _: bench_history(),
        "payload": lambda _: bench_payload(),
        "poller": lambda seconds: bench_poller(seconds=seconds),
        "prometheus": lambda _: _others("prometheus_history").main(),
        "page": lambda _: _others("bench_live_page").main([]) == 0,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs="+", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=tuple(parts), default=None)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the poller is measured")
    args = parser.parse_args(argv)
    if args.child:
        poll_child(args.child[2:], interval_s=float(args.child[0]), seconds=float(args.child[1]))
        return 0
    missed = []
    for name, run in parts.items():
        if args.only in (None, name):
            print(f"\n{name}", flush=True)
            if not run(args.seconds):
                missed.append(name)
    print(f"\nbars missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
