"""The Plan page without a browser, and what can be read off it."""

from __future__ import annotations

from pathlib import Path

from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).parents[2]
LLAMA = (
    '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, '
    '"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, '
    '"max_position_embeddings": 8192}'
)


def page(**link: str) -> AppTest:
    """The page opened with a link."""
    found = AppTest.from_file(str(ROOT / "pages" / "plan.py"), default_timeout=30)
    for key, value in link.items():
        found.query_params[f"plan_{key}"] = value
    return found.run()


def in_link(found: AppTest, key: str) -> str:
    value = found.query_params[f"plan_{key}"]
    return value if isinstance(value, str) else value[-1]


def figures(found: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in found.metric}


def verdict(found: AppTest) -> str:
    for kind in (found.success, found.warning, found.error):
        if kind:
            return str(kind[0].value)
    raise AssertionError("no verdict on the page")


def problem(found: AppTest) -> str:
    """The sentence about the input; fails on a traceback."""
    assert not found.exception
    sentences = [str(one.value) for one in found.error if "Check the input" in str(one.value)]
    assert len(sentences) == 1
    return sentences[0].replace("\\", "")
