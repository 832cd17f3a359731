"""Why a verdict is what it is and what to do about it: one line per replica, evidence, actions, the runbook.

Left out: the verdicts themselves (diagnosis).
"""

from __future__ import annotations

import streamlit as st

from capacity.verdicts import SEVERITIES, Verdict
from connectors.live_view import EngineView, LiveView
from pages.ui import live_format as fmt
from pages.ui.live_runbook import advice
from pages.ui.live_words import plain

LISTED = 5
COLOURS = {"ok": "green", "info": "blue", "warning": "orange", "critical": "red"}
# Cells of the table whose en dash needs a reason, and what they are called.
CELLS = {
    "kv_usage": "KV in use",
    "running": "running",
    "waiting": "waiting",
    "generation_tokens_per_s": "output tokens/s",
    "ttft_s.p90": "TTFT",
    "itl_s.p90": "ITL",
    "preemptions_per_s": "preemptions",
}


def unknown_cells(engine: EngineView) -> str | None:
    """Which of a replica's figures are not known and why, in one line; None where all are.

    Figures with the same reason share it.
    """
    if engine.signals is None:
        return None
    reasons: dict[str, list[str]] = {}
    for signal, name in CELLS.items():
        found = engine.signals[signal]
        if found.number is None:
            reasons.setdefault(found.reason or found.state.value, []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items()) or None


def lines(view: LiveView) -> list[str]:
    """One line of Markdown per replica that is not fine or not wholly known, worst first; like ones share it."""
    said: dict[str, list[str]] = {}
    for one in sorted(view.engines, key=lambda e: (-SEVERITIES.index(e.verdict.severity), e.name)):
        parts = []
        if one.verdict.severity.value != "ok":
            name, _, reason = one.verdict.summary.partition(": ")
            look = fmt.SEVERITY_LOOKS[one.verdict.severity.value]
            colour = COLOURS[one.verdict.severity.value]
            parts.append(f"{look.icon} :{colour}[**{plain(name)}**] {plain(reason)}".strip())
        if (dash := unknown_cells(one)) is not None:
            parts.append(f":gray[{fmt.UNKNOWN} {plain(dash)}]")
        if parts:
            said.setdefault(" · ".join(parts), []).append(one.name)
    return [f"**{plain(fmt.listing(names, limit=LISTED))}** {text}" for text, names in said.items()]


def list_of(view: LiveView) -> None:
    """Why each replica is what it is, whole, below the table; nothing where all are fine."""
    found = lines(view)
    if not found:
        return
    more = len(found) - LISTED
    shown = found[:LISTED] + ([f":gray[{more} more in the replicas' CSV]"] if more > 0 else [])
    st.markdown("  \n".join(shown))


def evidence(verdict: Verdict | None, *, key: str = "live_why") -> None:
    """Why the verdict is what it is, how sure, everything that could be done with its price, and the runbook."""
    with st.expander("Why, and what to do", key=key):
        if verdict is None:
            st.caption("Nothing has been read yet.")
            return
        st.markdown("\n".join(explained(verdict)))


def explained(verdict: Verdict) -> list[str]:
    """The expander's lines of Markdown."""
    found = advice().get(verdict.name)
    out = [found.meaning, ""] if found else []
    out += ["", f"Evidence (confidence {verdict.confidence.value}):"]
    out += [f"- {plain(one.text)}" + (f" `{one.metric}`" if one.metric else "") for one in verdict.evidence]
    fine = verdict.severity.value == "ok"
    if found and not fine:
        out += ["", f"**Look first.** {found.look_first}"]
    if verdict.actions and not fine:
        out += ["", "**What to do**, in this order:"]
        out += [
            f"1. {a.action}" + (f" `{a.flag}`" if a.flag else "") + f" (cost: {a.cost})"
            for a in verdict.actions
        ]
    if found and found.wake_when:
        out += ["", f"**Wake somebody else when** {found.wake_when[:1].lower()}{found.wake_when[1:]}"]
    return out
