"""The serve command: only what differs from the default, as vLLM spells it, safe to paste in a shell."""

import json
import shlex

import pytest

from capacity.export.serve_command import serve_command, serve_notes, serve_script
from capacity.plan import plan
from capacity.scenario import Scenario


def command(**keys: object) -> list[str]:
    text = serve_command(plan(Scenario.parse({"model": "llama-3.1-8b", "gpu": "h100", **keys})))
    return shlex.split(text.replace("\\\n", " "))


@pytest.mark.parametrize(
    ("keys", "flags"),
    [
        ({}, []),
        ({"max_num_seqs": 1024, "gpu_memory_utilization": 0.92}, []),
        ({"engine_version": "0.11.0", "gpu_memory_utilization": 0.9}, []),
        ({"engine_version": "0.11.0", "gpu_memory_utilization": 0.92}, ["--gpu-memory-utilization", "0.92"]),
        ({"max_model_len": 8192, "max_num_seqs": 64}, ["--max-model-len", "8192", "--max-num-seqs", "64"]),
        ({"max_model_len": 131072}, []),
        ({"tensor_parallel_size": 4}, ["--tensor-parallel-size", "4"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"engine_version": "0.9.2", "enable_prefix_caching": True}, []),
        ({"async_scheduling": False}, ["--no-async-scheduling"]),
        ({"kv_cache_dtype": "fp8-e4m3"}, ["--kv-cache-dtype", "fp8_e4m3"]),
        ({"kv_cache_dtype": "auto"}, []),
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"usage": "llm_class"}, ["--max-num-batched-tokens", "16384"]),
        ({"kv_cache_memory_bytes": 10**10}, ["--kv-cache-memory-bytes", "10000000000"]),
        ({"weight_format": "fp8"}, ["--quantization", "fp8"]),
        ({"max_loras": 2}, ["--enable-lora", "--max-loras", "2", "--max-lora-rank", "16"]),
        ({"cpu_offload_gib": 8}, ["--cpu-offload-gb", "8"]),
    ],
)
def test_only_what_differs_is_said(keys: dict[str, object], flags: list[str]) -> None:
    assert command(**keys) == ["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct", *flags]


def test_speculation_is_one_json_argument() -> None:
    words = command(model="deepseek-v3", gpu="h200", tensor_parallel_size=8, num_speculative_tokens=2)
    assert json.loads(words[-1]) == {"method": "mtp", "num_speculative_tokens": 2}
    assert words[-2] == "--speculative-config"


def test_pipeline_split_is_an_environment_variable() -> None:
    words = command(pipeline_layer_split=[20, 12])
    assert words[0] == "VLLM_PP_LAYER_PARTITION=20,12"
    assert words[-2:] == ["--pipeline-parallel-size", "2"]


@pytest.mark.parametrize("name", ["x'; rm -rf / #", "a b\nc", "$(id)", "-rf", "<script>"])
def test_hostile_names_stay_one_word(name: str) -> None:
    with open("tests/fixtures/model_shapes/llama3_8b.json", encoding="utf-8") as lines:
        config = {**json.load(lines), "_name_or_path": name}
    found = plan(Scenario.parse({"model_config": config, "gpu": "h100"}))
    words = shlex.split(serve_command(found))
    assert words[:2] == ["vllm", "serve"] and len(words) == 3
    assert words[2] == ("PATH_OR_ID_OF_THE_MODEL" if name.startswith("-") else name)


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"kv_cache_gib": 20}, "--kv-cache-memory-bytes 21474836480"),
        ({"gpu_memory_gib": 70}, "70 GiB"),
        ({"engine_version": "0.9.2", "async_scheduling": True}, "has no --async-scheduling"),
        ({"weight_format": "awq"}, "serve a checkpoint stored so"),
        ({"other_memory_gib": 2}, "taken by others"),
    ],
)
def test_what_no_flag_can_say_is_a_note(keys: dict[str, object], part: str) -> None:
    found = plan(Scenario.parse({"model": "llama-3.1-8b", "gpu": "h100", **keys}))
    assert any(part in note for note in serve_notes(found))
    script = serve_script(found).splitlines()
    assert script[0].startswith("# vLLM ") and script[len(serve_notes(found)) + 1].startswith("vllm serve")
