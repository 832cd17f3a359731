"""The command line: exit codes, one line on standard error, order of JSON lines, and every kind of bad input."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from capacity.cli import main

ROOT = Path(__file__).resolve().parents[2]
OK = {"model": "llama-3.1-8b", "gpu": "h100", "max_model_len": 8192}
BERT = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 768, "num_attention_heads": 12}

# (text of a scenario, words that the sentence must hold)
BAD = [
    ("", "not JSON"),
    ("not json", "not JSON"),
    ("<!doctype html><html><body>Sign in</body></html>", "starts with '<!doctype html>"),
    ('{"model": "llama-3.1-8b", "gpu": "h100"', "not JSON"),
    ("[]", "expected a JSON object"),
    ("[" * 1000 + "]" * 1000, "expected a JSON object"),
    ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    ('{"model_config": ' + '{"a":' * 1000 + "1" + "}" * 1000 + ', "gpu": "h100"}', ""),
    ('{"model": "' + "x" * 6_000_001 + '"}', "characters"),
    (
        '{"model": "' + "x" * 5_000_000 + '", "gpu": "h100"}',
        "model has 5000000 characters; expected at most 300",
    ),
    ('{"model": "llama-3.1-8b", "gpu": "h100", "max_model_len": NaN}', "finite number"),
    ('{"model": "llama-3.1-8b", "gpu": "h100", "gpu_memory_utilization": Infinity}', "finite number"),
    ('{"model": "llama-3.1-8b", "gpu": "h100", "weights_gib": -Infinity}', "finite number"),
    (
        json.dumps({**OK, "gpu_memory_utilization": 0}),
        "gpu_memory_utilization is 0; expected a number, 0.01 to 1",
    ),
    (
        json.dumps({**OK, "gpu_memory_utilization": 1.5}),
        "gpu_memory_utilization is 1.5; expected a number, 0.01 to 1",
    ),
    (
        json.dumps({**OK, "max_model_len": -5}),
        "max_model_len is -5; expected a whole number, 1 to 100,000,000",
    ),
    (json.dumps({**OK, "max_model_len": 0}), "max_model_len is 0"),
    (json.dumps({**OK, "max_model_len": 10**30}), "max_model_len is"),
    ('{"model": "llama-3.1-8b", "gpu": "h100", "max_model_len": 1e400}', "finite number"),
    ('{"model": "llama-3.1-8b", "gpu": "h100", "max_model_len": ' + "9" * 400 + "}", "400 digits"),
    (json.dumps({**OK, "max_model_len": "8192"}), "max_model_len is '8192'; expected a whole number"),
    (json.dumps({**OK, "max_model_len": 8192.5}), "expected a whole number"),
    (json.dumps({**OK, "max_model_len": True}), "max_model_len is true"),
    (json.dumps({**OK, "max_model_len": [8192]}), "max_model_len is a list"),
    (json.dumps({**OK, "max_model_len": 200_000}), "above the model's 131,072"),
    (json.dumps({**OK, "enforce_eager": "yes"}), "enforce_eager is 'yes'; expected true or false"),
    (json.dumps({**OK, "model": "llama-9"}), "not in the catalogue"),
    (json.dumps({**OK, "model": ""}), "expected a text"),
    (json.dumps({**OK, "model": 7}), "model is 7; expected a text"),
    (json.dumps({"gpu": "h100"}), "model is missing"),
    (json.dumps({"model": "llama-3.1-8b"}), "no memory is known"),
    (json.dumps({**OK, "gpu": "h1000"}), "not in the catalogue"),
    (json.dumps({**OK, "gpu": "RX 9070 XT"}), "a plan also takes gpu_memory_gib in place of gpu"),
    (json.dumps({**OK, "weight_format": "int1"}), "int1"),
    (json.dumps({**OK, "kv_cache_dtype": "fp3"}), "fp3"),
    (json.dumps({**OK, "dtype": "int9"}), "dtype is 'int9'; expected auto, bfloat16, float16 or float32"),
    (json.dumps({**OK, "engine_version": "latest"}), "engine_version is 'latest'; expected a vLLM release"),
    (json.dumps({**OK, "engine_version": "0.1.0"}), "older than any known release"),
    (json.dumps({**OK, "engine": "ollama"}), "engine is 'ollama'; expected one of vllm"),
    (
        json.dumps({**OK, "tensor_parallel_size": 3}),
        "does not divide the 32 attention heads; valid: 1, 2, 4, 8",
    ),
    (json.dumps({**OK, "tensor_parallel_size": 0}), "tensor_parallel_size is 0"),
    (json.dumps({**OK, "pipeline_parallel_size": 64}), "more than the model's 32 layers"),
    (json.dumps({**OK, "pipeline_layer_split": [20, 20]}), "expected 2 stages that sum to 32"),
    (json.dumps({**OK, "decode_context_parallel_size": 2}), "does not divide tensor_parallel_size 1"),
    (json.dumps({**OK, "tensor_paralel_size": 2}), "did you mean 'tensor_parallel_size'?"),
    (json.dumps({**OK, "zzz": 2}), "unknown key 'zzz'"),
    (json.dumps({**OK, "quantization": "fp8"}), "did you mean 'weight_format'?"),
    (json.dumps({**OK, "tp": 2}), "did you mean 'tensor_parallel_size'?"),
    (json.dumps({**OK, "max_model_len": -1}), "search max_model_len finds the longest that fits"),
    (json.dumps({**OK, "max_model_len": "auto"}), "search max_model_len finds the longest that fits"),
    (json.dumps({**OK, "model_config": {}}), "give model or model_config, not both"),
    (json.dumps({**OK, "kv_cache_gib": 3, "kv_cache_memory_bytes": 5}), "not both"),
    (json.dumps({"gpu": "h100", "model_config": BERT}), "bert"),
    (json.dumps({"gpu": "h100", "model_config": {}}), ""),
    (json.dumps({"gpu": "h100", "model_config": "<html>"}), "expected a config.json object"),
    (json.dumps({"gpu": "h100", "model_config": [1]}), "expected a config.json object"),
    (json.dumps({**OK, "prompt_tokens": {"median": 3}}), "expected mean and cv, or values"),
    (json.dumps({**OK, "prompt_tokens": {"values": []}}), "expected 1 to 100,000 lengths"),
    (json.dumps({**OK, "prompt_tokens": {"mean": 100, "cv": -1}}), "prompt_tokens.cv is -1"),
    (
        json.dumps({**OK, "speculative_method": "draft_model", "num_speculative_tokens": 2}),
        "needs draft_model",
    ),
]
IDS = [f"{i}-{words[:28]}" for i, (_, words) in enumerate(BAD)]


def run(*arguments: str, stdin: str = "") -> tuple[int, str]:
    out = io.StringIO()
    return main(list(arguments), stdin=io.StringIO(stdin), stdout=out), out.getvalue()


@pytest.mark.parametrize(("text", "words"), BAD, ids=IDS)
def test_bad_input_is_one_sentence_and_exit_2(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "scenario.json"
    scenario.write_text(text, encoding="utf-8")
    code, out = run("plan", "--json", "--scenario", str(scenario))
    said = capsys.readouterr().err
    assert (code, out) == (2, "")
    assert said.count("\n") == 1 and said.endswith("\n") and len(said) <= 601
    assert "Traceback" not in said and len(said.split()) >= 4
    assert words.lower() in said.lower()


@pytest.mark.parametrize(("text", "words"), BAD, ids=IDS)
def test_a_bad_line_is_answered_and_the_next_goes_on(text: str, words: str) -> None:
    good = json.dumps(OK)
    lines = [good, text.replace("\n", " "), json.dumps({**OK, "max_model_len": 4096})]
    code, out = run("plan", "--jsonl", stdin="\n".join(lines) + "\n")
    answers = [json.loads(line, parse_constant=_no_constants) for line in out.splitlines()]
    assert code == 0
    if not text:  # an empty line is no scenario
        assert len(answers) == 2
        return
    assert len(answers) == 3
    assert set(answers[1]) == {"error", "field"}
    assert words.lower() in answers[1]["error"].lower() and "\n" not in answers[1]["error"]
    assert answers[0]["settings"]["max_model_len"] == 8192
    assert answers[2]["settings"]["max_model_len"] == 4096


def _no_constants(name: str) -> float:
    raise AssertionError(f"{name} is not JSON")


def test_json_lines_keep_their_order() -> None:
    lengths = [1024, 4096, 2048, 8192, 512]
    lines = "".join(json.dumps({**OK, "max_model_len": n}) + "\n" for n in lengths)
    _, out = run("plan", "--jsonl", stdin=lines)
    assert [json.loads(line)["settings"]["max_model_len"] for line in out.splitlines()] == lengths


def test_flags_are_the_base_of_each_line() -> None:
    lines = '{"gpu": "h200"}\n{"gpu": "h100", "max_model_len": 2048}\n'
    _, out = run("plan", "--jsonl", "--model", "llama-3.1-8b", "--max-model-len", "4096", stdin=lines)
    first, second = (json.loads(line) for line in out.splitlines())
    assert (first["settings"]["max_model_len"], second["settings"]["max_model_len"]) == (4096, 2048)
    assert first["memory"]["total_gib"] > second["memory"]["total_gib"]


def test_does_not_fit_is_an_answer() -> None:
    code, out = run("plan", "--json", "--model", "llama-3.1-70b", "--gpu", "h100")
    answer = json.loads(out)
    assert code == 0
    assert answer["fits"] is False and answer["binding_constraint"] == "weights"
    assert answer["fixes"] and all(fix["guaranteed"] >= 1 for fix in answer["fixes"])


def test_every_key_of_the_contract_is_there() -> None:
    _, out = run("plan", "--json", "--model", "llama-3.1-8b", "--gpu", "h100", "--prompt-tokens", "900")
    answer = json.loads(out)
    assert {"fits", "binding_constraint", "fixes", "memory", "kv_cache", "concurrency", "textbook"} <= set(
        answer
    )
    assert {"fragmentation", "assumptions", "warnings"} <= set(answer)
    memory = {"total_gib", "budget_gib", "terms", "kv_cache_gib", "kv_cache_low_gib", "kv_cache_high_gib"}
    assert memory <= set(answer["memory"])
    assert {"name", "gib", "low_gib", "high_gib", "basis", "source"} <= set(answer["memory"]["terms"][0])
    cache = {"bytes_per_token_per_gpu", "bytes_per_block", "num_blocks", "blocks_per_max_request", "tokens"}
    assert cache | {"max_concurrency", "log_lines"} <= set(answer["kv_cache"])
    assert {"guaranteed", "typical", "seats", "binding"} <= set(answer["concurrency"])
    assert {"bytes_per_token", "kv_gib_per_request", "concurrency"} <= set(answer["textbook"])
    parts = {"reserved_tokens", "used_tokens", "waste_share", "contiguous_requests", "paged_requests"}
    assert parts <= set(answer["fragmentation"])


def test_switches_need_no_value_and_take_one() -> None:
    for words, eager in ((["--enforce-eager"], 0.0), (["--enforce-eager", "true"], 0.0)):
        _, out = run("plan", "--json", "--model", "llama-3.1-8b", *words, "--gpu", "h100")
        graphs = next(t for t in json.loads(out)["memory"]["terms"] if t["name"] == "cuda_graphs")
        assert graphs["gib"] == eager


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "required"),
        (("plam",), "invalid choice"),
        (("plan", "--gpuu", "h100"), "--gpuu"),
        (("plan", "--scenario", "no-such-file.json"), "cannot read 'no-such-file.json'"),
        (("plan", "--scenario", "."), "cannot read '.'"),
        (("plan", "--max-model-len", "lots", "--model", "llama-3.1-8b", "--gpu", "h100"), "'lots'"),
        (("search", "--model", "llama-3.1-8b", "--gpu", "h100"), "question is missing"),
        (
            ("search", "--question", "x", "--model", "llama-3.1-8b", "--gpu", "h100"),
            "expected one of max_model_len",
        ),
        (("export", "--what", "pdf", "--model", "llama-3.1-8b", "--gpu", "h100"), "expected one of report"),
    ],
)
def test_bad_words(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(*arguments)
    said = capsys.readouterr().err
    assert (code, out) == (2, "")
    assert words in said and said.count("\n") == 1


def test_a_file_that_is_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00\x80")
    assert run("plan", "--scenario", str(tmp_path / "x.json"))[0] == 2
    assert "UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "start"),
    [
        ("report", "<!doctype html>"),
        ("serve-command", "# vLLM "),
        ("json", "{\n"),
        ("csv", 'key,value\nverdict,"Fits. '),
    ],
)
def test_export_writes_the_document(what: str, start: str) -> None:
    code, out = run(
        "export", "--what", what, "--model", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", "8192"
    )
    assert code == 0 and out.startswith(start)
    code, out = run("export", "--what", what, "--json", "--model", "llama-3.1-8b", "--gpu", "h100")
    assert json.loads(out)["what"] == what


def test_search_answers_with_a_plan() -> None:
    _, out = run(
        "search",
        "--question",
        "max_model_len",
        "--concurrency",
        "100",
        "--json",
        "--model",
        "llama-3.1-8b",
        "--gpu",
        "h100",
    )
    answer = json.loads(out)
    assert answer["answer"]["max_model_len"] == answer["plan"]["settings"]["max_model_len"]
    assert answer["plan"]["concurrency"]["guaranteed"] >= 100


def test_text_for_people_names_the_verdict() -> None:
    _, out = run("plan", "--model", "llama-3.1-8b", "--gpu", "h100")
    assert "verdict: Fits. " in out and "GPU KV cache size" in out


def test_a_models_folder_is_its_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run("plan", "--model-config", str(tmp_path), "--gpu", "h100")
    assert code == 2
    assert "config.json" in capsys.readouterr().err
    shape = Path("tests/fixtures/model_shapes/llama3_8b.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(shape, encoding="utf-8")
    by_folder = run("plan", "--json", "--model-config", str(tmp_path), "--gpu", "h100")
    by_file = run("plan", "--json", "--model-config", str(tmp_path / "config.json"), "--gpu", "h100")
    assert by_folder == by_file and by_folder[0] == 0


def test_as_a_process() -> None:
    command = [sys.executable, "-m", "capacity", "plan", "--json"]
    good = subprocess.run(
        [*command, "--model", "llama-3.1-8b", "--gpu", "h100"], cwd=ROOT, capture_output=True, text=True
    )
    assert good.returncode == 0 and good.stderr == "" and json.loads(good.stdout)["fits"] is True
    bad = subprocess.run(
        [*command, "--scenario", "-"], cwd=ROOT, input="<html>", capture_output=True, text=True
    )
    assert bad.returncode == 2 and bad.stdout == "" and bad.stderr.count("\n") == 1


def test_the_pages_download_is_a_scenario(tmp_path: Path) -> None:
    asked = {"model": "llama-3.1-8b", "gpu": "h100", "max_model_len": 8192}
    saved = tmp_path / "waterline-plan.json"
    saved.write_text(json.dumps(asked))
    code, out = run("plan", "--scenario", str(saved), "--json")
    answer = json.loads(out)
    saved.write_text(json.dumps({"scenario": asked, **answer}))
    code, again = run("plan", "--scenario", str(saved), "--json")
    assert code == 0 and json.loads(again) == answer


@pytest.mark.parametrize(
    ("typed", "tokens"), [("8k", 8000), ("8K", 8192), ("16_384", 16_384), ("1,000", 1000)]
)
def test_flags_take_lengths_as_vllm_does(typed: str, tokens: int) -> None:
    code, out = run("plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", typed, "--json")
    assert code == 0 and json.loads(out)["settings"]["max_model_len"] == tokens


def test_the_verdict_comes_first() -> None:
    code, out = run("plan", "--model", "llama-3.1-8b", "--gpu", "h100")
    assert code == 0 and out.startswith("verdict: Fits.")
