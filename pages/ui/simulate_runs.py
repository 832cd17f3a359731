"""Simulations carried out for a page: off the script's thread, with progress, cancel, and the last few answers kept.

Answers are kept per visitor. Left out: what an answer means (simulate_words).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import streamlit as st

from capacity.errors import CapacityError
from capacity.simulate_cli import prepare, run_simulate, simulate
from capacity.simulation.run import Run
from capacity.simulation.sweep import SweepPoint, sweep_rates
from pages.ui.background import carry_out, forget
from pages.ui.simulate_policies import Policy

T = TypeVar("T")
KEPT = "sim_kept"
CANCELLED, NEXT = "sim_cancelled", "whatever runs next"
SLOT = "sim_run"
MOST_KEPT = 24
MOST_REQUESTS = 200_000
SMALL = 200
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
REFINE = 8
TABLES = ("timeline", "timeline_refused", "gantt", "events")


class Cancelled(Exception):
    """The visitor stopped this work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A policy, the scenario it makes, and the run's report."""

    policy: Policy
    scenario: dict[str, Any]
    answer: dict[str, Any]

    @property
    def letter(self) -> str:
        return self.policy.letter.upper()


def carried_out(
    name: str,
    label: str,
    work: Callable[[Callable[[float], bool]], T],
    *,
    of: str = "of the requests are through",
    meanwhile: Callable[[], None] | None = None,
) -> T:
    """The work's result, kept under ``name``. Beyond half a second there is a bar with a cancel button.

    ``meanwhile`` then draws what stands beside it. Raises Cancelled when the visitor stopped it, and what the work raises.
    """
    state: Any = st.session_state
    kept: dict[str, Any] = state.setdefault(KEPT, {})
    if name in kept:
        return kept[name]
    # A click that came as one run ended and the next began means the next: nothing else was there to stop.
    if state.get(CANCELLED) in (name, NEXT):
        state[CANCELLED] = name
        forget(SLOT)
        raise Cancelled
    task = carry_out(
        SLOT,
        name,
        work,
        said=lambda share: f"{label}, {share:.0%} {of}",
        on_cancel=lambda: state.update({CANCELLED: NEXT}),
        meanwhile=meanwhile,
    )
    if task.stopped:
        raise Cancelled
    if task.error is not None:
        forget(SLOT)
        raise task.error
    while len(kept) >= MOST_KEPT:
        kept.pop(next(iter(kept)))
    kept[name] = task.result
    forget(SLOT)
    return task.result  # type: ignore[return-value]


def run_again() -> None:
    """Take a cancel back."""
    st.session_state.pop(CANCELLED, None)


def settled() -> None:
    """Say that the page has asked for all it wants: a cancel that found nothing to stop ends here."""
    if st.session_state.get(CANCELLED) == NEXT:
        run_again()


def name_of(*parts: Any) -> str:
    """A short name for inputs: the same inputs, the same name."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _seed(scenario: Mapping[str, Any]) -> Any:
    seed = scenario.get("seed", 0)
    return int(seed) if isinstance(seed, float) and seed.is_integer() else seed


def size_of(scenario: Mapping[str, Any], trace: str | None) -> int:
    """Requests that a run will have, as far as its keys say. Raises CapacityError above what a page carries."""
    workload = scenario.get("workload")
    given = workload if isinstance(workload, Mapping) else {}
    if trace is not None:
        count: Any = given.get("max_requests") or trace.count("\n")
    elif isinstance(given.get("requests"), list):
        count = len(given["requests"])
    else:
        count = given.get("num_requests", 1000)
    if not isinstance(count, int | float) or isinstance(count, bool) or not math.isfinite(count):
        return 0  # the run itself says what is wrong with it
    if count > MOST_REQUESTS:
        raise CapacityError(
            f"the run has {count:,.0f} requests; this page carries {MOST_REQUESTS:,}, the command line (python -m capacity "
            "simulate) any number",
            field="workload.num_requests",
        )
    return int(count)


def outcome(
    policy: Policy,
    scenario: dict[str, Any],
    trace: str | None,
    *,
    meanwhile: Callable[[], None] | None = None,
) -> Outcome:
    """The run of one policy. Raises CapacityError, Cancelled."""
    count = size_of(scenario, trace)
    asked = {**scenario, "timeline": True, "requests_detail": True, "events": 0 < count <= SMALL}

    def work(progress: Callable[[float], bool]) -> dict[str, Any]:
        return run_simulate(asked, trace_text=trace, seed=_seed(scenario), progress=progress)

    name = name_of("run", scenario, trace)
    label = f"Simulating {policy.letter.upper()}, {count:,} requests"
    answer = carried_out(name, label, work, meanwhile=meanwhile)
    return Outcome(policy=policy, scenario=scenario, answer=answer)


def sweep(policy: Policy, scenario: dict[str, Any], trace: str | None) -> list[SweepPoint]:
    """The policy at eight arrival rates and up to eight more around the knee. Raises CapacityError, Cancelled."""

    def work(progress: Callable[[float], bool]) -> list[SweepPoint]:
        return sweep_rates(
            scenario, FACTORS, trace_text=trace, seed=_seed(scenario), progress=progress, refine=REFINE
        )

    name = name_of("sweep", scenario, trace)
    label = f"Sweeping the arrival rate of {policy.letter.upper()}"
    return carried_out(name, label, work, of=f"of at most {len(FACTORS) + REFINE} runs")


def logged_run(one: Outcome, trace: str | None) -> Run:
    """The run again with its log, for the block map. Raises CapacityError, Cancelled."""

    def work(progress: Callable[[float], bool]) -> Run:
        seed = _seed(one.scenario)
        return simulate(
            prepare(one.scenario, trace_text=trace, seed=seed), seed=seed, progress=progress, log=True
        )

    return carried_out(name_of("log", one.scenario, trace), "Drawing blocks", work)


def export(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What the JSON download holds; the page opens it again."""
    return {
        "waterline_simulation": 1,
        "runs": [
            {
                "policy": one.policy.letter,
                "name": one.policy.name,
                "scenario": one.scenario,
                "answer": {k: v for k, v in one.answer.items() if k not in TABLES},
            }
            for one in outcomes
        ],
    }
