"""Runs on the screen: head, verdict, figures, the four panels, tabs. Draws outcomes, decides nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from capacity.errors import CapacityError
from capacity.simulation.block_map import MOST_BLOCKS, MOST_REQUESTS, block_map
from pages.ui import simulate_charts as charts
from pages.ui import simulate_pictures as pictures
from pages.ui import simulate_words as words
from pages.ui.downloads import download
from pages.ui.figure import Chart
from pages.ui.format import count, first_upper, table_csv
from pages.ui.link import link
from pages.ui.page_head import page_head
from pages.ui.simulate_inputs import Inputs
from pages.ui.simulate_labels import labelled
from pages.ui.simulate_runs import Cancelled, Outcome, export, logged_run, name_of, run_again, sweep
from pages.ui.simulate_throughput import throughput

TABS = ("Results", "Arrival rate", "Single requests", "Block map", "What was simulated")
BANNERS = {
    "ok": (st.success, ":material/check_circle:"),
    "act": (st.warning, ":material/warning:"),
    "critical": (st.error, ":material/cancel:"),
    "information": (st.info, ":material/balance:"),
}
SWEEP_AT_ONCE = 20_000
FRAMES = 60
HELP = """
**What this page answers.** What the same traffic does to the same block pool under different policies: who waits, who is
refused, what is computed twice.

- **Goodput**: requests per second that meet the objective (TTFT, TPOT). Refused and late requests are not good.
- **Waterline**: share of the KV blocks in use on the fullest replica.
- **Preemption**: the scheduler takes a running request's blocks because others need them; its tokens are computed again.
- **Gate**: a rule at the door that answers 429 or 503 in place of letting a request wait.
- **Knee**: the fastest arrivals at which 95 % of what arrives still meets the objective.

