"""Long work of one visitor in a thread: a bar, a cancel that cannot be lost, and progress that outlives a click.

Streamlit starts the next script before the last one has ended. What a click has to reach therefore lives in the session,
never in a script: a script that wants the same work joins it, one that wants other work stops it. Left out: what the work is.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import streamlit as st

T = TypeVar("T")
QUICK_S = 0.5
TOLD_EVERY_S = 0.25
ALONE_S = 60.0


class Task(Generic[T]):
    """Work in a thread. ``share`` is what it has said of its progress, 0 to 1; ``stopped`` is set by its visitor.

    ``left`` says that it ended because no script watched it for a minute.
    ``work`` is given a function to call with its progress; once that returns False the work ends soon, with what it has.
    """

    def __init__(self, name: str, work: Callable[[Callable[[float], bool]], T]) -> None:
        self.name = name
        self.share = 0.0
        self.stopped = False
        self.left = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self._seen = time.monotonic()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Callable[[float], bool]], T]) -> None:
        try:
            self.result = work(self._progress)
        except BaseException as error:  # handed to the page's thread
            self.error = error

    def _progress(self, share: float) -> bool:
        self.share = max(self.share, min(share, 1.0))
        self.left = self.left or time.monotonic() - self._seen > ALONE_S
        return not (self.stopped or self.left)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self.stopped = True

    def watch(self, seconds: float) -> None:
        """Wait for its end, at most so long; watched work goes on."""
        self._seen = time.monotonic()
        self._thread.join(seconds)


def carry_out(
    slot: str,
    name: str,
    work: Callable[[Callable[[float], bool]], T],
    *,
    said: Callable[[float], str],
    on_cancel: Callable[[], Any] | None = None,
    meanwhile: Callable[[], Any] | None = None,
) -> Task[T]:
    """The visitor's task of this name once it has ended: joined when it runs already, else started.

    A slot holds one task: one of another name is stopped. Beyond half a second there is a bar, with what ``said`` makes of
    the share done, and a cancel button, which stops what the slot holds when the click arrives. A task that was cancelled
    stays in its slot until ``forget``. ``meanwhile`` draws, once there is a bar, what stands beside it.
    """
    state: Any = st.session_state
    key = f"background_{slot}"
    task: Task[T] | None = state.get(key)
    if task is not None and (task.name != name or task.left):
        task.stop()
        task = None
    if task is None:
        task = state[key] = Task(name, work)

    def cancel() -> None:
        held: Task[Any] | None = state.get(key)
        if held is not None:
            held.stop()
        if on_cancel is not None:
            on_cancel()

    task.watch(QUICK_S)
    if task.alive:
        place = st.empty()
        with place.container(horizontal=True, vertical_alignment="center", wrap=False):
            bar = st.progress(task.share, text=said(task.share))
            # One script may watch several tasks in turn; each has a button of its own.
            number = hashlib.sha256(name.encode()).hexdigest()[:12]
            st.button("Cancel", key=f"{slot}_cancel_{number}", on_click=cancel, width="content")
        if meanwhile is not None:
            meanwhile()
        while task.alive:
            bar.progress(task.share, text=said(task.share))
            task.watch(TOLD_EVERY_S)
        place.empty()
    return task


def forget(slot: str) -> None:
    """Empty the slot, so that what it held is carried out anew."""
    task: Task[Any] | None = st.session_state.pop(f"background_{slot}", None)
    if task is not None:
        task.stop()
