"""Long work of one visitor: joined by the next script, stopped by a cancel, by other work, and by being left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from pages.ui import background
from pages.ui.background import Task, carry_out, forget


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The visitor's session."""
    state: dict[str, Any] = {}
    monkeypatch.setattr(st, "session_state", state)
    return state


def until_stopped(progress: Callable[[float], bool]) -> str:
    """Work that goes on until it is told to end, 10 s at most."""
    for _ in range(10_000):
        if not progress(0.5):
            return "ended early"
        time.sleep(0.001)
    return "ran on"


def in_a_script(seen: list[Task[str]], name: str) -> threading.Thread:
    """A script that wants the work, in its own thread as Streamlit has it."""
    one = threading.Thread(
        target=lambda: seen.append(carry_out("slot", name, until_stopped, said=lambda share: f"{share:.0%}"))
    )
    one.start()
    return one


def test_quick_work_is_done_once_and_kept(session: dict[str, Any]) -> None:
    calls: list[int] = []

    def work(progress: Callable[[float], bool]) -> int:
        calls.append(1)
        progress(1.0)
        return len(calls)

    first = carry_out("slot", "a", work, said=str)
    again = carry_out("slot", "a", work, said=str)
    assert (first.result, again.result, calls) == (1, 1, [1])
    forget("slot")
    assert carry_out("slot", "a", work, said=str).result == 2
    assert carry_out("slot", "b", work, said=str).result == 3
    assert list(session) == ["background_slot"]


def test_a_cancel_reaches_the_work_whichever_script_watches_it(session: dict[str, Any]) -> None:
    """Two scripts at once, as after a click: the second joins the first one's work, and both see its end."""
    seen: list[Task[str]] = []
    first = in_a_script(seen, "a")
    while "background_slot" not in session:
        time.sleep(0.001)
    running: Task[str] = session["background_slot"]
    running.stop()  # what the button does
    second = in_a_script(seen, "a")
    first.join(5)
    second.join(5)
    assert [task is running for task in seen] == [True, True]
    assert running.stopped and running.result == "ended early" and running.share == 0.5


def test_other_work_stops_the_one_before(session: dict[str, Any]) -> None:
    seen: list[Task[str]] = []
    first = in_a_script(seen, "a")
    while "background_slot" not in session:
        time.sleep(0.001)
    before: Task[str] = session["background_slot"]
    second = in_a_script(seen, "b")
    first.join(5)
    until = time.monotonic() + 5
    while session["background_slot"] is before and time.monotonic() < until:  # stopped first, replaced then
        time.sleep(0.001)
    assert before.result == "ended early" and session["background_slot"].name == "b"
    session["background_slot"].stop()
    second.join(5)
    assert len(seen) == 2


def test_work_that_nobody_watches_ends_and_is_done_anew(
    session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "ALONE_S", 0.05)
    left = session["background_slot"] = Task("a", until_stopped)
    deadline = time.monotonic() + 5
    while left.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left.left and not left.stopped and left.result == "ended early"
    task = carry_out("slot", "a", lambda progress: "done", said=str)
    assert task is not left and task.result == "done"


def test_an_error_is_handed_over(session: dict[str, Any]) -> None:
    def work(progress: Callable[[float], bool]) -> None:
        raise ValueError("nothing to plan")

    task = carry_out("slot", "a", work, said=str)
    assert isinstance(task.error, ValueError) and task.result is None


def _two_in_turn() -> None:
    import time

    import streamlit as st

    from pages.ui.background import carry_out

    for name in ("a", "b"):
        task = carry_out("slot", name, lambda progress: time.sleep(0.8) or "done", said=str)
        st.write(f"{name} {task.result}")


def test_one_script_watches_two_tasks_with_a_bar_in_turn() -> None:
    app = AppTest.from_function(_two_in_turn, default_timeout=20).run()
    assert not app.exception
    assert [one.value for one in app.markdown] == ["a done", "b done"]
