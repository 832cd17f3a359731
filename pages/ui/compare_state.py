"""What the Compare page remembers: the pinned scenarios and its settings, in the session, the link and one file.

Left out: widgets (compare_inputs) and figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from capacity.compare_set import MOST, Entry, entries_from_json, formats_of, json_of, layouts_of, unique
from capacity.errors import CapacityError
from capacity.scenario import Scenario
from pages.ui.fields import number
from pages.ui.link import pack, unpack

ENTRIES, PROBLEM, VERSION, SET = "cmp_entries", "cmp_problem", "cmp_version", "cmp_set"
LEFT_OUT = "cmp_left_out"
SETTINGS = (
    "cmp_load",
    "cmp_ttft",
    "cmp_tpot",
    "cmp_sort",
    "cmp_tab",
    "cmp_of",
    "cmp_x",
    "cmp_xv",
    "cmp_y",
    "cmp_yv",
    "cmp_measure",
    "cmp_as",
    "cmp_prefix",
    "cmp_offload",
    "cmp_gpus",
    "cmp_replicas",
)
EXAMPLE = {
    "model": "Qwen/Qwen3-32B",
    "gpu": "h100-sxm",
    "engine_version": "0.32.0",
    "max_model_len": 16384,
    "prompt_tokens": 2048,
    "output_tokens": 512,
}


def pinned() -> tuple[Entry, ...]:
    """The scenarios of this session."""
    found: tuple[Entry, ...] = st.session_state.get(ENTRIES) or ()
    return found


def settle_set() -> None:
    """Once a run: take the link's scenarios on a visit's first run, write the session's into the link after that."""
    state = st.session_state
    if ENTRIES not in state and (packed := st.query_params.get(SET)):
        try:
            state[ENTRIES] = entries_from_json(json_of(unpack(packed)))
        except CapacityError as error:
            state[ENTRIES] = ()
            words = (
                str(error)
                .replace("the config in", "the set in")
                .replace("are in the file", "are in the link")
            )
            words = words.removesuffix("; paste the config.json again")
            state[PROBLEM] = f"{words}; ask for the file, or pin the scenarios again"
    packed = set_link(pinned())
    if packed:
        if st.query_params.get(SET) != packed:
            st.query_params[SET] = packed
    elif SET in st.query_params:
        del st.query_params[SET]


def set_link(entries: Sequence[Entry]) -> str | None:
    """The scenarios as one value of the link; None for none, or for more than a link holds."""
    if not entries:
        return None
    return pack(json.dumps([one.to_json() for one in entries], separators=(",", ":")))


def settings() -> dict[str, str]:
    """The page's settings that are filled in."""
    state = st.session_state
    return {key: str(state[key]) for key in SETTINGS if state.get(key)}


def as_file(entries: Sequence[Entry], chosen: Mapping[str, str]) -> str:
    """Everything on the page as one JSON file."""
    found = {"scenarios": [one.to_json() for one in entries], "settings": dict(chosen)}
    return json.dumps(found, indent=2)


def put(entries: Sequence[Entry]) -> None:
    """Replace the scenarios."""
    state = st.session_state
    state[ENTRIES] = unique(list(entries))
    state[VERSION] = state.get(VERSION, 0) + 1
    state[PROBLEM] = None


def clear() -> None:
    """Remove all scenarios (a callback)."""
    put(())


def example() -> None:
    """Formats of one model on one GPU (a callback)."""
    put(formats_of(Scenario.parse(EXAMPLE)))


def variants(kind: str) -> None:
    """Replace the set by formats or layouts of the first scenario (a callback)."""
    first = pinned()[0]
    try:
        put((formats_of if kind == "formats" else layouts_of)(first.scenario))
    except CapacityError as error:
        st.session_state[PROBLEM] = str(error)


def add_text(text: str, *, what: str = "the text") -> None:
    """Add a file's scenarios to the set and take over its settings; a sentence in PROBLEM for what cannot be read."""
    state = st.session_state
    try:
        raw = json_of(text)
        found = entries_from_json(raw)
        have = pinned()
        if len(have) + len(found) > MOST:
            raise CapacityError(
                f"{len(found)} scenarios come on top of {len(have)}; expected at most {MOST} in all, remove some first"
            )
        put([*have, *found])
        state[LEFT_OUT] = [f"{one.name}: {note}" for one in found for note in one.notes]
        given = raw.get("settings") if isinstance(raw, dict) else None
        if isinstance(given, dict):
            state.update({k: v[:400] for k, v in given.items() if k in SETTINGS and isinstance(v, str)})
    except CapacityError as error:
        state[PROBLEM] = f"{what}: {error}"


def typed(key: str, name: str, low: float, high: float, *, scale: float = 1.0) -> float | None:
    """A number from a widget's text, times ``scale``; None when empty. Raises CapacityError."""
    text = str(st.session_state.get(key) or "").strip()
    if not text:
        return None
    value: Any = number(text)
    if not isinstance(value, int | float) or not low <= value <= high:
        raise CapacityError(f"{name} is {text[:40]!r}; expected a number, {low:g} to {high:,.0f}", field=key)
    return float(value) * scale
