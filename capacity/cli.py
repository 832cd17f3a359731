"""The command line: one table of verbs, scenario flags from the field table, JSON lines in order.

Left out: what a verb computes (plan, search, estimate, simulate).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from io import StringIO, TextIOWrapper, UnsupportedOperation
from pathlib import Path
from typing import Any, NoReturn, TextIO

from capacity.catalog.table import read_table
from capacity.errors import CapacityError
from capacity.hf_config.text import unique_keys
from capacity.scenario import Scenario, closest_key, field_table
from capacity.typed import number

Handler = Callable[[dict[str, Any]], dict[str, Any]]
MAX_LINE = 6_000_000
MAX_ERROR = 600
MAX_TABLE = 600_000_000
KINDS = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
# verb -> (module, function, help): imported when asked for, so that a plan never pays for the others.
VERBS = {
    "plan": ("capacity.verbs", "run_plan", "what the engine will hold"),
    "search": (
        "capacity.verbs",
        "run_search",
        "inverse questions: longest length, fewest GPUs, cheapest ...",
    ),
    "estimate": ("capacity.estimate_cli", "run_estimate", "TTFT, TPOT and tokens/s with intervals"),
    "size": ("capacity.estimate_cli", "run_size", "deployments that meet a rate and an SLO"),
    "simulate": ("capacity.simulate_cli", "run_simulate", "continuous batching under traffic"),
    "calibrate": (
        "capacity.calibrate_cli",
        "run_calibrate",
        "two step-time parameters from measured requests",
    ),
    "export": ("capacity.verbs", "run_export", "the plan as a report, a serve command, JSON or CSV"),
    "fields": ("capacity.verbs", "run_fields", "every scenario key with its type and range"),
}


# verb -> (flag, what it names): a file whose text goes to the verb's function beside the scenario, as does --seed.
FILES = {
    "simulate": ("trace", "request trace, CSV or JSONL"),
    "calibrate": ("measured", "timings of single requests, CSV or JSONL"),
}
FILE_WORDS = {"trace": "trace", "measured": "measured file"}
ABOUT = "What LLM serving holds: memory, KV blocks, concurrent requests, speed and queueing."
EXAMPLE = "example: python -m capacity plan --model llama-3.1-8b --gpu h100 --max-model-len 16000"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: --([\w-]+)", message)
        near = closest_key(unknown[1].replace("-", "_"), field_table()) if unknown else None
        if near:
            message += f"; did you mean --{near.replace('_', '-')}?"
        raise CapacityError(message)


def main(argv: list[str], *, stdin: TextIO | None = None, stdout: TextIO | None = None) -> int:
    """Run one command line; returns the exit code."""
    out, lines = stdout or sys.stdout, stdin or sys.stdin or StringIO()
    if out is None:  # the shell closed it
        sys.stderr.write("standard output is closed; expected it open\n")
        return 2
    for stream in (lines, sys.stdin, out):  # UTF-8 whatever the locale; bytes that are none show as \\x80
        if isinstance(stream, TextIOWrapper):
            with suppress(UnsupportedOperation):  # read before: it stays as it is
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        options, raw = _options(argv)
        handler = _handler(options.verb)
        if options.jsonl:
            for answer in _each_line(lines, partial(_call, options, handler), raw):
                out.write(json.dumps(answer, allow_nan=False) + "\n")
            return _flushed(out)
        answer = _call(options, handler, raw)
        if options.json:
            out.write(json.dumps(answer, indent=2, allow_nan=False) + "\n")
        else:
            out.write(answer["content"] if options.verb == "export" else as_text(answer) + "\n")
        return _flushed(out)
    except CapacityError as error:
        sys.stderr.write(f"{_one_line(error)}\n")
        return 2
    except BrokenPipeError:
        _silence(out)
        return 0
    except OSError as error:
        _silence(out)
        sys.stderr.write(f"cannot write the answer: {error.strerror or type(error).__name__}\n")
        return 1


def _flushed(out: TextIO) -> int:
    """0 once the answer has left: a full disk or a closed pipe shows here and not while the process ends."""
    out.flush()
    return 0


def _silence(out: TextIO) -> None:
    """Send what is left in the buffer nowhere, so that the interpreter has nothing to complain about at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    except (OSError, ValueError):
        return