The same seed gives the same run. The address bar holds every input but an uploaded trace. The command line takes the
scenario of the JSON download: `python -m capacity simulate --scenario FILE`.
"""


def ink() -> str:
    return "#E6EAEE" if st.context.theme.type == "dark" else "#1B1F24"


def dark() -> bool:
    return st.context.theme.type == "dark"


def plain(text: str) -> str:
    for mark in ("\\", "`", "*", "_", "[", "]", "$", "#", "~", "<", ":"):
        text = text.replace(mark, f"\\{mark}")
    return text


def head(inputs: Inputs, outcomes: Sequence[Outcome] | None, *, waiting: bool = False) -> None:
    """Title, question, and at the top right share, download, help. ``waiting``: drawn once more when a run has ended."""
    question = "What does this traffic do to the block pool, and which policy serves it best?"
    with page_head("Simulate", question, key="sim_head_waiting" if waiting else "sim_head"):
        with st.popover("Share", icon=":material/share:"):
            st.markdown("This link opens the same runs: every input, seed included.")
            st.code(link(st.context.url or "", inputs.link_values()), language=None, wrap_lines=True)
            if inputs.trace is not None:
                st.warning(
                    "The uploaded trace is not part of the link: send the file with it.",
                    icon=":material/warning:",
                )
        with st.popover("Download", icon=":material/download:"):
            _downloads(outcomes, waiting=waiting)
        with st.popover("Help", icon=":material/help:"):
            st.markdown(HELP)


def _downloads(outcomes: Sequence[Outcome] | None, *, waiting: bool) -> None:
    if waiting or not outcomes:
        st.caption("A run is under way." if waiting else "There is no run to download yet.")
        return
    _download("JSON: scenarios and results", lambda: json.dumps(export(outcomes), indent=1), "waterline-simulation.json",
              "application/json")  # fmt: skip
    _download("CSV: results side by side", lambda: table_csv(words.result_rows(outcomes)[1]),
              "waterline-simulation.csv", "text/csv")  # fmt: skip
    _download("JSON: scenario of A for the command line", lambda: json.dumps(outcomes[0].scenario, indent=1),
              "scenario.json", "application/json")  # fmt: skip


def _download(label: str, data: Any, name: str, mime: str, *, small: bool = False) -> None:
    download(label, data, name, mime, key=f"sim_download_{name}", small=small)


def problem(sentence: str, *, stale: bool) -> None:
    """What was wrong with the input; what was typed stays there."""
    tail = " Nothing you entered is lost." + (" Below is the last run." if stale else "")
    st.error(f"**Check the input.** {plain(first_upper(sentence))}{tail}", icon=":material/error:")


def answer_block(outcomes: Sequence[Outcome], *, stale: bool, waiting: bool = False) -> None:
    """The banner, five figures, the four panels. ``waiting``: drawn once more when a run has ended."""
    found = words.verdict(outcomes)
    text = f"**{plain(found.answer)}** {plain(first_upper(found.cause)) if found.cause else ''}"
    if stale:
        with st.container(border=True):
            st.markdown(f":material/history: **Last run**, for the inputs before. {text}")
    else:
        show, icon = BANNERS[found.severity]
        show(text, icon=icon)
    _figures(outcomes)
    _chart(charts.timeline(outcomes, ink=ink(), dark=dark()), "timeline", waiting=waiting)


def _figures(outcomes: Sequence[Outcome]) -> None:
    best = outcomes[words.winner(outcomes)]
    row = st.container(horizontal=True, gap="small")
    for label, get, show, hint in (
        ("Goodput, req/s", lambda a: a["goodput_rps"], words.rate, "Requests per second that meet the objective, from the "
         "first arrival to the last answer."),
        ("TTFT p99", lambda a: a["ttft_s"]["p99"], words.seconds, "Time to first token that 99 % of finished requests stay "
         "below, from the first attempt on."),
        ("TPOT p99", lambda a: a["tpot_s"]["p99"], words.seconds, "Time per output token after the first, 99th percentile."),
        ("Refused", words.refused, count, "Requests that a gate or the engine turned away for good."),
        ("Tokens wasted", words.wasted, count, "Tokens computed again after a preemption, or for clients that had gone."),
    ):  # fmt: skip
        others = " · ".join(f"{one.letter} {show(get(one.answer))}" for one in outcomes if one is not best)
        row.metric(
            f"{label}, {best.letter}" if len(outcomes) > 1 else label, show(get(best.answer)), others or None,
            delta_color="off", delta_arrow="off", help=hint, border=True, height="stretch",
        )  # fmt: skip


def details(outcomes: Sequence[Outcome], inputs: Inputs) -> None:
    """The tabs; the open one is part of the link."""
    tabs = st.tabs(TABS, key="sim_tab", on_change="rerun", bind="query-params")
    drawers = (_results, _sweep, _requests, _blocks, _scenario)
    for tab, draw in zip(tabs, drawers, strict=True):
        if tab.open:
            with tab:
                try:
                    draw(outcomes, inputs)
                except CapacityError as error:
                    st.info(plain(first_upper(labelled(str(error)))), icon=":material/info:")
                except Cancelled:
                    cancelled()


def cancelled() -> None:
    """What a stopped run leaves: a sentence and a way back."""
    bar = st.container(horizontal=True, vertical_alignment="center", border=True)
    bar.markdown(":material/cancel: **Cancelled.** The run was stopped before its end and left no figures.")
    bar.button("Run again", key="sim_again", on_click=run_again)


def _chart(chart: Chart, key: str, *, waiting: bool = False) -> None:
    left, right = st.columns([12, 1], vertical_alignment="center", wrap=False)
    left.markdown(f"**{plain(chart.title)}**")
    if not waiting:
        with right, st.container(horizontal=True, horizontal_alignment="right"):
            _download("CSV", table_csv(chart.rows), f"{key}.csv", "text/csv", small=True)
    st.plotly_chart(
        chart.figure,
        key=f"sim_waiting_{key}" if waiting else f"sim_chart_{key}",
        config={"displayModeBar": False, "responsive": True},
        alt=chart.alt,
    )


def _table(
    rows: Sequence[Mapping[str, Any]], name: str, *, csv: Sequence[Mapping[str, Any]] | None = None
) -> None:
    st.table([dict(row) for row in rows], hide_index=True, border="horizontal")
    _download("CSV", table_csv(csv or rows), f"{name}.csv", "text/csv", small=True)


def _results(outcomes: Sequence[Outcome], inputs: Inputs) -> None:
    said: dict[str, list[str]] = {}
    for one in outcomes:
        for text in one.answer["warnings"]:
            said.setdefault(text, []).append(one.letter)
    for text, letters in said.items():
        st.caption(f":material/info: {', '.join(letters)}: {plain(text)}.")
    shown, numbers = words.result_rows(outcomes)
    _table(shown, "results", csv=numbers)
    st.caption("Percentiles are over finished requests. Queue time ends at the first scheduling.")
    _chart(throughput(outcomes, ink=ink(), dark=dark()), "throughput")
    st.markdown(
        "**Means with their 95 % interval** (20 batch means; without one below 200 finished requests)"
    )
    _table(words.interval_rows(outcomes), "intervals")
    st.markdown("**Fairness: the same by prompt length**")
    _table(words.fairness_rows(outcomes), "fairness")


def _sweep(outcomes: Sequence[Outcome], inputs: Inputs) -> None:
    total = sum(one.answer["requests"]["arrived"] for one in outcomes)
    slo = outcomes[0].scenario.get("slo") or {}
    if total > SWEEP_AT_ONCE:
        wanted = name_of([one.scenario for one in outcomes])
        if st.session_state.get("sim_sweep_wanted") != wanted:
            st.markdown(
                f"Eight rates for each policy and up to eight more around the knee: at most {16 * total:,} requests to simulate."
            )
            st.button("Run the sweep", on_click=lambda: st.session_state.update(sim_sweep_wanted=wanted))
            return
    found = [(one, sweep(one.policy, one.scenario, inputs.trace)) for one in outcomes]
    _chart(charts.sweep_chart(found, slo=slo, ink=ink(), dark=dark()), "sweep")
    st.caption(
        "The same requests, from a quarter to three times as fast, then closer around the knee until the gap is 2 %. A diamond "
        "marks the knee: the fastest rate at which 95 % of what arrives meets the objective."
        + (
            ""
            if slo
            else " No objective is set, so every finished request counts: set TTFT or TPOT under Workload."
        )
    )


def _pick(outcomes: Sequence[Outcome], key: str) -> Outcome:
    names = {one.policy.title: one for one in outcomes}
    chosen = st.segmented_control(
        "Policy", list(names), default=next(iter(names)), key=key, required=True, label_visibility="collapsed"
    )
    return names.get(chosen or "", outcomes[0])


def _requests(outcomes: Sequence[Outcome], inputs: Inputs) -> None:
    one = _pick(outcomes, "sim_requests_of")
    _chart(pictures.gantt(one.answer, one.letter), "requests")
    if one.answer.get("events") is None and one.answer["requests"]["preemptions"]:
        st.caption("Time preempted is drawn for runs of up to 200 requests; here it is part of decode.")


def _blocks(outcomes: Sequence[Outcome], inputs: Inputs) -> None:
    one = _pick(outcomes, "sim_blocks_of")
    arrived, blocks = one.answer["requests"]["arrived"], one.answer["blocks"]["total"]
    if arrived > MOST_REQUESTS or blocks > MOST_BLOCKS:
        st.info(
            f"The map replays runs of up to {MOST_REQUESTS} requests and {MOST_BLOCKS:,} blocks; this one has {arrived:,} "
            f"and {blocks:,}. Lower Requests under Workload, or open the example of 100 blocks.",
            icon=":material/arrow_back:",
        )
        return
    run = logged_run(one, inputs.trace)
    end = max(run.end_s, 0.01)
    replica = 0
    if len(run.engines) > 1:
        replica = int(st.selectbox("Replica", list(range(len(run.engines))), key="sim_blocks_replica"))
    playing = st.toggle("Play", key="sim_play", help="Moves the time on twice a second.")

    @st.fragment(run_every=0.5 if playing else None)
    def scrubber() -> None:
        state = st.session_state
        at = state.get("sim_block_at")
        at = min(float(at), end) if isinstance(at, int | float) else round(end * 0.3, 2)
        if playing:
            at = 0.0 if at >= end else min(at + end / FRAMES, end)
        state["sim_block_at"] = at
        st.slider("Simulated time, s", 0.0, float(end), key="sim_block_at", step=end / 200, format="%.2f")
        _chart(
            pictures.block_picture(
                block_map(run, float(state["sim_block_at"]), replica=replica), dark=dark()
            ),
            "blocks",
        )
        st.caption(
            "One cell a block, its number the request that holds it (2x: shared by two). Pale cells are free."
        )

    scrubber()


def _scenario(outcomes: Sequence[Outcome], inputs: Inputs) -> None:
    rows = []
    for key in outcomes[0].answer["settings"]:
        values = [one.answer["settings"][key] for one in outcomes]
        rows.append(
            {"setting": key, **{one.letter: _short(v) for one, v in zip(outcomes, values, strict=True)}}
        )
    _table(rows, "settings")
    for one in outcomes:
        st.markdown(f"**{plain(one.policy.title)}**: the scenario as the command line takes it")
        st.code(json.dumps(one.scenario, indent=1)[:20_000], language="json")


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item:.4g}" for key, item in value.items())
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
