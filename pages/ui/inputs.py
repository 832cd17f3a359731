"""The planner's widgets: four groups in the sidebar, each a fold with a one-line summary, all of it in the link.

Widgets in, a frozen record of texts out. What the texts mean is in fields; the planner checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from capacity.catalog import model_ids
from capacity.engine import known_releases
from capacity.errors import CapacityError
from capacity.hardware import gpus
from capacity.hf_config.text import config_from_text
from capacity.precision import weight_formats
from capacity.scenario import field_table
from pages.ui.examples import examples
from pages.ui.fields import (
    BASIC,
    FORM,
    GROUPS,
    SOURCES,
    Incomplete,
    advanced,
    form_config,
    to_scenario,
    to_texts,
)
from pages.ui.format import short_model
from pages.ui.link import pack, unpack
from pages.ui.model_source import CONFIG_TEXT, PROBLEM, beside, model_source

PREFIX = "plan_"
CONFIG_LINK = "plan_config"
ICONS = {
    "model": ":material/neurology:",
    "hardware": ":material/memory:",
    "engine": ":material/settings:",
    "workload": ":material/forum:",
}
PLACEHOLDERS = {
    "weight_format": "the checkpoint's own",
    "kv_cache_dtype": "auto",
    "gpu_memory_utilization": "the release's default",
    "max_num_seqs": "the release's default",
    "max_num_batched_tokens": "the release's default",
    "max_model_len": "the model's own limit",
    "block_size": "the engine's choice",
    "tensor_parallel_size": "1",
    "pipeline_parallel_size": "1",
}
HELP_MORE = {
    "model": " The list filters by letters in their order; a name typed in full may hold spaces (llama 3.3 70b, Enter).",
    "max_model_len": " 8k means 8,000 and 8K means 8,192, as in vLLM.",
    "engine_version": " A newer release than those listed can be typed; the latest rules are used and the page says so.",
}
SPREAD_HELP = (
    "How much the lengths differ: standard deviation divided by the mean. 0 means that all are alike, 1 is typical "
    "of chat."
)
SPREAD_PX = 88


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """What the sidebar holds: texts by scenario key, where the model comes from, the pasted config, the form."""

    texts: dict[str, str]
    source: str
    config_text: str = ""
    form: dict[str, str] = field(default_factory=dict)

    def scenario(self) -> dict[str, Any]:
        """The scenario object, unchecked but for the config. Raises CapacityError, Incomplete when nothing is wrong."""
        raw = to_scenario(self.texts)
        if self.source == "Catalogue":
            return raw
        raw.pop("model", None)
        if self.source == "Form":
            raw["model_config"] = form_config(self.form)
        elif not self.config_text.strip():
            raise Incomplete(
                "no config is given; paste a config.json, upload it, or load it from the hub",
                field="model_config",
            )
        else:
            raw["model_config"] = config_from_text(self.config_text)
        return raw

    def link_values(self) -> dict[str, str]:
        """Every input as a value of the link."""
        values = {f"{PREFIX}{key}": text for key, text in self.texts.items() if text}
        if self.source == "Catalogue":
            return values
        values.pop(f"{PREFIX}model", None)
        values[f"{PREFIX}source"] = self.source
        if self.source == "Form":
            values |= {f"{PREFIX}form_{key}": text for key, text in self.form.items() if text}
        elif (packed := pack(self.config_text)) is not None:
            values[CONFIG_LINK] = packed
        return values


def known() -> PlanInputs:
    """What the sidebar is about to hold, read before its widgets are drawn, so that the answer can be sent first.

    On a visit's first run that is the link; later it is what the session keeps.
    """
    fresh = _seed()
    given = dict(st.query_params) if fresh else {}
    state = st.session_state

    def text(key: str) -> str:
        return str(state.get(PREFIX + key) or given.get(PREFIX + key) or "").strip()

    return PlanInputs(
        texts={key: text(key) for key in _keys()},
        source=text("source") or SOURCES[0],
        config_text=state.get(CONFIG_TEXT) or "",
        form={key: text(f"form_{key}") for key, _ in FORM},
    )


def sidebar(shown: PlanInputs, *, start_bar: bool = True) -> PlanInputs:
    """Draw the controls, folds summed up by ``shown`` (what was known before), and return what they hold."""
    with st.sidebar:
        if start_bar:
            _start_bar()
        for group in GROUPS:
            with st.expander(_summary(group, shown), expanded=group == "model", key=f"plan_fold_{group}"):
                if group == "model":
                    model_source(_control)
                _basic(group)
                more = advanced(group)
                filled = sum(1 for key in more if st.session_state.get(PREFIX + key))
                label = f"Advanced ({filled} set)" if filled else "Advanced"
                with st.popover(label, width="stretch", key=f"plan_more_{group}"):
                    for key in more:
                        _control(key)
    inputs = known()
    _config_in_link(inputs)
    return inputs


def _keys() -> list[str]:
    """Every input but the config; a length has a spread beside its mean."""
    return [
        key
        for name, one in field_table().items()
        for key in ((name, f"{name}_cv") if one.type == "length" else (name,))
        if name != "model_config"
    ]


def _basic(group: str) -> None:
    for keys in BASIC[group]:
        if len(keys) == 1:
            _control(keys[0])
            continue
        with beside():
            for key in keys:
                _control(key)


def apply(changes: Mapping[str, Any]) -> None:
    """Put scenario keys into their widgets (a callback); a key that is None is left out from now on."""
    for key, value in changes.items():
        if value is None:
            _clear(key)
    for key, text in to_texts({key: value for key, value in changes.items() if value is not None}).items():
        st.session_state[PREFIX + key] = text


def _clear(name: str) -> None:
    spread = (f"{name}_cv",) if field_table()[name].type == "length" else ()
    for key in (name, *spread):
        st.session_state[PREFIX + key] = "" if _is_text(name) else None


def start_from(scenario: Mapping[str, Any]) -> None:
    """Replace every input by a scenario's (a callback): examples and reset."""
    for name in field_table():
        if name != "model_config":
            _clear(name)
    for key, _ in FORM:
        st.session_state[f"plan_form_{key}"] = ""
    st.session_state["plan_source"] = SOURCES[0]
    st.session_state[CONFIG_TEXT] = ""
    st.session_state[PROBLEM] = None
    apply(scenario)


