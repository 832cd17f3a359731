"""Public operating points that the step-time model is fitted on and checked against.

Source: ``data/performance_points.csv`` (figures only, each row with its source); ``build`` makes it from the wide table of
collected results. Left out: disaggregated serving, rows without a time per output token.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

DATA = Path(__file__).parent / "data" / "performance_points.csv"
COLUMNS = (
    "row_id",
    "block",
    "source",
    "engine",
    "engine_version",
    "model",
    "weight_format",
    "gpu",
    "gpu_count",
    "tensor",
    "data",
    "experts_whole",
    "prompt_tokens",
    "output_tokens",
    "length_factor",
    "load",
    "concurrency",
    "ttft_s",
    "tpot_s",
    "measured",
    "use",
    "note",
)
MODELS = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Llama-3.1-70B-Instruct",
    "meta-llama/Llama-3.1-8B": "meta-llama/Llama-3.1-8B-Instruct",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-ai/DeepSeek-V3",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Llama-3.1-8B-Instruct",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
    "meta-llama/Meta-Llama-3-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Meta-Llama-3-70B-Instruct": "meta-llama/Llama-3.1-70B-Instruct",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8": "meta-llama/Llama-3.1-8B-Instruct",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": "meta-llama/Llama-3.1-8B-Instruct",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a16": "meta-llama/Llama-3.1-8B-Instruct",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.1-405B-FP8": "meta-llama/Llama-3.1-405B-Instruct",
    "meta-llama/Llama-3.1-405B (FP8)": "meta-llama/Llama-3.1-405B-Instruct",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
}
GPUS = {
    "NVIDIA GeForce RTX 4090 D": "rtx4090",
    "H100 SXM": "h100-sxm",
    "h100": "h100-sxm",
}
FORMATS = {
    "bf16": "bf16",
    "fp16": "bf16",
    "fp4": "nvfp4",
    "fp8": "fp8",
    "w8a8": "int8-w8a8",
    "w8a16": "int8-w8a16",
    "w4a16": "ct-int4-g128-sym",
    "int4": "auto",
}
ENGINES = {"vllm": "vllm", "vLLM": "vllm", "sglang": "sglang", "trtllm": "trtllm"}
LARGEST_DOMAIN = 8
CONTRADICTS = "contradicts itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One operating point. Lengths are the mean that was sent (``length_factor`` x nominal)."""

    row_id: str
    block: str
    source: str
    engine: str
    engine_version: str
    model: str
    weight_format: str
    gpu: str
    gpu_count: int
    tensor: int
    data: int
    experts_whole: bool
    prompt_tokens: float
    output_tokens: float
    length_factor: float
    load: str
    concurrency: float
    ttft_s: float | None
    tpot_s: float
    measured: str
    use: str
    note: str

    @property
    def curve(self) -> str:
        """One deployment and workload: every concurrency, date and release of it. The unit of any split."""
        return "|".join(
            str(x)
            for x in (
                self.engine,
                self.model.split("/")[-1].replace("DeepSeek-R1", "DeepSeek-V3"),
                self.weight_format,
                self.gpu,
                self.tensor,
                self.data,
                self.experts_whole,
                self.prompt_tokens,
                self.output_tokens,
            )
        )


@lru_cache(maxsize=1)
def points() -> tuple[Point, ...]:
    """Every row of the bundled table."""
    with DATA.open(encoding="utf-8", newline="") as lines:
        return tuple(_point(row) for row in csv.DictReader(lines))


def _point(row: dict[str, str]) -> Point:
    return Point(
        row_id=row["row_id"],
        block=row["block"],
        source=row["source"],
        engine=row["engine"],
        engine_version=row["engine_version"],
        model=row["model"],
        weight_format=row["weight_format"],
        gpu=row["gpu"],
        gpu_count=int(row["gpu_count"]),
        tensor=int(row["tensor"]),
        data=int(row["data"]),
        experts_whole=row["experts_whole"] == "yes",
        prompt_tokens=float(row["prompt_tokens"]),
        output_tokens=float(row["output_tokens"]),
        length_factor=float(row["length_factor"]),
        load=row["load"],
        concurrency=float(row["concurrency"]),
        ttft_s=float(row["ttft_s"]) if row["ttft_s"] else None,
        tpot_s=float(row["tpot_s"]),
        measured=row["measured"],
        use=row["use"],
        note=row["note"],
    )


