"""Plan: what will this model on these GPUs hold? Reads widgets, asks the planner, draws."""

from __future__ import annotations

import streamlit as st

from capacity.errors import CapacityError
from capacity.plan import Plan, plan
from capacity.scenario import Scenario
from pages.ui import plan_sections as sections
from pages.ui.fields import Incomplete
from pages.ui.format import first_upper
from pages.ui.inputs import PROBLEM, PlanInputs, known, sidebar
from pages.ui.plan_empty import empty
from pages.ui.plan_head import buttons, head
from pages.ui.speed_section import keep_points

LAST, SETTLING = "plan_last_answer", "plan_settling"


def render() -> None:
    """The page: the answer is sent before the controls, so that a new number does not wait for sixty widgets."""
    st.set_page_config(page_title="Plan · Waterline")
    inputs = known()
    keep_points()
    place = head()
    shown = _answer(inputs)
    buttons(place, inputs, shown)
    held = sidebar(inputs)
    if held != inputs and not st.session_state.get(
        SETTLING
    ):  # a widget changed what the link or a button gave
        st.session_state[SETTLING] = True
        st.rerun()
    st.session_state[SETTLING] = False
    if shown is not None:
        sections.details(shown)


def _answer(inputs: PlanInputs) -> Plan | None:
    """What is wrong or missing, and the answer or the last one, which is returned."""
    problem: str | None = st.session_state.get(PROBLEM) if inputs.source == "Config" else None
    key: str | None = None
    found: Plan | None = None
    missing: str | None = None
    try:
        found = plan(Scenario.parse(inputs.scenario()))
    except Incomplete as error:
        missing = str(error)
    except CapacityError as error:
        problem, key = problem or str(error), error.field
    except RecursionError:
        problem = "the config is nested too deeply; expected the config.json of a model"
    if found is not None:
        st.session_state[LAST] = found
    shown = found or st.session_state.get(LAST)
    if problem:
        sections.problem(first_upper(problem), key=key, stale=found is None and shown is not None)
    if missing:
        empty(inputs, missing)
    if shown is None:
        if not missing:
            st.info(
                "Correct the input in the sidebar, or start from an example there.",
                icon=":material/arrow_back:",
            )
        return None
    sections.answer_block(shown, stale=found is None)
    return shown


render()