def _seed() -> bool:
    """Once a visit (True): fill in an example, unless the link holds inputs, and put what was filled in into the link.

    The release is always part of the link, so that an old link keeps its answer when newer rules are added. A link
    written by hand may name scenario keys as the command line does (``?model=llama-3.1-8b&gpu=h100``).
    """
    state = st.session_state
    if "plan_visit" in state:
        return False
    state["plan_visit"] = True
    given = {key for key in st.query_params if key.startswith(PREFIX)}
    by_hand = {key: st.query_params[key] for key in field_table() if key in st.query_params}
    by_hand.pop("model_config", None)
    for key in by_hand:
        del st.query_params[key]
    seeds = by_hand or ({} if given - {"plan_tab"} else to_texts(examples()[0].scenario))
    if f"{PREFIX}engine_version" not in given:
        seeds.setdefault("engine_version", known_releases()[0])
    if st.query_params.get(f"{PREFIX}source") not in SOURCES:
        seeds["source"] = SOURCES[0]
    if CONFIG_LINK in given:
        try:
            state[CONFIG_TEXT] = unpack(st.query_params[CONFIG_LINK])
        except CapacityError as error:
            state[PROBLEM] = str(error)
    for key, text in seeds.items():
        state[PREFIX + key] = text
    st.query_params.update({PREFIX + key: text for key, text in seeds.items()})
    return True


def _config_in_link(inputs: PlanInputs) -> None:
    packed = inputs.link_values().get(CONFIG_LINK)
    if packed is None:
        if CONFIG_LINK in st.query_params:
            del st.query_params[CONFIG_LINK]
    elif st.query_params.get(CONFIG_LINK) != packed:
        st.query_params[CONFIG_LINK] = packed