def _layout(row: dict[str, str]) -> tuple[int, int, int, bool, str, str]:
    """(gpus, tensor, data, whole experts, use, note) as read; see docs/performance.md for the evidence."""
    gpus, tensor, data = (
        int(row["gpu_count"]),
        int(float(row["tp"] or row["gpu_count"])),
        int(row["attention_dp"]),
    )
    moe_tp, moe_ep = int(float(row["moe_tp"] or 1)), int(float(row["moe_ep"] or 1))
    whole = moe_ep > 1
    if moe_tp == moe_ep > 1 and moe_tp * moe_ep == gpus:
        size = moe_tp
        return (
            size,
            (size if data == 1 else 1),
            (1 if data == 1 else size),
            True,
            "fit",
            "read as tensor x expert size counted twice",
        )
    if tensor == data > 1 and tensor * data == gpus == moe_ep:
        return tensor, 1, data, True, "fit", "read as data-parallel attention, size counted twice"
    if tensor > LARGEST_DOMAIN:
        return (
            gpus,
            tensor,
            data,
            whole,
            "no legal layout",
            f"tensor size {tensor}: a pool of several replicas",
        )
    return gpus, tensor, data, whole, "fit", ""


def build(table: Path) -> list[dict[str, str]]:
    """Rows of the bundled table from the wide one."""
    with table.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    found: list[dict[str, str]] = []
    seen: set[tuple[str, ...]] = set()
    for row in rows:
        from capacity.errors import CapacityError
        from capacity.hardware import find_gpu

        engine = ENGINES.get(row["engine"])
        tpot = row["tpot_ms_central"] or row["tpot_ms_median"] or row["tpot_ms_mean"]
        block = row["row_id"][0]
        loads = {
            "A": ("closed-loop concurrency",),
            "D": ("serial",),
            "E": ("closed-loop concurrency", "offline batch of requests"),
            "G": ("closed-loop concurrency",),
        }
        if block == "E" and row["load_kind"].startswith("offline") and float(row["input_len"]) <= 128:
            # all requests start together with equal outputs, so the run's length over the output is the step
            tpot = str(1e3 * float(row["concurrency_or_rate"]) / float(row["output_tokens_per_s"]))
        if (
            engine is None
            or not tpot
            or row["load_kind"] not in loads.get(block, ())
            or not row["concurrency_or_rate"]
        ):
            continue
        try:
            gpu = find_gpu(GPUS.get(row["gpu"], row["gpu"])).id
        except CapacityError:
            continue
        model = MODELS.get(row["model"], row["model"])
        if "VL" in model:
            continue
        precision = row["precision"].lower() or ("fp8" if "FP8" in row["model"] else "bf16")
        fmt = FORMATS.get(precision)
        if fmt is None or not row["input_len"] or not row["output_len"]:
            continue
        if "gpt-oss" in model:
            fmt = "mxfp4"
        gpus, tensor, data, whole, use, note = _layout(row)
        factor = 0.9 if "InferenceX" in row["source_kind"] else 1.0
        ttft = row["ttft_ms_central"] or row["ttft_ms_median"]
        entry = {
            "row_id": row["row_id"],
            "block": block,
            "source": f"{row['source']}: {row['source_kind']}",
            "engine": engine,
            "engine_version": row["engine_version"],
            "model": model,
            "weight_format": fmt,
            "gpu": gpu,
            "gpu_count": str(gpus),
            "tensor": str(tensor),
            "data": str(data),
            "experts_whole": "yes" if whole else "no",
            "prompt_tokens": f"{float(row['input_len']) * factor:g}",
            "output_tokens": f"{float(row['output_len']) * factor:g}",
            "length_factor": f"{factor:g}",
            "load": row["load_kind"],
            "concurrency": f"{float(row['concurrency_or_rate']):g}",
            "ttft_s": f"{float(ttft) / 1e3:.5g}" if ttft else "",
            "tpot_s": f"{float(tpot) / 1e3:.6g}",
            "measured": row["measured"],
            "use": use,
            "note": note,
        }
        columns = (
            "engine",
            "weight_format",
            "gpu",
            "tensor",
            "data",
            "experts_whole",
            "prompt_tokens",
            "output_tokens",
        )
        shape = model.replace("DeepSeek-R1", "DeepSeek-V3")
        same = (*(entry[key] for key in columns), entry["concurrency"], shape, f"{float(tpot):.2f}")
        if use == "fit" and same in seen:
            entry["use"], entry["note"] = "duplicate", "the same measurement published twice"
        seen.add(same)
        found.append(entry)
    _mark_contradictions(found)
    return found + [_single_stream(*row) for row in SINGLE_STREAM]


