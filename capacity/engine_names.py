"""Engines as people spell them. Source: catalog/engine_names.csv. Left out: releases (engine.py)."""

from __future__ import annotations

import re
from functools import lru_cache

from capacity.catalog.table import read_table


@lru_cache(maxsize=256)
def engine_name(text: str) -> tuple[str, str]:
    """(the engine as the field table spells it, a note where it is only taken for one). Unknown texts come back as they are.

    >>> engine_name("TensorRT-LLM"), engine_name("ollama")
    (('trtllm', ''), ('ollama', ''))
    >>> engine_name("vllm-ascend")[1]
    "engine 'vllm-ascend' is taken as vllm: vLLM's plug-in for Ascend; its releases and kernels are its own"
    """
    wanted = re.sub(r"[\s_()-]", "", text.lower())
    for row in read_table("engine_names"):
        if row["spelling"] == wanted:
            note = f"engine {text.strip()[:40]!r} is taken as {row['engine']}: {row['note']}"
            return row["engine"], note if row["note"] else ""
    return text, ""
