"""A fault of the app's own: a sentence and a number on the page, the cause in the log, no traceback on the screen."""

from __future__ import annotations

import logging
import re

import pytest
from streamlit.testing.v1 import AppTest


def _script() -> None:
    import streamlit as st

    from pages.ui.fault import guarded

    def page() -> None:
        st.text_input("Field", key="field")
        if st.session_state.field:
            raise KeyError("secret detail")
        st.write("drawn")

    guarded(page)()


@pytest.mark.faulty_page
def test_a_fault_is_a_sentence_with_a_number_and_a_way_back(caplog: pytest.LogCaptureFixture) -> None:
    app = AppTest.from_function(_script).run()
    assert not app.error and app.markdown[0].value == "drawn"
    with caplog.at_level(logging.ERROR, logger="waterline"):
        app.text_input[0].set_value("x").run()
    assert not app.exception and "secret detail" not in app.error[0].value
    number = re.search(r"\*\*([0-9a-f]{8})\*\*", app.error[0].value)
    assert number is not None and f"fault {number[1]}" in caplog.text and "secret detail" in caplog.text
    app.button[0].click().run()
    assert not app.error and app.text_input[0].value == ""