# More load never makes a token faster; runs differ by 10 % from day to day.
FALLS = 1.25
RUN_COLUMNS = (
    "engine", "engine_version", "model", "weight_format", "gpu", "tensor", "data", "experts_whole", "prompt_tokens",
    "output_tokens",
)  # fmt: skip


def _mark_contradictions(rows: list[dict[str, str]]) -> None:
    """Marks runs whose time per token falls by a quarter as load rises: no one setting ran there.

    Their rows are not fitted, and still count where errors are reported.
    """
    runs: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        if row["use"] == "fit" and row["block"] == "A":
            runs.setdefault((*(row[key] for key in RUN_COLUMNS), row["measured"][:7]), []).append(row)
    for run in runs.values():
        at = sorted((float(row["concurrency"]), float(row["tpot_s"])) for row in run)
        if any(slow > FALLS * fast for k, (c, slow) in enumerate(at) for d, fast in at[k + 1 :] if d > c):
            for row in run:
                row["use"], row["note"] = CONTRADICTS, "time per token falls with load in this run"


# Share of bandwidth that single-stream Llama-3-8B (16.1 GB, 280 + 310 tokens) reaches, as published for AccelMark's runs.
# Every H20 of theirs is an H20-3e; the row does not say which of 4.0 and 4.8 TB/s it divides by: the middle is taken.
SINGLE_STREAM = (
    ("rtx3090", 0.80, 936.0, ""),
    ("rtx5090", 0.88, 1792.0, "0.19.1"),
    ("h200", 0.44, 4800.0, ""),
    ("h20-141", 0.26, 4400.0, ""),
)


def _single_stream(gpu: str, share: float, bandwidth_gbs: float, release: str) -> dict[str, str]:
    return {
        "row_id": f"S-{gpu}",
        "block": "S",
        "source": "FreedomIntelligence/AccelMark (Apache-2.0): share of bandwidth, rounded",
        "engine": "vllm",
        "engine_version": release or "0.7.3",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "weight_format": "bf16",
        "gpu": gpu,
        "gpu_count": "1",
        "tensor": "1",
        "data": "1",
        "experts_whole": "no",
        "prompt_tokens": "280",
        "output_tokens": "310",
        "length_factor": "1",
        "load": "serial",
        "concurrency": "1",
        "ttft_s": "",
        "tpot_s": f"{16.1 / share / bandwidth_gbs:.4g}",
        "measured": "",
        "use": "fit",
        "note": "16.1 GB / (share x bandwidth)",
    }


def main(argv: list[str]) -> int:
    """Writes the bundled table from the wide table at ``argv[0]``."""
    rows = build(Path(argv[0]))
    DATA.parent.mkdir(exist_ok=True)
    with DATA.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows, {sum(row['use'] == 'fit' for row in rows)} to fit on")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
