"""The Plan page's Speed tab: the answer in words, two curves with their limits, and the visitor's own points.

Points apply to the inputs they were entered for; after a change they wait until somebody says that they still hold.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import streamlit as st

from capacity.compare_set import MOST, Entry, name_of, unique
from capacity.errors import CapacityError
from capacity.estimate import Estimate, estimate
from capacity.performance.measured import MeasuredPoint
from capacity.plan import Plan
from capacity.scenario import Scenario
from pages.ui.compare_parts import draw, ink, plain, seconds, spread
from pages.ui.fields import number
from pages.ui.format import count, first_upper, in_flight, percent, rate
from pages.ui.speed_charts import levels, speed_curve
from pages.ui.speed_points import fingerprint, from_text, points_of, rows_of, to_text

POINTS, POINTS_FOR, BASE, EDITOR = (
    "plan_points",
    "plan_points_for",
    "speed_points_base",
    "speed_points_editor",
)
POINTS_PROBLEM = "speed_points_problem"
PINNED = "cmp_entries"
BOUNDS = {
    "decode-bound": "reading weights and cache for each step takes the most time",
    "prefill-bound": "prompts of arriving requests take the most time of a step",
    "KV-bound": "the pool is full, further requests wait",
    "seat-bound": "max_num_seqs is reached, further requests wait",
}


def speed_link() -> dict[str, str]:
    """The values that measured points add to the link."""
    state = st.session_state
    points = state.get(POINTS) or ()
    return {POINTS: to_text(points), POINTS_FOR: state.get(POINTS_FOR) or ""} if points else {}


def keep_points() -> None:
    """Once a run: read the link's points on a visit's first run, write them into the link after that."""
    state = st.session_state
    if POINTS not in state:
        state[POINTS] = ()
        state[POINTS_FOR] = st.query_params.get(POINTS_FOR, "")[:10]
        try:
            if given := st.query_params.get(POINTS):
                state[POINTS] = from_text(given)
        except CapacityError as error:
            state[POINTS_PROBLEM] = str(error)
    values = speed_link()
    for key in (POINTS, POINTS_FOR):
        if key in values:
            if st.query_params.get(key) != values[key]:
                st.query_params[key] = values[key]
        elif key in st.query_params:
            del st.query_params[key]


def points_for(scenario: Scenario) -> tuple[MeasuredPoint, ...]:
    """The visitor's points, if they were entered for this scenario."""
    state = st.session_state
    return tuple(state.get(POINTS) or ()) if state.get(POINTS_FOR) == fingerprint(scenario) else ()


def pin_button(plan: Plan | None) -> None:
    """Put the scenario on the Compare page."""
    pinned: tuple[Entry, ...] = st.session_state.get(PINNED) or ()
    full = len(pinned) >= MOST
    hint = (
        f"Compare holds {MOST}, the most it shows; remove one there."
        if full
        else f"Put this scenario beside others on the Compare page; it holds {len(pinned)} of {MOST}."
    )
    if st.button(
        "Pin to Compare", key="plan_pin", icon=":material/keep:", disabled=plan is None or full, help=hint
    ):
        assert plan is not None
        scenario = plan.resolved.scenario
        one = Entry(name=name_of(scenario), scenario=scenario, measured=points_for(scenario))
        if any(other.scenario == one.scenario and other.measured == one.measured for other in pinned):
            st.toast("This scenario is on the Compare page already.", icon=":material/keep:")
            return
        st.session_state[PINNED] = unique([*pinned, one])
        st.toast(
            f"Pinned as {plain(st.session_state[PINNED][-1].name)}. Compare holds {len(pinned) + 1} of {MOST}.",
            icon=":material/keep:",
        )


def speed(plan: Plan) -> None:
    """The tab."""
    scenario = plan.resolved.scenario
    if problem := st.session_state.get(POINTS_PROBLEM):
        st.error(plain(first_upper(problem)), icon=":material/error:")
    measured = points_for(scenario)
    if plan.fit == "no":
        st.info(
            "It does not fit, so it has no speed. What to change is above.", icon=":material/arrow_upward:"
        )
        return
    try:
        found = estimate(scenario, 1.0)
        typed = _load(plan)
        load = typed if typed is not None else _typical(plan, found)
    except CapacityError as error:
        st.info(plain(first_upper(str(error))), icon=":material/arrow_back:")
        return
    try:
        curve = estimate(scenario, levels(found), measured=measured)
        there = estimate(scenario, load, measured=measured)
    except CapacityError as error:
        st.error(
            f"{plain(first_upper(str(error)))} The curve below leaves your points out.",
            icon=":material/error:",
        )
        measured = ()
        curve, there = estimate(scenario, levels(found)), estimate(scenario, load)
    _headline(there, load, own=typed is None)
    draw(speed_curve(curve, load=load, measured=measured, ink=ink()), "plan_speed")
    _caveats(curve)
    _points(scenario)


