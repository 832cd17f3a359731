"""How far the step-time model errs on public operating points, split by whole curve, by GPU and by model.

Source: benchmarks/data/performance_points.csv; predictions come from the code that answers users, with coefficients
fitted without the held-out rows. Left out: rows without a legal layout (counted in the table).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.fit_performance import as_coefficients, fit_points, make
from benchmarks.performance_data import CONTRADICTS, Point, points
from benchmarks.performance_regression import Table, build_table, folds, generous_limit
from capacity.catalog import model_spec
from capacity.hardware import find_gpu
from capacity.performance.coefficients import Coefficients
from capacity.performance.layout import Layout, link_domain
from capacity.performance.measured import MeasuredPoint
from capacity.performance.predict import forecast
from capacity.performance.records import Deployment
from capacity.performance.work import step_work
from capacity.precision import resolve_kv_format, resolve_weight_format

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Held:
    """Out-of-fold answers: value, low, high of TPOT, tokens/s and TTFT per point."""

    tpot: Array
    tokens: Array
    ttft: Array


@lru_cache(maxsize=8192)
def deployment(point: Point) -> Deployment:
    """The deployment behind a point, with the cache that these runs had (8 bit, 95 % of memory)."""
    spec, gpu = model_spec(point.model), find_gpu(point.gpu)
    work = step_work(spec, resolve_weight_format(point.weight_format, spec), resolve_kv_format("auto"))
    layout = Layout(
        tensor=point.tensor, data=point.data, experts_whole=point.experts_whole, link_domain=link_domain(gpu)
    )
    return Deployment(
        work=work,
        gpu=gpu,
        layout=layout,
        engine=point.engine,
        release=point.engine_version or None,
        most_running=generous_limit(point),
    )


def answers(
    chosen: Sequence[Point],
    shipped: Coefficients,
    measured: dict[int, tuple[MeasuredPoint, ...]] | None = None,
) -> Array:
    """(points, 3 quantities, value/low/high): TPOT, output tokens/s, TTFT."""
    found = np.empty((len(chosen), 3, 3))
    for i, p in enumerate(chosen):
        f = forecast(
            deployment(p),
            np.array([p.concurrency]),
            p.prompt_tokens,
            p.output_tokens,
            shipped=shipped,
            measured=(measured or {}).get(i, ()),
        )
        for j, band in enumerate((f.tpot_s, f.output_tokens_per_s, f.ttft_s)):
            found[i, j] = band.value[0], band.low[0], band.high[0]
    return found


def held_out(table: Table, fold: NDArray[np.int64], *, spreads: bool) -> Array:
    """Answers for every point with coefficients that never saw its fold."""
    found = np.empty((len(table.points), 3, 3))
    for number in np.unique(fold):
        held = fold == number
        shipped = as_coefficients(*make(table, ~held, spreads=spreads))
        found[held] = answers([p for p, h in zip(table.points, held, strict=True) if h], shipped)
    return found


def truth(table: Table) -> Array:
    """(points, 3): TPOT, output tokens/s (by TTFT and TPOT), TTFT."""
    rows = []
    for p in table.points:
        ttft = np.nan if p.ttft_s is None else p.ttft_s
        rows.append(
            (p.tpot_s, p.concurrency * p.output_tokens / (ttft + (p.output_tokens - 1) * p.tpot_s), ttft)
        )
    return np.array(rows)


def by(names: Sequence[str]) -> NDArray[np.int64]:
    """A fold per distinct name."""
    order = {name: i for i, name in enumerate(sorted(set(names)))}
    return np.array([order[n] for n in names])


def stats(predicted: Array, actual: Array, mask: Mask) -> tuple[int, float, float, float]:
    """(rows, median error, 90th percentile, signed median)."""
    use = mask & np.isfinite(actual) & np.isfinite(predicted)
    ratio = predicted[use] / actual[use] - 1
    return (
        int(use.sum()),
        float(np.median(np.abs(ratio))),
        float(np.quantile(np.abs(ratio), 0.9)),
        float(np.median(ratio)),
    )


def pct(value: float) -> str:
    """A share as percent with one decimal."""
    return f"{100 * value:.1f} %"


def _row(name: str, s: tuple[int, float, float, float], bar: str = "") -> str:
    return f"| {name} | {s[0]:,} | {pct(s[1])} | {pct(s[2])} | {100 * s[3]:+.1f} % | {bar} |"


HEAD = "| what | rows | median | p90 | signed median | bar |\n|---|---:|---:|---:|---:|---|"


def roofline_tokens(table: Table, step: Array) -> Array:
    """Output tokens/s that a step time gives when the first token costs one prefill step at the same rule."""
    own = table.terms["first_token"][:, 0] + table.terms["first_token"][:, 1]
    c = np.array([p.concurrency for p in table.points])
    o = np.array([p.output_tokens for p in table.points])
    return np.asarray(c * o / (own + (o - 1) * step))


def with_points(
    table: Table, shipped_of: Callable[[int], Coefficients], fold: NDArray[np.int64], count: int, mask: Mask
) -> tuple[Array, float, int]:
    """(errors, coverage, rows) with ``count`` random measured points of the same curve and date."""
    rng = np.random.default_rng(7)
    curves: dict[tuple[str, str, str], list[int]] = {}
    for i in np.flatnonzero(mask).tolist():
        p = table.points[i]
        curves.setdefault((p.curve, p.engine_version, p.measured[:7]), []).append(int(i))
    errors, inside = [], []
    for rows in curves.values():
        if len({table.points[i].concurrency for i in rows}) < 4:
            continue
        for _ in range(2):
            chosen = rng.choice(rows, count, replace=False).tolist()
            at = {table.points[i].concurrency for i in chosen}
            if len(at) < count:
                continue
            given = tuple(
                MeasuredPoint(concurrency=table.points[i].concurrency, tpot_s=table.points[i].tpot_s)
                for i in chosen
            )
            rest = [i for i in rows if table.points[i].concurrency not in at]
            shipped = shipped_of(int(fold[rest[0]]))
            for i in rest:
                p = table.points[i]
                try:
                    f = forecast(
                        deployment(p),
                        np.array([p.concurrency]),
                        p.prompt_tokens,
                        p.output_tokens,
                        shipped=shipped,
                        measured=given,
                    )
                except ValueError:
                    continue
                errors.append(abs(f.tpot_s.value[0] / p.tpot_s - 1))
                inside.append(f.tpot_s.low[0] <= p.tpot_s <= f.tpot_s.high[0])
    return np.array(errors), float(np.mean(inside)), len(errors)


def report() -> str:
    """All tables as Markdown."""
    table = build_table(fit_points())
    actual = truth(table)
    block = np.array([p.block == "A" for p in table.points])
    dense = block & ~table.moe
    everything = np.ones(len(table.points), dtype=bool)
    fold = folds([p.curve for p in table.points])
    made = {int(k): as_coefficients(*make(table, fold != k)) for k in np.unique(fold)}
    curve = np.empty((len(table.points), 3, 3))
    for k, shipped in made.items():
        held = fold == k
        curve[held] = answers([p for p, h in zip(table.points, held, strict=True) if h], shipped)
    gpu = held_out(table, by([g.id for g in table.gpus]), spreads=False)
    model = held_out(table, by(table.shapes), spreads=False)

    out = [
        _scope(table),
        "",
        "### Three ways to predict the same points",
        "",
        "| method | TPOT median | p90 | signed | tokens/s median | p90 |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, step, tokens in (
        (
            "pure roofline (the larger of bytes and operations at peak)",
            table.floor_s,
            roofline_tokens(table, table.floor_s),
        ),
        ("textbook: MBU 0.8, MFU 0.5", table.textbook_s, roofline_tokens(table, table.textbook_s)),
        ("ours, cross-validated by whole curve", curve[:, 0, 0], curve[:, 1, 0]),
    ):
        a, b = stats(step, actual[:, 0], block), stats(tokens, actual[:, 1], block)
        out.append(
            f"| {name} | {pct(a[1])} | {pct(a[2])} | {100 * a[3]:+.1f} % | {pct(b[1])} | {pct(b[2])} |"
        )
    out += ["", "### Against the bars", "", HEAD]
    out.append(
        _row("TPOT, by whole curve", stats(curve[:, 0, 0], actual[:, 0], block), "<= 10 %, p90 <= 30 %")
    )
    out.append(
        _row(
            "output tokens/s, by whole curve",
            stats(curve[:, 1, 0], actual[:, 1], block),
            "<= 10 %, p90 <= 30 %",
        )
    )
    out.append(_row("TPOT, dense models", stats(curve[:, 0, 0], actual[:, 0], dense), "<= 7 %"))
    out.append(_row("TPOT, one GPU left out", stats(gpu[:, 0, 0], actual[:, 0], block), "<= 15 %"))
    out.append(_row("output tokens/s, one GPU left out", stats(gpu[:, 1, 0], actual[:, 1], block), "<= 15 %"))
    out.append(_row("TPOT, one model left out", stats(model[:, 0, 0], actual[:, 0], block), "<= 16 %"))
    out.append(
        _row("output tokens/s, one model left out", stats(model[:, 1, 0], actual[:, 1], block), "<= 16 %")
    )
    out.append(
        _row("TTFT closed loop, by whole curve", stats(curve[:, 2, 0], actual[:, 2], block), "<= 25 %")
    )
    for count, bar in ((1, ""), (2, "<= 5 %, p90 <= 15 %"), (3, "")):
        errors, covered, rows = with_points(table, made.__getitem__, fold, count, block)
        name = (
            f"TPOT with {count} measured point{'s' if count > 1 else ''} (band covers {100 * covered:.0f} %)"
        )
        out.append(
            f"| {name} | {rows:,} | {pct(float(np.median(errors)))} | {pct(float(np.quantile(errors, 0.9)))} | | {bar} |"
        )
    out += [
        "",
        "### Coverage of the 80 % interval",
        "",
        "| group | rows | TPOT | tokens/s | TTFT | median half-range |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    inside = (curve[:, :, 1] <= actual) & (actual <= curve[:, :, 2])
    for name, mask in [("all", block), *_groups(table, block, ("gpu", "model"), least=30)]:
        half = np.median(np.log(curve[mask, 0, 2] / curve[mask, 0, 0]))
        out.append(
            f"| {name} | {mask.sum():,} | "
            + " | ".join(f"{100 * inside[mask, j].mean():.0f} %" for j in range(3))
            + f" | {pct(float(np.expm1(half)))} |"
        )
    out += [
        "",
        "### Signed errors of TPOT (cross-validated by curve)",
        "",
        HEAD.replace(" bar |", " |").replace("---|---|", "---|---|"),
    ]
    for name, mask in _groups(table, block, ("gpu", "model", "engine", "precision", "concurrency", "layout")):
        out.append(_row(name, stats(curve[:, 0, 0], actual[:, 0], mask)))
    out += [
        "",
        "### Single stream, Llama-3-8B in 16 bit (AccelMark)",
        "",
        "| GPU | release | prompt | measured | shipped coefficients | GPU left out |",
        "|---|---|---:|---:|---:|---:|",
    ]
    shipped = as_coefficients(*make(table, everything, spreads=False))
    single = [
        i for i, p in enumerate(table.points) if p.block in "DS" and "8B" in p.model and p.concurrency == 1
    ]
    own = answers([table.points[i] for i in single], shipped)[:, 0, 0]
    short = []
    for i, ours in zip(single, own, strict=True):
        p = table.points[i]
        short.append((p.prompt_tokens < 1000, abs(ours / p.tpot_s - 1), abs(gpu[i, 0, 0] / p.tpot_s - 1)))
        out.append(
            f"| {p.gpu} | {p.engine_version} | {p.prompt_tokens:,.0f} | {1e3 * p.tpot_s:.2f} ms | "
            f"{100 * (ours / p.tpot_s - 1):+.1f} % | {100 * (gpu[i, 0, 0] / p.tpot_s - 1):+.1f} % |"
        )
    chat = np.array([(a, b) for is_short, a, b in short if is_short])
    out += [
        "",
        f"Median at 280 prompt tokens: {pct(float(np.median(chat[:, 0])))} with shipped coefficients (the rows are in the "
        f"fit), {pct(float(np.median(chat[:, 1])))} with the GPU left out; the bar is 10 %.",
        "",
    ]
    return "\n".join(out)


def _scope(table: Table) -> str:
    every = points()
    count = {
        use: sum(p.use == use for p in every) for use in ("fit", "duplicate", "no legal layout", CONTRADICTS)
    }
    return "\n".join(
        (
            f"{len(every):,} public operating points: {count['fit']:,} used, {count['duplicate']} are the same measurement",
            f"published twice, {count['no legal layout']} have a tensor size above 8 and stand for a pool of replicas, "
            f"{count[CONTRADICTS]} are of runs whose time",
            "per token falls with load: not fitted, but predicted and counted below. All",
            "compares the InferenceX block unless it says otherwise. A curve is one engine, model, format, GPU, layout and",
            "workload with all its concurrencies, dates and releases, and never stands on both sides of a split.",
        )
    )


def _groups(table: Table, mask: Mask, kinds: Sequence[str], least: int = 5) -> list[tuple[str, Mask]]:
    bands = (
        (4, "up to 4"),
        (8, "5 to 8"),
        (16, "9 to 16"),
        (32, "17 to 32"),
        (64, "33 to 64"),
        (128, "65 to 128"),
        (256, "129 to 256"),
    )
    columns = {
        "gpu": [p.gpu for p in table.points],
        "model": [p.model.split("/")[-1] for p in table.points],
        "engine": [p.engine for p in table.points],
        "precision": list(table.precisions),
        "concurrency": [
            next((name for top, name in bands if p.concurrency <= top), "above 256") for p in table.points
        ],
        "layout": [
            f"TP{p.tensor}" + (f" DP{p.data}" if p.data > 1 else "") + (" EP" if p.experts_whole else "")
            for p in table.points
        ],
    }
    found = []
    for kind in kinds:
        names = np.array(columns[kind])
        for name in (
            dict.fromkeys([b[1] for b in bands] + ["above 256"])
            if kind == "concurrency"
            else sorted(set(columns[kind]))
        ):
            chosen = mask & (names == name)
            if chosen.sum() >= least:
                found.append((f"{kind}: {name}", chosen))
    return found


def main() -> str:
    """Prints the tables and returns them."""
    text = report()
    print(text)
    return text


if __name__ == "__main__":
    main()
    sys.exit(0)
