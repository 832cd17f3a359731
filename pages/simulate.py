"""Simulate: what does this traffic do to the block pool, and which policy serves it best? Widgets in, runs drawn."""

from __future__ import annotations

import streamlit as st

from capacity.errors import CapacityError
from pages.ui import simulate_sections as sections
from pages.ui.simulate_inputs import NOTE, sidebar
from pages.ui.simulate_labels import labelled
from pages.ui.simulate_policies import scenarios
from pages.ui.simulate_runs import Cancelled, Outcome, outcome, settled

LAST = "sim_last"


def render() -> None:
    """The page."""
    st.set_page_config(page_title="Simulate · Waterline")
    inputs = sidebar()
    top, bar, body = st.empty(), st.container(), st.empty()
    before: list[Outcome] | None = st.session_state.get(LAST)
    drawn: list[bool] = []

    def meanwhile() -> None:
        """While a run takes its time: the head and the last result, once."""
        if drawn:
            return
        drawn.append(True)
        with top.container():
            sections.head(inputs, before, waiting=True)
        if before:
            with body.container():
                sections.answer_block(before, stale=True, waiting=True)

    problem: str | None = None
    stopped = False
    found: list[Outcome] = []
    try:
        wanted = scenarios(inputs.base(), inputs.policies)
        with bar:
            found = [
                outcome(policy, one, inputs.trace, meanwhile=meanwhile)
                for policy, one in zip(inputs.policies, wanted, strict=True)
            ]
    except CapacityError as error:
        problem, found = labelled(str(error)), []
    except Cancelled:
        stopped, found = True, []
    if found:
        st.session_state[LAST] = found
    shown: list[Outcome] | None = found or before
    with top.container():
        sections.head(inputs, shown)
        note = st.session_state.pop(NOTE, None) or problem
        if note:
            sections.problem(note, stale=not found and shown is not None)
        if stopped:
            sections.cancelled()
    if not shown:
        body.empty()
        if problem:
            st.info(
                "Correct the input in the sidebar, or start from an example there.",
                icon=":material/arrow_back:",
            )
        return
    with body.container():
        sections.answer_block(shown, stale=not found)
    sections.details(shown, inputs)


render()
settled()
