"""The head of the Live page: title, question, and at the top right share, download, help. Draws only."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from capacity.verdicts import thresholds
from pages.ui import live_format as fmt
from pages.ui.downloads import download
from pages.ui.link import link
from pages.ui.live_runbook import advice
from pages.ui.page_head import page_head

QUESTION = "What is the pool holding now, and what binds it?"
KEPT = "7 days as read, 35 days by the minute, 400 days by the quarter of an hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What Share and Download are about. The callables are run when a button is pressed, without a session.

    ``end_s``: the window's end, None while it moves. ``saved`` True: the window comes from an opened file.
    """

    window: str
    end_s: float | None
    saved: bool
    utc: bool
    zone: str | None
    snapshot: Callable[[], Any]
    replicas: Callable[[], str]
    incident: Callable[[], bytes]
    rules: Callable[[], str]
    dashboard: Callable[[], str]


def head(shown: Shown | None, *, note: str, now_s: Callable[[], float]) -> None:
    """Draw it. ``note`` follows the question; ``shown`` None: nothing is watched."""
    with page_head("Live", f"{QUESTION} {note}".strip(), key="live_head"):
        with st.popover("Share", icon=":material/share:", key="live_share", on_change="rerun"):
            _share(shown, now_s=now_s())
        with st.popover("Download", icon=":material/download:", key="live_download"):
            _downloads(shown, now_s=now_s())
        with st.popover("Help", icon=":material/help:", key="live_help"):
            st.markdown(help_text())


def address(page_url: str, shown: Shown, until_s: float) -> str:
    """The link that opens the same window, standing still."""
    values = {"live_window": shown.window, "live_until": f"{until_s:.0f}"}
    return link(page_url, values | ({"live_utc": "true"} if shown.utc else {}))


def _share(shown: Shown | None, *, now_s: float) -> None:
    if shown is None:
        st.caption("Nothing is being watched yet.")
        return
    until_s = now_s if shown.end_s is None else shown.end_s
    until = fmt.clock(until_s, utc=shown.utc, zone=shown.zone)
    if shown.saved:
        st.markdown("This window comes from a file: send the file, it opens at any Waterline.")
    else:
        st.markdown(
            f"This link opens the {shown.window} that end **{until}**, standing still, for everybody."
        )
        st.code(address(st.context.url or "", shown, until_s), language=None, wrap_lines=True)
        st.caption(
            f"It works on this server as long as its readings are kept ({KEPT}). To open the window anywhere "
            "else, send the incident file; **Open a saved file** in the sidebar reads it."
        )
    _download("Incident file", shown.incident, _named("incident", until_s, "json.gz"), "application/gzip")


def _downloads(shown: Shown | None, *, now_s: float) -> None:
    if shown is None:
        st.caption("There is nothing to download yet.")
        return
    until_s = now_s if shown.end_s is None else shown.end_s
    snapshot = shown.snapshot
    _download(
        "JSON: signals and verdicts",
        lambda: json.dumps(snapshot(), indent=2),
        _named("snapshot", until_s, "json"),
        "application/json",
    )
    _download("CSV: one replica a line", shown.replicas, _named("replicas", until_s, "csv"), "text/csv")
    _download(
        "Incident file: the window and its verdicts",
        shown.incident,
        _named("window", until_s, "json.gz"),
        "application/gzip",
    )
    st.caption("The lines, verdicts and actions of this page, for the Prometheus that scrapes the engines:")
    _download("Alert rules for Prometheus", shown.rules, "waterline-rules.yml", "application/yaml")
    _download("Dashboard for Grafana", shown.dashboard, "waterline-grafana.json", "application/json")


def _named(what: str, at_s: float, ending: str) -> str:
    """A file name with the moment in UTC, so that files sort by time.

    >>> _named("incident", 0, "json.gz")
    'waterline-incident-19700101-000000.json.gz'
    """
    stamp = fmt.clock(at_s, utc=True)[:19]
    return f"waterline-{what}-{stamp.replace('-', '').replace(':', '').replace(' ', '-')}.{ending}"


def _download(label: str, data: Any, name: str, mime: str) -> None:
    download(label, data, name, mime, key=f"live_download_{label}", small=False)


def help_text() -> str:
    """What the page answers, its lines and its words."""
    line = thresholds()
    act, critical = (fmt.percent(line[n].value) for n in ("kv_act", "kv_critical"))
    said = [
        "**In ten seconds.** Read the verdict, the replica it names, time to full, then **To do**.",
        "",
        f"- **Waterline**: share of the KV cache's blocks in use. **Act** ({act}): route elsewhere or add room. "
        f"**Critical** ({critical}): new requests wait, running ones are about to be preempted.",
        "- **Time to full**: when the first replica has no free block if the trend of its scrapes goes on, with "
        "the 95 % interval. *Not filling*: usage falls or stands. An en dash: the scatter hides the trend.",
        "- **Waiting**: for *capacity* (seats, blocks, tokens per step) or *deferred* (adapter, KV transfer).",
        "- **p50 · p90 · p99**: half, 90 % and 99 % of the observations of the last minute are no longer. "
        "≥ means above the engine's highest bucket.",
        "- **Scrape age**: how old the figures are. **–** is not known; its reason stands below the table.",
        "- **DEMO**: made-up readings.",
    ]
    found = advice()
    if found:
        said += ["", "**Verdicts** (docs/runbook.md has what to do for each)", ""]
        said += [f"- **{name}**: {one.meaning}" for name, one in found.items()]
    return "\n".join(said)
