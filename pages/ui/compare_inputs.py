"""The Compare page's sidebar: scenarios to name, price, order and remove, files to add, the load and the limits.

Left out: what they mean (compare_state keeps them).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from capacity.compare_set import MOST, price
from capacity.errors import CapacityError
from pages.ui.compare_parts import plain
from pages.ui.compare_state import PROBLEM, VERSION, add_text, clear, example, pinned, put, variants
from pages.ui.fields import number

KEPT: dict[str, Any] = {"bind": "query-params", "persist_state": "session"}


def sidebar() -> None:
    """Draw the controls; what they hold is in the session."""
    entries = pinned()
    with st.sidebar:
        bar = st.container(horizontal=True, gap="small", wrap=False)
        bar.button("Example", key="cmp_example", on_click=example, help="Formats of Qwen3-32B on one H100.")
        bar.button("Remove all", key="cmp_clear", on_click=clear, disabled=not entries)
        with st.expander(
            f":material/view_column: **Scenarios** · {len(entries)} of {MOST}",
            expanded=bool(entries),
            key="cmp_fold_set",
        ):
            for index in range(len(entries)):
                _one(index)
            if not entries:
                st.caption("None yet. Pin one on the Plan page, add a file below, or take the example.")
        with st.expander(":material/add: **Add**", expanded=False, key="cmp_fold_add"):
            _add()
        load = str(st.session_state.get("cmp_load") or st.query_params.get("cmp_load") or "32")[:20]
        with st.expander(
            f":material/forum: **Load** · {plain(load)} in flight", expanded=True, key="cmp_fold_load"
        ):
            _load()


def _one(index: int) -> None:
    one, version = pinned()[index], st.session_state.get(VERSION, 0)

    def renamed() -> None:
        name = str(st.session_state.get(f"cmp_name_{version}_{index}") or "").strip()[:60]
        if name:
            _change(index, name=name)

    def priced() -> None:
        text = str(st.session_state.get(f"cmp_price_{version}_{index}") or "").strip()
        try:
            _change(index, price_usd_per_gpu_hour=price(number(text) if text else None))
        except CapacityError as error:
            st.session_state[PROBLEM] = f"{one.name}: {error}"

    with st.popover(f"{index + 1}. {plain(one.name)}", width="stretch", key=f"cmp_entry_{version}_{index}"):
        st.text_input("Name", value=one.name, key=f"cmp_name_{version}_{index}", on_change=renamed)
        st.text_input(
            "$ per GPU hour",
            value="" if one.price_usd_per_gpu_hour is None else f"{one.price_usd_per_gpu_hour:g}",
            key=f"cmp_price_{version}_{index}",
            placeholder="the bundled range",
            on_change=priced,
        )
        bar = st.container(horizontal=True, gap="small")
        bar.button(
            "Make it the first",
            key=f"cmp_first_{version}_{index}",
            on_click=_first,
            args=(index,),
            disabled=index == 0,
            help="The others are compared with the first.",
        )
        bar.button("Remove", key=f"cmp_remove_{version}_{index}", on_click=_remove, args=(index,))


def _change(index: int, **changes: object) -> None:
    entries = list(pinned())
    entries[index] = replace(entries[index], **changes)  # type: ignore[arg-type]
    put(entries)


def _first(index: int) -> None:
    entries = list(pinned())
    put([entries.pop(index), *entries])


def _remove(index: int) -> None:
    put([one for i, one in enumerate(pinned()) if i != index])


def _add() -> None:
    state = st.session_state

    def uploaded() -> None:
        file = state.get("cmp_upload")
        if file is None:
            return
        try:
            add_text(file.getvalue().decode("utf-8-sig"), what=file.name[:60])
        except UnicodeDecodeError:
            state[PROBLEM] = f"{file.name[:60]} is not text in UTF-8; expected a JSON file"

    st.file_uploader(
        "A JSON file with scenarios",
        type=["json", "txt"],
        key="cmp_upload",
        on_change=uploaded,
        max_upload_size=5,
    )
    st.text_area(
        "or paste it",
        key="cmp_paste",
        height=110,
        placeholder='[{"name": "H100", "model": "Qwen/Qwen3-32B", "gpu": "h100-sxm", ...}, ...]',
        persist_state="session",
    )
    st.button("Add", key="cmp_add", on_click=lambda: add_text(str(state.get("cmp_paste") or "")))
    if pinned():
        st.caption("Replace the set by variants of the first scenario:")
        bar = st.container(horizontal=True, gap="small")
        for kind in ("formats", "layouts"):
            bar.button(kind.capitalize(), key=f"cmp_{kind}", on_click=variants, args=(kind,))


def _load() -> None:
    st.text_input(
        "Requests in flight",
        key="cmp_load",
        placeholder="32",
        help="The same for every scenario, over all of its replicas. Write max to load each up to its own limit.",
        **KEPT,
    )
    st.text_input(
        "TTFT limit, ms", key="cmp_ttft", placeholder="none", help="Median time to first token.", **KEPT
    )
    st.text_input(
        "TPOT limit, ms", key="cmp_tpot", placeholder="none", help="Median time per output token.", **KEPT
    )