def _start_bar() -> None:
    names = {example.name: example.scenario for example in examples()}

    def chosen() -> None:
        name = st.session_state.get("plan_example")
        if name in names:
            start_from(names[name])
        st.session_state["plan_example"] = None

    bar = st.container(horizontal=True, gap="small", vertical_alignment="bottom", wrap=False)
    bar.selectbox(
        "Start from an example",
        list(names),
        index=None,
        key="plan_example",
        placeholder="Start from an example",
        label_visibility="collapsed",
        on_change=chosen,
    )
    bar.button(
        "Reset",
        key="plan_reset",
        on_click=start_from,
        args=(examples()[0].scenario,),
        help="Back to the first example; every override is cleared.",
        width="content",
    )


def _summary(group: str, shown: PlanInputs) -> str:
    """One line on a group."""

    def get(key: str) -> str:
        return shown.texts.get(key, "")

    if group == "model":
        source = shown.source
        name = (
            short_model(get("model"))
            if source == SOURCES[0]
            else {"Form": "small form"}.get(source, "pasted config")
        )
        parts = [name or "none", get("weight_format")]
    elif group == "hardware":
        gpus_wanted = " x ".join(
            f"{label}{get(key)}"
            for key, label in (
                ("tensor_parallel_size", "TP"),
                ("pipeline_parallel_size", "PP"),
                ("data_parallel_size", "DP"),
            )
            if get(key) not in ("", "1")
        )
        parts = [
            get("gpu") or (f"{get('gpu_memory_gib')} GiB" if get("gpu_memory_gib") else "none"),
            gpus_wanted or "1 GPU",
        ]
    elif group == "engine":
        length = get("max_model_len")
        parts = [f"vLLM {get('engine_version')}", f"{length} tokens" if length else "", get("kv_cache_dtype")]
    else:
        prompt, output = get("prompt_tokens"), get("output_tokens")
        parts = [f"{prompt or 0} in, {output or 0} out" if prompt or output else "lengths not given"]
    return f"{ICONS[group]} **{group.capitalize()}** · " + " · ".join(
        part.replace("_", "\\_") for part in parts if part
    )


def _is_text(key: str) -> bool:
    return key not in SELECTS and field_table()[key].type != "flag" and not field_table()[key].choices


def _options(key: str) -> list[str]:
    if key in ("model", "draft_model"):
        return list(model_ids())
    if key == "gpu":
        return list(gpus())
    if key == "engine_version":
        return list(known_releases())
    if key == "weight_format":
        return ["fp8", "awq", "gptq", "nvfp4", "mxfp4", "int8", *weight_formats()]
    if key == "kv_cache_dtype":
        return ["auto", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "nvfp4", "bfloat16", "float16"]
    if key in ("dtype", "mamba_ssm_cache_dtype"):
        return ["auto", "bfloat16", "float16", "float32"][key == "dtype" :]
    return [str(2**power) for power in range(7 if key == "tensor_parallel_size" else 4)]


SELECTS = (
    "model",
    "draft_model",
    "gpu",
    "engine_version",
    "weight_format",
    "kv_cache_dtype",
    "dtype",
    "mamba_ssm_cache_dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
)


def _control(key: str) -> None:
    one = field_table()[key]
    hint = one.help + ("." if not one.help.endswith(".") else "") + HELP_MORE.get(key, "")
    kept: dict[str, Any] = {"bind": "query-params", "persist_state": "session"}
    if key in SELECTS or one.choices or one.type == "flag":
        options = list(one.choices) if one.choices else ["on", "off"] if one.type == "flag" else _options(key)
        st.selectbox(
            one.label,
            options,
            index=None,
            key=PREFIX + key,
            help=hint,
            placeholder=PLACEHOLDERS.get(key, "default"),
            accept_new_options=True,
            **kept,
        )
    elif one.type == "length":
        row = beside()
        row.text_input(one.label, key=PREFIX + key, help=hint, placeholder="mean", **kept)
        row.text_input(
            "Spread", key=f"{PREFIX}{key}_cv", help=SPREAD_HELP, placeholder="0", width=SPREAD_PX, **kept
        )
    else:
        st.text_input(
            one.label, key=PREFIX + key, help=hint, placeholder=PLACEHOLDERS.get(key, "default"), **kept
        )


__all__ = ["PROBLEM", "PlanInputs", "apply", "known", "sidebar", "start_from"]
