"""The Options tab: one scenario under every weight and cache format, every legal layout, and prefill and decode apart.

Left out: the rows (compare_option_rows) and the figures (capacity/speed_options.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from capacity.compare_set import Entry
from capacity.errors import CapacityError
from capacity.scenario import Scenario
from capacity.speed_options import (
    OFFLOADS,
    QUALITY,
    disaggregated_splits,
    format_variants,
    layout_variants,
    option_variants,
    prefix_note,
)
from pages.ui.compare_option_rows import (
    best,
    extrapolations,
    format_name,
    format_rows,
    layout_name,
    layout_rows,
    split_csv,
    split_rows,
    variant_csv,
)
from pages.ui.compare_parts import plain, table
from pages.ui.compare_state import typed
from pages.ui.downloads import download
from pages.ui.format import count, first_upper, table_csv

KEPT: dict[str, Any] = {"bind": "query-params", "persist_state": "session"}
PREFIX = {"as given": None, "off": False, "on": True}
LARGEST = 64


def options(entries: Sequence[Entry], load: float | None) -> None:
    """The tab."""
    names = [one.name for one in entries]
    row = st.container(horizontal=True, gap="small", vertical_alignment="bottom")
    name = row.selectbox("Scenario", names, key="cmp_of", width=250, **KEPT)
    one = next((entry for entry in entries if entry.name == name), entries[0])
    at = load or 32.0
    st.caption(
        f"At {count(at)} requests in flight. No figure for quality is given here: measure it on your own prompts."
    )
    _guarded(_formats, one.scenario, at)
    _guarded(_layouts, one.scenario, at)
    _guarded(_splits, one.scenario, at)


def _guarded(section: Callable[[Scenario, float], None], scenario: Scenario, load: float) -> None:
    try:
        section(scenario, load)
    except CapacityError as error:
        st.info(plain(first_upper(str(error))), icon=":material/info:")


def _head(title: str, rows: Callable[[], list[dict[str, Any]]], key: str) -> None:
    left, right = st.columns([12, 1], vertical_alignment="center", wrap=False)
    left.markdown(f"**{plain(title)}**")
    with right, st.container(horizontal=True, horizontal_alignment="right"):
        download("CSV", lambda: table_csv(rows()), f"{key}.csv", "text/csv", key=f"{key}_csv")


def _extrapolated(reasons: Sequence[str]) -> None:
    if reasons:
        lines = "  \n".join(plain(reason) for reason in reasons)
        st.caption(f":material/warning: **Extrapolated**, so the interval is wider. {lines}")


def _formats(scenario: Scenario, load: float) -> None:
    labels = {one.label: one for one in OFFLOADS}
    row = st.container(horizontal=True, gap="small", vertical_alignment="top")
    prefix = row.segmented_control(
        "Prefix sharing", list(PREFIX), default="as given", required=True, key="cmp_prefix", **KEPT
    )
    kept = row.selectbox("Offload", list(labels), key="cmp_offload", width=330, **KEPT)
    offload = labels.get(kept, OFFLOADS[0])
    choice = PREFIX.get(prefix or "as given")
    rows = format_variants(scenario, concurrency=load, prefix=choice, offload=offload)
    _head(
        f"Formats: {best(rows, format_name)}",
        lambda: variant_csv(option_variants(scenario, concurrency=load)),
        "cmp_formats_table",
    )
    table(format_rows(rows), "cmp_formats_rows")
    _extrapolated(extrapolations(rows, format_name))
    kinds = {kind for one in rows for kind in one.quality_kinds}
    st.caption(
        "  \n".join(f"Quality, {kind}: {plain(text)}." for kind, text in QUALITY.items() if kind in kinds)
    )
    notes = [prefix_note(scenario, choice), next((one.note for one in rows if one.note), "")]
    st.caption(
        " ".join(plain(first_upper(note)) for note in notes if note)
        + " The CSV holds every choice of prefix sharing and offload."
    )


def _layouts(scenario: Scenario, load: float) -> None:
    own = scenario.tensor_parallel_size * scenario.pipeline_parallel_size * scenario.data_parallel_size
    st.text_input(
        "GPUs",
        key="cmp_gpus",
        placeholder=f"{max(own, 2)}",
        width=130,
        help=f"Layouts of exactly this many GPUs, at most {LARGEST}.",
        **KEPT,
    )
    gpus = int(typed("cmp_gpus", "GPUs", 1, LARGEST) or max(own, 2))
    rows = layout_variants(scenario, gpus=gpus, concurrency=load)
    _head(
        f"Layouts of {gpus} GPUs: {best(rows, layout_name)}", lambda: variant_csv(rows), "cmp_layouts_table"
    )
    table(layout_rows(rows), "cmp_layouts_rows")
    _extrapolated(extrapolations(rows, layout_name))


def _splits(scenario: Scenario, load: float) -> None:
    st.text_input(
        "Replicas",
        key="cmp_replicas",
        placeholder="4",
        width=130,
        help="Replicas of the scenario's layout to share out between prefill and decode.",
        **KEPT,
    )
    rows = disaggregated_splits(
        scenario, replicas=int(typed("cmp_replicas", "replicas", 2, LARGEST) or 4), concurrency=load
    )
    first = rows[0]
    gain = first.requests_per_s / first.colocated_requests_per_s
    together = f"{first.colocated_requests_per_s:,.2f} requests/s when each does both"
    words = "more than" if gain > 1.005 else "less than" if gain < 0.995 else "the same as"
    _head(
        f"Prefill and decode apart: {first.prefill_replicas} + {first.decode_replicas} replicas serve "
        f"{first.requests_per_s:,.2f} requests/s, {words} the {together}",
        lambda: split_csv(rows),
        "cmp_splits_table",
    )
    table(split_rows(rows[:8]), "cmp_splits_rows")
    st.caption(f":material/warning: **Extrapolated**: {'; '.join(first.notes)}.")
