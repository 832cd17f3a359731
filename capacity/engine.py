"""What changes from vLLM release to release, as rows of a table: KV rules, defaults, what counts in the budget.

Source: catalog/engine_releases.csv and engine_defaults.csv, each row with its own. Left out: V0's swapping.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from capacity.catalog.table import read_table
from capacity.errors import CapacityError
from capacity.hardware import Gpu

Version = tuple[int, int, int]
GIB_BIG, GIB_HUGE = 70, 160
V1_BY_ORACLE: Version = (0, 8, 0)
V1_ALWAYS: Version = (0, 10, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRules:
    """How one release plans its KV cache. ``group_slack`` None = always the smallest count.

    ``dealing``: layers of a kind go to its groups one by one, or in runs. ``groups_by_stage``: each pipeline stage
    groups its own layers. ``mixed_pages``: layers that keep every token may differ in page size (``attention``: not
    for an indexer). ``mixed_pages_by_stage`` no: such a group counts the pages of all stages on each.
    ``own_v_width`` no: V is padded to the width of K. ``state_ids``: block ids of a recurrent state with prefix
    caching; ``state_slots``: plus one for each speculative token. ``state_block_multiple``: the raised block size is
    a multiple of the one asked for.
    ``tokens_logged``: what "GPU KV cache size" means. ``full_fallback``: windows beside MLA are kept in full where
    pages cannot be made equal.
    ``size_check``: what the start-up check counts for one request: ``per_layer`` (each layer alone),
    ``first_group`` (the first group only: lets hybrids start too small), ``blocks`` (whole blocks).
    ``check_by_stage`` no: the whole model against the smallest stage. ``override_in_check``: the check counts
    num_gpu_blocks_override in place of the memory.
    """

    release: str
    unequal_pages: bool = True
    group_slack: float | None = 1.5
    mixed_pages: Literal["no", "attention", "yes"] = "yes"
    mixed_pages_by_stage: bool = True
    dealing: Literal["in_runs", "in_turn"] = "in_turn"
    groups_by_stage: bool = False
    own_v_width: bool = True
    state_ids: Literal["one", "length", "two"] = "two"
    state_slots: bool = True
    state_block_multiple: bool = True
    mla_state_alignment: int = 128
    tokens_logged: Literal["config_block", "group_block", "concurrency"] = "concurrency"
    concurrent_steps_counted: bool = True
    one_log_line: bool = True
    lines_per_stage: bool = False
    pads_pages: bool = True
    full_fallback: bool = True
    null_block_in_check: bool = True
    size_check: Literal["per_layer", "first_group", "blocks"] = "blocks"
    check_by_stage: bool = True
    override_in_check: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRelease:
    """One release's row. ``asked`` is what the user wrote; ``notes`` say what was assumed about it.

    ``mamba_caching``: how Mamba layers cache prefixes when nothing else is said: ``all_only`` (a state for each
    block, and no other kind of state caches prefixes), ``all``, ``align`` (two blocks), ``checkpoint`` (and one more).
    """

    asked: str
    version: Version
    row: str
    gpu_memory_utilization: float
    graphs_in_budget: bool
    state_prefix_caching: bool
    mamba_caching: Literal["none", "all_only", "all", "align", "checkpoint"]
    async_scheduling: bool
    chunked_hybrid: bool
    activation_factor: float
    runner: Literal["v0", "v1"]
    kv: KvRules
    source: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerDefaults:
    """Token budget and seats of a release on a class of GPU, with the source."""

    max_num_batched_tokens: int
    max_num_seqs: int
    source: str


def parse_version(text: str) -> Version:
    """A release as three numbers. Build suffixes (rc, dev, post, +local) are dropped.

    >>> parse_version("0.11.1rc3.dev29+g3fa2c1218"), parse_version("v0.32")
    ((0, 11, 1), (0, 32, 0))
    """
    match = re.fullmatch(
        r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:[.\-+]?(?:rc|dev|post|a|b)?[\w.+\-]*)?", text.strip()
    )
    if match is None:
        raise CapacityError(
            f"engine_version is {text[:40]!r}; expected a vLLM release such as 0.11.0 or 0.32.0",
            field="engine_version",
        )
    return int(match[1]), int(match[2]), int(match[3] or 0)


@lru_cache(maxsize=256)
def engine_release(text: str | None = None) -> EngineRelease:
    """The rules of a vLLM release; None = the latest known one.

    A newer one than known uses the latest rules and says so; one older than the table is refused.
    """
    rows = _release_rows()
    latest = parse_version(known_releases()[0])
    version = latest if text is None else parse_version(text)
    asked = _dotted(version) if text is None else text.strip().removeprefix("v")
    if version < rows[0][0]:
        raise CapacityError(
            f"engine_version {asked} is older than any known release; known are {rows[0][1]['release']} to "
            f"{_dotted(latest)}",
            field="engine_version",
        )
    notes: list[str] = []
    if version > latest:
        notes.append(f"release {asked} is newer than any known; the rules of {_dotted(latest)} are used")
    if version < (0, 10, 2):
        notes.append(
            f"release {asked}: the KV rules are those of 0.10.2, checked on start-up logs only, not on the planner itself"
        )
    row = [values for first, values in rows if first <= version][-1]
    yes = {key: value == "yes" for key, value in row.items()}
    return EngineRelease(
        asked=asked,
        version=version,
        row=row["release"],
        gpu_memory_utilization=float(row["gpu_memory_utilization"]),
        graphs_in_budget=yes["graphs_in_budget"],
        state_prefix_caching=yes["state_prefix_caching"],
        mamba_caching=_one_of(row, "mamba_caching", ("none", "all_only", "all", "align", "checkpoint")),
        async_scheduling=yes["async_scheduling"],
        chunked_hybrid=yes["chunked_hybrid"],
        activation_factor=float(row["activation_factor"]),
        runner=_one_of(row, "runner", ("v0", "v1")),
        kv=KvRules(
            release=asked,
            unequal_pages=yes["unequal_pages"],
            group_slack=float(row["group_slack"]) if row["group_slack"] else None,
            mixed_pages=_one_of(row, "mixed_pages", ("no", "attention", "yes")),
            mixed_pages_by_stage=yes["mixed_pages_by_stage"],
            dealing=_one_of(row, "dealing", ("in_runs", "in_turn")),
            groups_by_stage=yes["groups_by_stage"],
            own_v_width=yes["own_v_width"],
            state_ids=_one_of(row, "state_ids", ("one", "length", "two")),
            state_slots=yes["state_slots"],
            state_block_multiple=yes["state_block_multiple"],
            mla_state_alignment=int(row["mla_state_alignment"]),
            tokens_logged=_one_of(row, "tokens_logged", ("config_block", "group_block", "concurrency")),
            concurrent_steps_counted=yes["concurrent_steps_counted"],
            one_log_line=yes["one_log_line"],
            lines_per_stage=yes["lines_per_stage"],
            pads_pages=yes["pads_pages"],
            full_fallback=yes["full_fallback"],
            null_block_in_check=yes["null_block_in_check"],
            size_check=_one_of(row, "size_check", ("per_layer", "first_group", "blocks")),
            check_by_stage=yes["check_by_stage"],
            override_in_check=yes["override_in_check"],
        ),
        source=row["source"],
        notes=tuple(notes),
    )


def on_device(release: EngineRelease, gpu: Gpu | None) -> EngineRelease:
    """The release as it runs on a device: 0.8 and 0.9 fall back to V0 below compute capability 8.0 and on AMD.

    Source: the V1 oracle in engine/arg_utils.py of 0.8.5 ("Need at least Ampere", "Non-CUDA is off by default").
    """
    if gpu is None or not V1_BY_ORACLE <= release.version < V1_ALWAYS:
        return release
    capability = gpu.compute_capability.split(".")[0]
    too_old = gpu.vendor == "NVIDIA" and capability.isdigit() and int(capability) < 8
    return replace(release, runner="v0") if too_old or gpu.vendor == "AMD" else release


@lru_cache(maxsize=1)
def known_releases() -> tuple[str, ...]:
    """Releases that a person can pick, newest first: every one whose planner was run, and the older rows.

    Source: the column ``known`` of engine_releases.csv.
    """
    return tuple(
        sorted(
            (r for _, row in _release_rows() for r in row["known"].split()), key=parse_version, reverse=True
        )
    )


def gpu_class(total_gib: float, name: str) -> Literal["small", "big", "huge"]:
    """The engine's class of a device: it decides the default token budget and seats.

    NVML gives no memory for a DGX Spark (GB10), so the engine takes the small class there (2,048 tokens in a log).

    >>> gpu_class(79.18, "NVIDIA H100 80GB HBM3"), gpu_class(79.25, "NVIDIA A100-SXM4-80GB")
    ('big', 'small')
    """
    if "a100" in name.lower() or "gb10" in name.lower():
        return "small"
    return "huge" if total_gib >= GIB_HUGE else "big" if total_gib >= GIB_BIG else "small"


def scheduler_defaults(
    release: EngineRelease, *, total_gib: float, gpu_name: str, usage: Literal["api_server", "llm_class"]
) -> SchedulerDefaults:
    """Default max_num_batched_tokens and max_num_seqs before the engine's own caps are applied."""
    wanted = gpu_class(total_gib, gpu_name)
    version = min(release.version, (0, 7, 999)) if release.runner == "v0" else release.version
    best = None
    for first, row in _default_rows():
        if first <= version and row["usage"] == usage and row["gpu_class"] in (wanted, "any"):
            best = row
    if best is None:
        raise CapacityError(f"no defaults known for release {release.asked}", field="engine_version")
    return SchedulerDefaults(
        max_num_batched_tokens=int(best["max_num_batched_tokens"]),
        max_num_seqs=int(best["max_num_seqs"]),
        source=best["source"],
    )


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _one_of(row: dict[str, str], column: str, allowed: tuple[str, ...]) -> Any:
    for value in allowed:
        if row[column] == value:
            return value
    raise ValueError(f"engine_releases.csv: {column} is {row[column]!r}, expected one of {allowed}")


def _read(name: str, key: str) -> tuple[tuple[Version, dict[str, str]], ...]:
    return tuple((parse_version(row[key]), row) for row in read_table(name))


@lru_cache(maxsize=1)
def _release_rows() -> tuple[tuple[Version, dict[str, str]], ...]:
    return _read("engine_releases", "release")


@lru_cache(maxsize=1)
def _default_rows() -> tuple[tuple[Version, dict[str, str]], ...]:
    return _read("engine_defaults", "first_release")
