"""One scenario for every verb: keys of other verbs are left out with a note, engines and releases read as people spell them.

Source: catalog/verb_flags.csv (keys of the verbs). Left out: what a key may hold (scenario.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from capacity.catalog.table import read_table
from capacity.engine_names import engine_name
from capacity.scenario import field_table

# What tables and scripts write where a release is not known.
NO_RELEASE = ("", "none", "null", "nan", "n/a", "na", "unknown", "-", "?")
IMAGE = re.compile(r"[\w./-]+:(v?\d[\w.+-]*)")


def for_verb(raw: Mapping[str, Any], verb: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(keys that ``verb`` reads, notes on what was left out or taken). Keys that no verb knows stay, to be refused.

    >>> for_verb({"model": "qwen3-32b", "concurrency": 8, "engine": "vLLM"}, "plan")
    ({'model': 'qwen3-32b', 'engine': 'vllm'}, ('concurrency: a key of estimate and search, not used by plan',))
    """
    kept: dict[str, Any] = {}
    others: dict[tuple[str, ...], list[str]] = {}
    for key, value in raw.items():
        verbs = () if key in field_table() else verbs_of(str(key))
        if not verbs or verb in verbs:
            kept[key] = value
        elif value is not None:
            others.setdefault(verbs, []).append(str(key))
    notes = [
        f"{', '.join(keys)}: {'keys' if len(keys) > 1 else 'a key'} of {' and '.join(verbs)}, not used by {verb}"
        for verbs, keys in others.items()
    ]
    if isinstance(kept.get("engine"), str):
        kept["engine"], note = engine_name(kept["engine"])
        notes += [note] if note else []
    release = kept.get("engine_version")
    if isinstance(release, str):
        image = IMAGE.fullmatch(release.strip())
        kept["engine_version"] = (
            image[1] if image else None if release.strip().lower() in NO_RELEASE else release
        )
    return kept, tuple(notes)


@lru_cache(maxsize=1024)
def verbs_of(key: str) -> tuple[str, ...]:
    """The verbs that read ``key`` beside the scenario's own keys.

    >>> verbs_of("slo_ttft_s"), verbs_of("workload"), verbs_of("zzz")
    (('size',), ('simulate',), ())
    """
    found = {row["verb"] for row in read_table("verb_flags") if row["key"] == key}
    if not found:
        from capacity.simulation.scenario import SIMULATION_KEYS  # only for a key that nobody else reads

        found = {"simulate"} if key in SIMULATION_KEYS else set()
    return tuple(sorted(found))
