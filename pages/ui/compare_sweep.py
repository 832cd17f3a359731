"""The Sweep tab: one or two inputs of one scenario over lists of values, with progress, a cancel, lines or a heat map.

A cancelled sweep keeps what it has. Left out: the arithmetic (speed_grid).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import streamlit as st

from capacity.compare_set import Entry
from capacity.errors import CapacityError
from capacity.scenario import field_table
from capacity.speed_grid import ARRAY_KEYS, Axis, SpeedGrid, speed_grid
from pages.ui.background import carry_out, forget
from pages.ui.compare_charts import MEASURES, MOST_LINES, sweep_lines, sweep_map
from pages.ui.compare_parts import draw, plain
from pages.ui.fields import number, to_scenario
from pages.ui.format import first_upper, in_flight, percent

SLOT = "cmp_sweep"
KEPT: dict[str, Any] = {"bind": "query-params", "persist_state": "session"}
VALUES = {
    "concurrency": "1 2 4 8 16 32 64 128 256",
    "prompt_tokens": "256 512 1024 2048 4096 8192",
    "output_tokens": "64 128 256 512 1024 2048",
    "gpu": "l40s a100-80-sxm h100-sxm h200 b200",
    "tensor_parallel_size": "1 2 4 8",
    "pipeline_parallel_size": "1 2 4",
    "data_parallel_size": "1 2 4 8",
    "weight_format": "bf16 fp8 awq",
    "kv_cache_dtype": "auto fp8",
    "max_num_seqs": "16 32 64 128 256 512",
    "max_model_len": "4096 8192 16384 32768",
    "gpu_memory_utilization": "0.8 0.85 0.9 0.95",
    "shared_prefix_tokens": "0 256 512 1024",
    "enable_prefix_caching": "on off",
    "enable_expert_parallel": "on off",
}
MOST_VALUES = 500


def labels() -> dict[str, str]:
    """What can be swept, with its name on the screen; the usual ones first."""
    table = field_table()
    found = {"concurrency": "Requests in flight"}
    usual = [key for key in VALUES if key in table]
    for key in dict.fromkeys((*usual, *table)):
        if table[key].type not in ("object", "numbers", "integers"):
            found[key] = table[key].label
    return found


def values_of(key: str, text: str) -> tuple[Any, ...]:
    """The values of an axis from a text. Raises CapacityError.

    >>> values_of("concurrency", "1, 2 4k"), values_of("enforce_eager", "on off")
    ((1, 2, 4000), (True, False))
    """
    parts = [part for part in re.split(r"[\s,;]+", text.strip() or VALUES.get(key, "")) if part]
    if not parts:
        raise CapacityError(f"{key} has no values to sweep; expected some, separated by spaces", field=key)
    if len(parts) > MOST_VALUES:
        raise CapacityError(f"{key} has {len(parts):,} values; expected at most {MOST_VALUES}", field=key)
    found = []
    for part in dict.fromkeys(parts):
        value = number(part) if key == "concurrency" else to_scenario({key: part})[key]
        if key in ARRAY_KEYS and (not isinstance(value, int | float) or not 1 <= value <= 1e6):
            raise CapacityError(f"{key} has the value {part[:40]!r}; expected numbers, 1 to 1,000,000", field=key)  # fmt: skip
        found.append(value)
    return tuple(found)


def sweep(entries: tuple[Entry, ...], load: float | None) -> None:
    """The tab."""
    names, table = [one.name for one in entries], labels()
    row = st.container(horizontal=True, gap="small", vertical_alignment="bottom")
    name = row.selectbox("Scenario", names, key="cmp_of", width=250, **KEPT)
    keys = {label: key for key, label in table.items()}
    x = keys[row.selectbox("Sweep", list(keys), key="cmp_x", width=190, **KEPT)]
    x_text = row.text_input("over", key="cmp_xv", placeholder=VALUES.get(x, "values"), width=260, **KEPT)
    row = st.container(horizontal=True, gap="small", vertical_alignment="bottom")
    second = row.selectbox(
        "and", list(keys), index=None, key="cmp_y", placeholder="nothing else", width=190, **KEPT
    )
    y = keys[second] if second else None
    y_text = (
        row.text_input("over", key="cmp_yv", placeholder=VALUES.get(y, "values"), width=260, **KEPT)
        if y
        else ""
    )
    shown = {label: name for name, label in MEASURES.items()}
    measure = shown[row.selectbox("Show", list(shown), key="cmp_measure", width=190, **KEPT)]
    one = next((entry for entry in entries if entry.name == name), entries[0])
    try:
        axes = (
            Axis(key=x, values=values_of(x, x_text)),
            Axis(key=y, values=values_of(y, y_text)) if y else None,
        )
        grid = _swept(one, axes, load or 32.0)
    except CapacityError as error:
        st.error(f"**Check the sweep.** {plain(first_upper(str(error)))}", icon=":material/error:")
        return
    if grid is not None:
        _show(grid, measure, table)
    if "concurrency" not in (x, y):
        st.caption(f"At {in_flight(load or 32)} requests in flight.")
    if one.measured:
        st.caption("A sweep leaves measured points out: they hold for one deployment and one workload.")


def _swept(one: Entry, axes: tuple[Axis, Axis | None], load: float) -> SpeedGrid | None:
    """The grid, kept while its inputs stay; with progress and a cancel that keeps what there is."""
    request = json.dumps([one.scenario.to_json(), [(a.key, a.values) for a in axes if a], load], default=str)
    total = int(
        np.prod([len(axis.values) if axis.key not in ARRAY_KEYS else 1 for axis in axes if axis] or [1])
    )

    def work(progress: Callable[[float], bool]) -> SpeedGrid:
        return speed_grid(one.scenario, axes[0], axes[1], concurrency=load, on_row=progress)

    task = carry_out(SLOT, request, work, said=lambda share: f"Planned {round(share * total):,} of {total:,}")
    if task.error is not None:
        raise task.error
    grid = task.result
    if grid is not None and not grid.complete:
        st.warning(
            f"Stopped after {percent(task.share)}. What is missing is left blank.", icon=":material/warning:"
        )
        st.button("Run the whole sweep", key="cmp_sweep_again", on_click=forget, args=(SLOT,))
    return grid


def _show(grid: SpeedGrid, measure: str, table: dict[str, str]) -> None:
    finite = np.isfinite(grid.measures[measure])
    if not finite.any():
        reason = next(iter(grid.reasons.values()), "nothing was computed")
        st.info(f"No point of this sweep has a value. {plain(first_upper(reason))}", icon=":material/info:")
        return
    as_lines = grid.y is None
    if grid.y is not None and len(grid.y.values) <= MOST_LINES:
        kind = st.segmented_control(
            "Drawn as",
            ["Heat map", "Lines"],
            default="Heat map",
            required=True,
            key="cmp_as",
            label_visibility="collapsed",
            **KEPT,
        )
        as_lines = kind == "Lines"
    draw((sweep_lines if as_lines else sweep_map)(grid, measure, table), "cmp_sweep")
    if grid.reasons:
        counted = len(grid.reasons)
        st.caption(
            f":material/info: {counted:,} point{'s have' if counted > 1 else ' has'} no value; the first reason: "
            f"{plain(first_upper(next(iter(grid.reasons.values()))))}"
        )
