"""A target that cannot be read: what to do follows from what its reason says, and is not always an outage."""

from __future__ import annotations

import csv
from importlib import resources
from pathlib import Path

import pytest

from capacity.diagnosis import down_verdict
from capacity.pool_diagnosis import diagnose_pool
from capacity.telemetry import pool_signals

ROOT = Path(__file__).parents[2]
ROWS = list(
    csv.DictReader(resources.files("capacity.catalog").joinpath("down_actions.csv").open(encoding="utf-8"))
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["says"])
def test_each_phrase_is_one_that_a_reason_holds(row: dict[str, str]) -> None:
    source = (ROOT / row["source"]).read_text(encoding="utf-8")
    assert row["says"] in source or row["says"].replace("bad_data", "{kind}") in source


@pytest.mark.parametrize(
    ("reason", "action", "cost"),
    [
        ("the server asks for credentials (401)", "give Waterline this target's token", "none"),
        ("connection refused: nothing listens there", "read the log of the engine's", "capacity of one"),
        ("no whole answer within 5 s", "look whether the process hangs", "capacity of one"),
        ("the answer is an HTML page titled 'Sign in'; expected a metrics page", "look for a login", "none"),
        ("the answer is a JSON document; expected a metrics page", "correct this target's address", "none"),
        (
            "the server gives at most 11,000 points per series: a larger step or a shorter window is needed",
            "ask for a shorter window or a larger step",
            "none",
        ),
        (
            "the server answered with status 500; expected 200",
            "check the process and the network",
            "capacity",
        ),
    ],
)
def test_what_to_do_follows_from_the_reason(reason: str, action: str, cost: str) -> None:
    found = down_verdict(reason)
    assert len(found.actions) == 1 and found.actions[0].action.startswith(action)
    assert found.actions[0].cost.startswith(cost)


def test_a_pool_that_is_down_for_two_reasons_gives_what_to_do_for_both() -> None:
    down = {"a": "connection refused: nothing listens there", "b": "the server asks for credentials (401)"}
    found = diagnose_pool({}, pool_signals([]), down=down)
    assert found.name == "down" and found.summary == "down: no metrics, for different reasons"
    assert [one.action.split()[0] for one in found.actions] == ["read", "give"]
    assert [one.text for one in found.evidence][1:3] == [f"{name}: {reason}" for name, reason in down.items()]
