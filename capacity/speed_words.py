"""How loads and engines are spelled by people, for the verbs estimate and size. Left out: scenario keys (scenario.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ENGINE_SPELLINGS = {
    "tensorrt-llm": "trtllm",
    "tensorrt_llm": "trtllm",
    "trt-llm": "trtllm",
    "trt_llm": "trtllm",
}


def seen(value: Any) -> str:
    """A value as a message quotes it, at most 40 characters.

    >>> seen(None), seen(-1), seen("x"), seen({}), seen([])
    ('missing', '-1', "'x'", 'an object', 'a list')
    """
    if value is None:
        return "missing"
    if isinstance(value, int | float | str):
        try:
            return repr(value)[:40]
        except ValueError:  # Python refuses to write whole numbers of thousands of digits
            return "a number of too many digits"
    return "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def with_engine(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario keys with the engine as the field table spells it.

    >>> with_engine({"engine": "vLLM"}), with_engine({"engine": "TensorRT-LLM"})
    ({'engine': 'vllm'}, {'engine': 'trtllm'})
    """
    engine = raw.get("engine")
    if not isinstance(engine, str):
        return dict(raw)
    plain = engine.strip().lower()
    return {**raw, "engine": ENGINE_SPELLINGS.get(plain, plain)}