def _options(argv: list[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
    parser = _Parser(prog="python -m capacity", description=ABOUT, epilog=EXAMPLE, allow_abbrev=False)
    switch: dict[str, Any]
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join(VERBS))
    for verb, (_, _, text) in VERBS.items():
        one = verbs.add_parser(verb, help=text, description=text, allow_abbrev=False)
        if argv[:1] != [verb]:  # fifty flags a verb: only the verb that is asked for pays for them
            continue
        one.add_argument("--json", action="store_true", help="answer JSON")
        one.add_argument(
            "--jsonl", action="store_true", help="read one JSON object a line, answer one a line"
        )
        one.add_argument("--scenario", metavar="FILE", help="scenario as a JSON file (- for standard input)")
        if verb in FILES:
            name, text = FILES[verb]
            one.add_argument(_flag(name), metavar="FILE", help=text)
            one.add_argument("--seed", metavar="N", help="seed of the run, a whole number")
        for row in _verb_flags(verb):
            switch = {"nargs": "?", "const": "true"} if row["type"] == "flag" else {}
            one.add_argument(
                _flag(row["key"]), dest=f"key_{row['key']}", metavar="VALUE", help=row["help"], **switch
            )
        for field in field_table().values() if verb != "fields" else ():
            switch = {"nargs": "?", "const": "true"} if field.type == "flag" else {}
            one.add_argument(
                _flag(field.key),
                dest=f"key_{field.key}",
                metavar="VALUE",
                help=field.help,
                **switch,
            )
    options = parser.parse_args(argv)
    raw: dict[str, Any] = {}
    if options.scenario is not None:
        raw = _asked(read_object(options.scenario))
    types = {field.key: field.type for field in field_table().values() if options.verb != "fields"}
    types.update({row["key"]: row["type"] for row in _verb_flags(options.verb)})
    for key, kind in types.items():
        text = getattr(options, f"key_{key}")
        if text is not None:
            raw[key] = _from_flag(key, kind, text)
    return options, raw


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _verb_flags(verb: str) -> list[dict[str, str]]:
    """Flags of one verb beside the scenario's."""
    return [row for row in read_table("verb_flags") if row["verb"] == verb]


def _from_flag(key: str, kind: str, text: str) -> Any:
    """A flag's text as the JSON value its key expects; a file name for objects, a model's folder for its config."""
    if kind == "object":
        folder = key == "model_config" and Path(text).is_dir()
        return read_object(str(Path(text) / "config.json") if folder else text)
    if kind == "flag":
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in ("text",) or kind.startswith("choice:"):
        return text
    if kind == "texts":
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind in ("numbers", "integers") and "," in text:
        return [_from_flag(key, "number", part) for part in text.split(",")]
    try:
        value = json.loads(text.replace("_", "") if text.replace("_", "").isdigit() else text)
    except ValueError:
        return number(text)
    return value


def read_object(path: str) -> dict[str, Any]:
    """A JSON object from a file. Raises CapacityError that says what was seen."""
    try:
        text = (sys.stdin or StringIO()).read(MAX_LINE + 1) if path == "-" else _read_file(path)
    except OSError as error:
        raise CapacityError(f"cannot read {path[:120]!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CapacityError(f"{path[:120]!r} is not text in UTF-8") from None
    return parse_object(text, path)


def _asked(value: dict[str, Any]) -> dict[str, Any]:
    """The scenario of a saved answer (the page's JSON download), or the object itself."""
    scenario = value.get("scenario")
    return scenario if isinstance(scenario, dict) and {"fits", "memory"} <= set(value) else value


def _read_file(path: str) -> str:
    with Path(path).open(encoding="utf-8") as lines:
        return lines.read(MAX_LINE + 1)


def _read_table(path: str, what: str) -> str:
    """The text of a trace or a measured file, at most ``MAX_TABLE`` characters: a device may have no end."""
    with Path(path).open(encoding="utf-8") as lines:
        start = lines.read(4096)
        text = start if "\x00" in start else start + lines.read(MAX_TABLE)
    if len(text) > MAX_TABLE:
        raise CapacityError(f"the {what} has more than {MAX_TABLE:,} characters; expected at most that")
    return text


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Text as a JSON object. Raises CapacityError naming ``where``."""
    if len(text) > MAX_LINE:
        raise CapacityError(
            f"{where} has more than {MAX_LINE:,} characters; expected a scenario of at most that"
        )
    start = text.strip("\ufeff \t\r\n")
    if not start:
        raise CapacityError(f"{where} is empty, so not JSON; expected a JSON object")
    if start[0] == "<":
        raise CapacityError(
            f"{where} is an HTML or XML page; expected a JSON object; it starts with {start[:30]!r}"
        )
    try:
        value = json.loads(start, object_pairs_hook=unique_keys)
    except CapacityError as error:
        raise CapacityError(f"{where}: {error}", field=error.field) from None
    except RecursionError:
        raise CapacityError(f"{where} is nested too deeply; expected a JSON object") from None
    except json.JSONDecodeError as error:
        place = text.find(start) + error.pos
        line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
        at = f"line {line}, column {column}" if "\n" in text.strip() else f"column {column}"
        raise CapacityError(
            f"{where} is not JSON: {error.msg.lower()} at {at}; it starts with {start[:30]!r}"
        ) from None
    except ValueError:
        raise CapacityError(f"{where} holds a number of more than 4,300 digits") from None
    if not isinstance(value, dict):
        raise CapacityError(f"{where} holds {KINDS.get(type(value), 'a number')}; expected a JSON object")
    return value


def _handler(verb: str) -> Callable[..., dict[str, Any]]:
    module, function, _ = VERBS[verb]
    loaded: Callable[..., dict[str, Any]] = getattr(importlib.import_module(module), function)
    return loaded


def _call(
    options: argparse.Namespace, handler: Callable[..., dict[str, Any]], raw: dict[str, Any]
) -> dict[str, Any]:
    if options.verb not in FILES:
        return handler(raw)
    name, _ = FILES[options.verb]
    path = getattr(options, name)
    text = None
    if path is not None:
        try:
            text = _read_table(path, FILE_WORDS[name])
        except OSError as error:
            raise CapacityError(
                f"cannot read the {FILE_WORDS[name]} {path[:120]!r}: {error.strerror}"
            ) from None
        except UnicodeDecodeError:
            raise CapacityError(
                f"cannot read the {FILE_WORDS[name]} {path[:120]!r}: it is not text in UTF-8"
            ) from None
    seed = _from_flag("seed", "number", options.seed) if options.seed is not None else raw.pop("seed", 0)
    return handler(raw, **{f"{name}_text": text}, seed=seed)


def _each_line(
    lines: TextIO, handler: Callable[..., dict[str, Any]], base: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield handler({**base, **_asked(parse_object(line, f"line {place}"))})
        except CapacityError as error:
            yield {"error": _one_line(error), "field": error.field}
        except RecursionError:
            yield {"error": f"line {place} is nested too deeply; expected a JSON object", "field": None}


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= MAX_ERROR else f"{text[: MAX_ERROR - 4]} ..."


def as_text(answer: dict[str, Any], indent: int = 0) -> str:
    """An answer as indented text for a terminal."""
    pad = "  " * indent
    lines = []
    for key, value in answer.items():
        if isinstance(value, dict) and value:
            lines += [f"{pad}{key}:", as_text(value, indent + 1)]
        elif isinstance(value, dict):
            lines.append(f"{pad}{key}: none")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"{pad}{key}:")
            for item in value:
                cells = (f"{name} {_short(cell)}" for name, cell in item.items() if cell is not None)
                lines.append(f"{pad}  - " + "; ".join(cells))
        elif isinstance(value, list) and any(isinstance(item, str) and "," in item for item in value):
            lines += [f"{pad}{key}:", *(f"{pad}  - {_short(item)}" for item in value)]  # sentences
        elif isinstance(value, list):
            lines.append(f"{pad}{key}: " + (", ".join(_short(item) for item in value) or "none"))
        else:
            lines.append(f"{pad}{key}: {_short(value)}")
    return "\n".join(lines)


def _short(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        if {"value", "low", "high"} <= set(value):
            return f"{_short(value['value'])} ({_short(value['low'])}-{_short(value['high'])})"
        return ", ".join(f"{key} {_short(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_short(item) for item in value) or "none"
    return str(value)


__all__ = ["Scenario", "main", "parse_object", "read_object"]
