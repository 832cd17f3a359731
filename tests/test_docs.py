"""The documents run: formulas as doctests, and a glossary of one sentence a term."""

import csv
import doctest
import re
from pathlib import Path

from capacity import verdicts

ROOT = Path(__file__).resolve().parents[1]


def glossary() -> dict[str, str]:
    rows = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("| ")]
    return {term: meaning for term, meaning in cells[1:]}


def test_the_formulas_hold() -> None:
    found = doctest.testfile(str(ROOT / "docs" / "formulas.md"), module_relative=False)
    assert found.failed == 0 and found.attempted >= 10


def test_each_term_has_one_sentence_in_order() -> None:
    terms = glossary()
    assert len(terms) > 60
    for term, meaning in terms.items():
        assert meaning.endswith(".") and re.match(r"[A-Z0-9m]", meaning), term
        assert not re.search(r"[.!?] [A-Z]", meaning) and "!" not in meaning, term
    assert list(terms) == sorted(terms, key=str.lower)


def test_the_terms_of_the_answer_are_explained() -> None:
    terms = {term.lower() for term in glossary()}
    wanted = {
        "weights",
        "activation peak",
        "cuda graphs",
        "non-torch memory",
        "kv cache",
        "unused",
        "budget",
        "guaranteed requests",
        "typical requests",
        "safe requests",
        "seats",
        "block",
        "block pool",
        "maximum concurrency",
        "binding constraint",
        "interval",
        "basis",
        "ttft",
        "tpot",
        "itl",
        "e2e",
        "goodput",
        "waterline",
        "headroom",
    }
    assert wanted <= terms


def test_the_runbook_has_each_verdict_action_and_alert() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    parts = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    assert {*verdicts.NAMES, "rejections"} <= set(parts)
    for name in (*verdicts.NAMES, "rejections"):
        rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", parts[name], flags=re.M)[2:]
        wanted = [one for one in verdicts.actions(name) if one.action != "nothing to do"]
        assert rows == [(a.action, f"`{a.flag}`" if a.flag else "none", a.cost) for a in wanted], name
    reasons = (ROOT / "capacity" / "catalog" / "down_actions.csv").read_text(encoding="utf-8").splitlines()
    for row in csv.DictReader(reasons):
        assert f"\n| {row['says']} | {row['action']} |\n" in parts["down"]
    table = (ROOT / "connectors" / "alert_rules.csv").read_text(encoding="utf-8").splitlines()
    for row in csv.DictReader(table):
        assert f"`{row['alert']}`" in parts[row["verdict"] or "Clients give up"], row["alert"]
