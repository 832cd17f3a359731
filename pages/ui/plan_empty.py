"""The Plan page before a config or a form is filled in: what goes where, what it looks like, one button that tries it.

Left out: what is wrong with what was entered (plan_sections.problem).
"""

from __future__ import annotations

import json

import streamlit as st

from capacity.catalog.models import model_config
from pages.ui.fields import FORM, FORM_OPTIONAL
from pages.ui.format import short_model
from pages.ui.inputs import PlanInputs
from pages.ui.model_source import CONFIG_TEXT, PROBLEM

EXAMPLE = "meta-llama/Llama-3.1-8B-Instruct"
LEFT_OUT = ("torch_dtype", "tie_word_embeddings")


def empty(inputs: PlanInputs, sentence: str) -> None:
    """What to enter for the source that was chosen; ``sentence`` names what is still missing."""
    with st.container(border=True):
        if inputs.source == "Config":
            _config()
        else:
            _form(sentence if any(inputs.form.values()) else "")


def _config() -> None:
    st.markdown("**Paste a config.json to plan a model that the catalogue does not hold.**")
    st.markdown(
        "1. Every model on Hugging Face has the file `config.json` under *Files and versions*.\n"
        "2. In the sidebar under **Model**, paste its text, upload the file, or type the model's id as "
        "`organisation/name` and press **Load**.\n"
        "3. The answer appears here as soon as the config can be read."
    )
    st.markdown(f"It looks like this ({short_model(EXAMPLE)}; keys that are not needed may stay):")
    st.code(_example_text(), language="json")
    st.button("Try this example", key="plan_try_config", on_click=_fill_config, icon=":material/play_arrow:")


def _form(sentence: str) -> None:
    st.markdown("**Describe the model by a few numbers from its model card or config.json.**")
    if sentence:
        st.markdown(f":material/edit: {sentence[:1].upper()}{sentence[1:]}.")
    values = _example_form()
    st.markdown(f"Fill in the fields in the sidebar under **Model**. For {short_model(EXAMPLE)} they are:")
    st.table(
        [
            {"field": label, "in config.json": f"`{key}`", "example": f"{int(values[key]):,}",
             "": "optional" if key in FORM_OPTIONAL else "needed"}
            for key, label in FORM
        ],
        hide_index=True,
        border="horizontal",
    )  # fmt: skip
    st.button("Try this example", key="plan_try_form", on_click=_fill_form, icon=":material/play_arrow:")


def _example_text() -> str:
    return json.dumps(
        {key: value for key, value in model_config(EXAMPLE).items() if key not in LEFT_OUT}, indent=2
    )


def _example_form() -> dict[str, str]:
    config = model_config(EXAMPLE)
    derived = {"head_dim": config["hidden_size"] // config["num_attention_heads"]}
    return {key: str(config.get(key, derived.get(key))) for key, _ in FORM}


def _fill_config() -> None:
    st.session_state[CONFIG_TEXT] = _example_text()
    st.session_state[PROBLEM] = None


def _fill_form() -> None:
    for key, value in _example_form().items():
        st.session_state[f"plan_form_{key}"] = value
