"""The `vllm serve` command that starts what was planned, and notes for what no flag can say.

Source: catalog/serve_flags.csv, flags as vLLM spells them. Left out: ports, keys, parsers.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import lru_cache
from typing import Any

from capacity.catalog.table import read_table
from capacity.engine import parse_version
from capacity.errors import CapacityError
from capacity.plan import Plan
from capacity.precision import resolve_weight_format
from capacity.resolve import Resolved, resolve
from capacity.state_caching import needs_align_flag, needs_state_dtype_flag

ONLINE_QUANTIZATION = {"fp8-tensor": "fp8", "bnb-nf4": "bitsandbytes", "bnb-int8": "bitsandbytes"}
KV_SPELLINGS = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "int8": "int8_per_token_head"}
PLACEHOLDER = "PATH_OR_ID_OF_THE_MODEL"


def serve_command(plan: Plan) -> str:
    """The command, one flag a line, quoted for a POSIX shell; flags at the engine's default are left out."""
    r = plan.resolved
    parts = [f"vllm serve {shlex.quote(_model(r))}"]
    if r.scenario.pipeline_layer_split is not None:
        layers = ",".join(str(len(stage)) for stage in r.parallel.stages)
        parts[0] = f"VLLM_PP_LAYER_PARTITION={layers} {parts[0]}"
    parts += [" ".join((flag, shlex.quote(value))) if value else flag for flag, value in _flags(r)]
    return " \\\n  ".join(parts)


def serve_notes(plan: Plan) -> tuple[str, ...]:
    """What the plan rests on and the command cannot say, one sentence each."""
    r = plan.resolved
    s, notes = r.scenario, []
    if s.engine != "vllm":
        notes.append(f"this is vLLM's command; {s.engine} spells its flags in its own way")
    if _model(r) == PLACEHOLDER:
        notes.append("the model was given as a config: put its path or hub id in place of the capitals")
    own = resolve_weight_format(None, r.spec)
    if r.weight_format.id != own.id:
        if r.weight_format.id in ONLINE_QUANTIZATION:
            notes.append(
                f"--quantization makes {r.weight_format.id} weights of a {own.id} checkpoint while loading; "
                "a checkpoint stored in that format loads in less time and memory"
            )
        else:
            notes.append(
                f"planned with {r.weight_format.id} weights: serve a checkpoint stored so, this is {own.id}"
            )
    if s.kv_cache_gib is not None:
        sizes = " / ".join(f"{value:g}" for value in s.kv_cache_gib)
        notes.append(
            f"the plan takes {sizes} GiB of KV cache per GPU as measured; to hold the engine to it add "
            f"--kv-cache-memory-bytes {min(plan.kv_bytes)}"
        )
    if s.kv_cache_memory_bytes is not None and len(set(s.kv_cache_memory_bytes)) > 1:
        notes.append(
            "--kv-cache-memory-bytes is one figure for all stages; the smallest one is in the command"
        )
    if s.gpu_memory_gib is not None:
        notes.append(f"planned for GPUs on which the engine sees {s.gpu_memory_gib:g} GiB; no flag sets that")
    if s.other_memory_gib:
        notes.append(f"{s.other_memory_gib:g} GiB of each GPU are taken by others when the engine starts")
    if s.weights_gib is not None:
        notes.append(f"weights are taken as measured: {s.weights_gib:g} GiB on the fullest GPU")
    if s.cuda_graph_gib is not None:
        notes.append(f"CUDA graphs are taken as measured: {s.cuda_graph_gib:g} GiB")
    if plan.layout.block_size != r.block_size:
        notes.append(
            f"the engine itself raises the block size to {plan.layout.block_size} for the state layers"
        )
    if r.speculative_method == "eagle" and s.draft_model is None:
        notes.append("name the EAGLE draft in --speculative-config; the plan only counts one more layer")
    for flag, key, since in _too_new(r):
        notes.append(
            f"release {r.release.asked} has no {flag} (it came with {since}); the command leaves {key} out"
        )
    if s.usage == "llm_class":
        notes.append("planned for the offline LLM class; the command repeats its token budget and seats")
    return tuple(notes)


def serve_script(plan: Plan) -> str:
    """The release and the notes as comments, then the command: a file that a shell runs."""
    notes = (f"vLLM {plan.resolved.release.asked}", *(" ".join(note.split()) for note in serve_notes(plan)))
    return "".join(f"# {note}\n" for note in notes) + serve_command(plan) + "\n"