def _typical(plan: Plan, found: Estimate) -> float:
    usual, most = plan.concurrency.typical, found.planned.deployment.most_running
    if usual is not None:
        most = min(most, usual.mean * plan.resolved.parallel.data)
    return float(max(1, math.floor(min(most, 1e5))))


def _load(plan: Plan) -> float | None:
    text = st.text_input(
        "Requests in flight",
        key="plan_load",
        placeholder="the typical concurrency",
        help="Requests that are in the engine at once, over all replicas. Empty: the typical concurrency.",
        bind="query-params",
        persist_state="session",
        width=240,
    )
    if not (text or "").strip():
        return None
    value = number(text or "")
    if not isinstance(value, int | float) or not 1 <= value <= 1e6:
        raise CapacityError(f"requests in flight is {(text or '')[:40]!r}; expected a number, 1 to 1,000,000")
    return float(value)


def _headline(found: Estimate, load: float, *, own: bool) -> None:
    one = found.forecast

    def words(name: str, show: Any) -> str:
        band = getattr(one, name)
        value, low, high = (float(part[0]) for part in (band.value, band.low, band.high))
        return f"**{show(value)}**{spread(value, low, high, show)}"

    gpus = found.planned.deployment.layout.gpus
    per_gpu = f", {rate(float(one.output_tokens_per_s.value[0]) / gpus)} per GPU" if gpus > 1 else ""
    waiting = f", {count(float(one.waiting[0]))} of them waiting" if one.waiting[0] >= 0.5 else ""
    st.markdown(
        f"At {in_flight(load)} requests in flight{' (the typical concurrency)' if own else ''}{waiting}: "
        f"TPOT {words('tpot_s', seconds)}, TTFT {words('ttft_s', seconds)}, E2E {words('e2e_s', seconds)}, "
        f"output {words('output_tokens_per_s', rate)} tokens/s{per_gpu}."
    )
    bound = one.bound[0]
    st.caption(
        f"{bound[:1].upper() + bound[1:]}: {BOUNDS.get(bound, 'this takes the most time of a step')}. "
        f"MBU {percent(float(one.mbu[0]))} of the memory bandwidth, MFU {percent(float(one.mfu[0]))} of the peak "
        "operations. Intervals hold four runs in five."
    )


def _caveats(found: Estimate) -> None:
    if found.forecast.extrapolated:
        reasons = "; ".join(plain(reason) for reason in found.forecast.reasons)
        st.caption(f":material/warning: **Extrapolated**, so the interval is wider: {reasons}.")
    for text in dict.fromkeys((*found.forecast.warnings, *found.planned.notes)):
        st.caption(f":material/info: {plain(first_upper(text))}")


def _points(scenario: Scenario) -> None:
    state = st.session_state
    here = fingerprint(scenario)
    st.markdown(
        "**Your measured points** correct the curve and narrow its interval. One helps, two help more."
    )
    if state[POINTS] and state.get(POINTS_FOR) != here:
        st.warning(
            "1 point was entered for other inputs, so it is not used here."
            if len(state[POINTS]) == 1
            else f"{len(state[POINTS])} points were entered for other inputs, so they are not used here.",
            icon=":material/warning:",
        )
        left, right = st.columns(2)
        if left.button("Use them for these inputs", key="speed_points_use"):
            state[POINTS_FOR] = here
            st.rerun()
        if right.button("Remove them", key="speed_points_drop"):
            state[POINTS] = ()
            st.rerun()
        return
    if EDITOR not in state or BASE not in state:
        state[BASE] = pd.DataFrame(
            rows_of(state[POINTS]), columns=["concurrency", "tpot_ms", "ttft_ms"], dtype="float64"
        )
    edited = st.data_editor(
        state[BASE],
        key=EDITOR,
        num_rows="dynamic",
        hide_index=True,
        width=520,
        column_config={
            "concurrency": st.column_config.NumberColumn("Requests in flight", min_value=1),
            "tpot_ms": st.column_config.NumberColumn("TPOT, ms", min_value=0.001),
            "ttft_ms": st.column_config.NumberColumn("TTFT, ms (optional)", min_value=0.001),
        },
    )
    _store(edited, here)


def _store(edited: pd.DataFrame, here: str) -> None:
    state = st.session_state
    try:
        points = points_of({str(k): v for k, v in row.items()} for row in edited.to_dict("records"))
    except CapacityError as error:
        st.caption(f":material/edit: {plain(first_upper(str(error)))}")
        return
    if points != tuple(state[POINTS]):
        state[POINTS], state[POINTS_FOR], state[POINTS_PROBLEM] = points, here, None
        st.rerun()
