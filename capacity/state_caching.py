"""Where the engine itself caches the prefixes of recurrent state in another way than the plan counts, and what it costs.

The plan counts prefix caching of state as the engine's ``align`` mode: two blocks for each group of state layers.
Source: MambaModelConfig in models/config.py and MambaSpec of vLLM 0.11 to 0.32. Left out: speculative slots.
"""

from __future__ import annotations

from capacity.kv_cache.grouping import Grouping
from capacity.model import RecurrentState
from capacity.resolve import Resolved
from capacity.units import ceil_div

MAMBA = ("mamba1", "mamba2")
NEMOTRON_FLOAT32_FROM = (0, 20, 0)


def needs_align_flag(r: Resolved) -> bool:
    """True where only ``--mamba-cache-mode align`` makes the engine do what the plan counts."""
    return r.prefix_caching and r.release.mamba_caching == "all" and bool(_kinds(r) & set(MAMBA))


def needs_state_dtype_flag(r: Resolved) -> bool:
    """True where the release keeps a state in float32 that the plan counts in the model's dtype (Nemotron-H)."""
    stated = any(mixer.state_dtype for mixer in r.spec.kinds() if isinstance(mixer, RecurrentState))
    family = r.spec.extra.get("family") == "nemotron_h"
    asked = r.scenario.mamba_ssm_cache_dtype not in (None, "auto")
    return family and not stated and not asked and r.release.version >= NEMOTRON_FLOAT32_FROM


def state_caching_warnings(r: Resolved, grouping: Grouping) -> list[str]:
    """One sentence for each way in which this release departs from the plan by itself."""
    kinds, mode = _kinds(r), r.release.mamba_caching
    out = []
    if needs_state_dtype_flag(r):
        out.append(
            f"the state is counted in {r.spec.dtype}; without --mamba-ssm-cache-dtype release {r.release.asked} keeps it in "
            "float32 where the config names no dtype: set mamba_ssm_cache_dtype float32 to plan that"
        )
    if not r.prefix_caching or not kinds:
        return out
    states = [group.cache for group in grouping.groups if group.cache.kind == "state"]
    if mode == "all_only" and not kinds & set(MAMBA):
        out.append(
            f"release {r.release.asked} caches no prefixes of this kind of state and switches prefix caching off by "
            "itself: each group of state layers then takes one block"
        )
    if needs_align_flag(r):
        more = sum(max(0, ceil_div(r.max_model_len, cache.block_size) - 2) for cache in states)
        out.append(
            f"planned for --mamba-cache-mode align; without it release {r.release.asked} keeps a state for every block, "
            f"{more:,} block ids more for one request of {r.max_model_len:,} tokens"
        )
    if mode == "checkpoint" and "mamba2" in kinds:
        out.append(
            f"release {r.release.asked} keeps one more block for prefill checkpoints in each group of Mamba-2 layers: "
            f"{len(states)} block ids more for each request than counted here"
        )
    return out


def _kinds(r: Resolved) -> set[str]:
    return {mixer.kind for mixer in r.spec.kinds() if isinstance(mixer, RecurrentState)}
