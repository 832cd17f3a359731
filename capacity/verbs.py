"""The verbs plan, search, export and fields: a JSON object in, a JSON object out."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from capacity.answer import answer
from capacity.errors import CapacityError
from capacity.fixes import fixes
from capacity.plan import plan
from capacity.scenario import Scenario, field_table
from capacity.scenario_keys import for_verb
from capacity.search import QUESTIONS, search


def run_plan(raw: dict[str, Any]) -> dict[str, Any]:
    """The plan of one scenario, with fixes when it does not fit. Raises CapacityError."""
    scenario, notes = for_verb(raw, "plan")
    found = plan(Scenario.parse(scenario))
    made = answer(found, fixes=fixes(found) if found.fit != "yes" else ())
    made["warnings"] = [*notes, *made["warnings"]]
    return made


def run_search(raw: dict[str, Any]) -> dict[str, Any]:
    """The answer to ``question`` for ``concurrency`` full-length requests. Raises CapacityError."""
    scenario, notes = for_verb(raw, "search")
    question = scenario.pop("question", None)
    if not isinstance(question, str):
        raise CapacityError(f"question is missing; expected one of {', '.join(QUESTIONS)}", field="question")
    wanted = _whole(scenario.pop("concurrency", 1), "concurrency", 1_000_000)
    most = _whole(scenario.pop("max_gpus", 16), "max_gpus", 256)
    found = search(Scenario.parse(scenario), question, concurrency=wanted, max_gpus=most)
    return {
        "question": question,
        "concurrency": wanted,
        "answer": found.changes or None,
        "alternative": found.alternative,
        "sentence": found.sentence,
        "binding_constraint": found.plan.binding_constraint if found.plan else None,
        "tried": found.tried,
        "plan": answer(found.plan) if found.plan else None,
        "warnings": list(notes),
    }


EXPORTS = ("report", "serve-command", "json", "csv")


def run_export(raw: dict[str, Any]) -> dict[str, Any]:
    """The plan as a document: ``what`` names which one, ``content`` is its text. Raises CapacityError."""
    scenario, _ = for_verb(raw, "export")
    what = scenario.pop("what", None)
    if what not in EXPORTS:
        raise CapacityError(f"what is {str(what)[:40]!r}; expected one of {', '.join(EXPORTS)}", field="what")
    found = plan(Scenario.parse(scenario))
    changes = fixes(found) if found.fit != "yes" else ()
    if what == "report":
        from capacity.export.report import report_html

        made_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return {"what": what, "content": report_html(found, fixes=changes, made_at=made_at)}
    if what == "serve-command":
        from capacity.export.serve_command import serve_script

        return {"what": what, "content": serve_script(found)}
    if what == "csv":
        from capacity.export.answer_csv import answer_csv

        return {"what": what, "content": answer_csv(answer(found, fixes=changes))}
    text = json.dumps(answer(found, fixes=changes), indent=2, allow_nan=False)
    return {"what": what, "content": f"{text}\n"}


def run_fields(raw: dict[str, Any]) -> dict[str, Any]:
    """Every scenario key with its type, range and meaning."""
    return {
        "fields": [
            {"key": f.key, "type": f.type, "minimum": f.minimum, "maximum": f.maximum, "help": f.help}
            for f in field_table().values()
        ]
    }


def _whole(value: Any, field: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise CapacityError(
            f"{field} is {str(value)[:40]!r}; expected a whole number, 1 to {most:,}", field=field
        )
    return value