def _model(r: Resolved) -> str:
    if r.scenario.model_config is not None:
        name = json.loads(r.scenario.model_config).get("_name_or_path")
        usable = isinstance(name, str) and name.strip() and not name.strip().startswith("-")
        return str(name).strip() if usable else PLACEHOLDER
    return r.spec.model_id


def _flags(r: Resolved) -> list[tuple[str, str]]:
    """(flag, value) pairs in the order of the table; an empty value is a switch."""
    found: list[tuple[str, str]] = []
    for row in _rows():
        if _newer(row, r):
            continue
        found += _one_flag(row, r)
    quantization = ONLINE_QUANTIZATION.get(r.weight_format.id)
    if quantization and r.weight_format.id != resolve_weight_format(None, r.spec).id:
        found.append(("--quantization", quantization))
    kv = _kv_dtype(r)
    if kv is not None:
        found.append(("--kv-cache-dtype", kv))
    if needs_align_flag(r):
        found.append(("--mamba-cache-mode", "align"))
    if needs_state_dtype_flag(r):
        found.append(("--mamba-ssm-cache-dtype", "bfloat16" if r.model_dtype_bytes == 2 else "float32"))
    return [*found, *_speculation(r), *_adapters(r)]


def _one_flag(row: dict[str, str], r: Resolved) -> list[tuple[str, str]]:
    key, flag, kind = row["key"], row["flag"], row["kind"]
    if kind in ("resolved", "both"):
        value = _effective(r, key)
        if value == _untouched(r, key):
            return []
        if kind == "both":
            return [(flag, "")] if value else [(flag.replace("--", "--no-", 1), "")]
        return [(flag, _text(value))]
    value = getattr(r.scenario, key)
    if key == "pipeline_parallel_size":
        value = r.parallel.pipeline
    if (
        value is None
        or _text(value) == row["default"]
        or (key == "dtype" and value == r.spec.dtype != "float32")
    ):
        return []
    if kind == "switch":
        return [(flag, "")] if value else []
    return [(flag, _text(min(value) if kind == "first" else value))]


def _effective(r: Resolved, key: str) -> Any:
    return r.prefix_caching if key == "enable_prefix_caching" else getattr(r, key)


def _untouched(r: Resolved, key: str) -> Any:
    """What the API server would take for ``key`` if nobody set it; None where the config states no limit."""
    changes: dict[str, Any] = {key: None, "usage": "api_server"}
    if key == "max_num_batched_tokens":
        changes["max_model_len"] = r.max_model_len
    try:
        return _effective(resolve(replace(r.scenario, **changes)), key)
    except CapacityError:
        return None


def _kv_dtype(r: Resolved) -> str | None:
    asked = r.scenario.kv_cache_dtype
    if asked is None or asked.lower() == "auto":
        return None
    own = r.spec.quantization.kv_cache_dtype if r.spec.quantization else None
    if r.kv_format.id == "kv-bf16" and own is None:
        return None
    plain = asked.lower().replace("-", "_")
    return KV_SPELLINGS.get(plain, plain)


def _speculation(r: Resolved) -> list[tuple[str, str]]:
    s = r.scenario
    if r.speculative_method is None:
        return []
    config: dict[str, Any] = {"method": r.speculative_method}
    if s.draft_model is not None:
        config["model"] = s.draft_model
        if s.draft_tensor_parallel_size is not None:
            config["draft_tensor_parallel_size"] = s.draft_tensor_parallel_size
    config["num_speculative_tokens"] = s.num_speculative_tokens or 1
    return [("--speculative-config", json.dumps(config))]


def _adapters(r: Resolved) -> list[tuple[str, str]]:
    s = r.scenario
    found: list[tuple[str, str]] = []
    if s.max_loras:
        found += [
            ("--enable-lora", ""),
            ("--max-loras", str(s.max_loras)),
            ("--max-lora-rank", str(s.max_lora_rank)),
        ]
    if s.images_per_request is not None and r.spec.encoder is not None:
        found.append(("--limit-mm-per-prompt", json.dumps({"image": s.images_per_request})))
    return found


def _too_new(r: Resolved) -> list[tuple[str, str, str]]:
    late = [row for row in _rows() if _newer(row, r) and _one_flag(row, r)]
    return [(row["flag"], row["key"], row["since"]) for row in late]


def _newer(row: dict[str, str], r: Resolved) -> bool:
    return bool(row["since"]) and r.release.version < parse_version(row["since"])


@lru_cache(maxsize=1)
def _rows() -> tuple[dict[str, str], ...]:
    return tuple(read_table("serve_flags"))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.10g}" if value else "0.0"
    return str(value)


__all__ = ["serve_command", "serve_notes", "serve_script"]
