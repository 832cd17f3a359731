"""Request traces: text in, requests out. Which file it was is read off its column names.

Source: the published formats of the Azure LLM traces (TIMESTAMP, ContextTokens, GeneratedTokens), Mooncake
(JSON lines with hash_ids of 512 tokens, milliseconds), BurstGPT and ServeGen, and a plain one. Left out:
reading the file itself.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from capacity.errors import CapacityError
from capacity.hf_config.text import unique_keys
from capacity.workload import MAX_REQUESTS, MAX_TOKENS, Requests

ARRIVAL = ("arrival_s", "timestamp", "arrival_time", "arrived_at", "time", "arrival_ms", "timestamp_ms")
PROMPT = (
    "prompt_tokens",
    "contexttokens",
    "input_length",
    "request tokens",
    "input_tokens",
    "input_toks",
    "num_prefill_tokens",
)
OUTPUT = (
    "output_tokens",
    "generatedtokens",
    "output_length",
    "response tokens",
    "output_toks",
    "num_decode_tokens",
)
PLAIN = "arrival_s,prompt_tokens,output_tokens[,priority]"
MOONCAKE_KEY_TOKENS = 512
EPOCH_S = 1e7
MAX_SPAN_S = 400 * 86_400.0


def parse_trace(text: str) -> Requests:
    """Requests of a CSV or JSON-lines trace, from time 0, sorted; ``notes`` say what was done to it.

    Raises CapacityError that names the line and what was expected.

    >>> trace = parse_trace("arrival_s,prompt_tokens,output_tokens\\n1796100000,300,9\\n1796100002,5,80\\n")
    >>> trace.arrival_s.tolist(), trace.notes
    ([0.0, 2.0], ('arrival times are absolute and were rebased to the first arrival',))
    """
    return _requests(table_rows(text, PLAIN, (*ARRIVAL, *PROMPT, *OUTPUT, "priority")))


def table_rows(text: str, plain: str, known: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and columns (names in lower case) of every row of CSV or JSON lines. Raises CapacityError.

    ``plain`` names what is expected, ``known`` the columns that may be there once only.
    """
    body = text.lstrip("\ufeff \r\n\t")
    if not body:
        raise CapacityError(f"the trace is empty; expected CSV with {plain}, or JSON lines", field="trace")
    if "\x00" in body[:4096]:
        raise CapacityError("the trace is not text; expected CSV or JSON lines", field="trace")
    if body[0] in "<[":
        kind = "an HTML or XML page" if body[0] == "<" else "a JSON list"
        raise CapacityError(
            f"the trace is {kind}; expected CSV with {plain}, or JSON lines: one object a line", field="trace"
        )
    above = text[: text.find(body)].count("\n")
    for line, row in _json_rows(body) if body[0] == "{" else _csv_rows(body, known):
        yield line + above, row


def _csv_rows(text: str, known: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(text))
    try:
        header = [name.strip().lower() for name in next(reader)]
        for name in known:
            if header.count(name) > 1:
                raise CapacityError(
                    f"the trace has {header.count(name)} columns named {name}; expected one", field="trace"
                )
        for row in reader:
            if not row or not any(cell.strip() for cell in row):
                continue
            if len(row) < len(header):
                raise CapacityError(
                    f"line {reader.line_num} of the trace has {len(row)} fields; expected {len(header)}",
                    field="trace",
                )
            yield reader.line_num, dict(zip(header, row, strict=False))
    except csv.Error as error:
        raise CapacityError(
            f"line {reader.line_num} of the trace is not CSV: {error}", field="trace"
        ) from None


def _json_rows(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=unique_keys)
        except CapacityError as error:
            raise CapacityError(f"line {number} of the trace: {error}", field="trace") from None
        except (ValueError, RecursionError):
            raise CapacityError(f"line {number} of the trace is not JSON", field="trace") from None
        if not isinstance(row, dict):
            raise CapacityError(f"line {number} of the trace is not a JSON object", field="trace")
        yield number, {str(key).lower(): value for key, value in row.items()}


def _requests(rows: Iterable[tuple[int, dict[str, Any]]]) -> Requests:
    arrival: list[float] = []
    prompt: list[int] = []
    output: list[int] = []
    priority: list[int] = []
    prefixes: list[tuple[object, ...] | None] = []
    names: tuple[str, str, str] | None = None
    shares = False
    kinds = TimeKinds()
    for line, row in rows:
        if names is None:
            names = _columns(row)
        shares = shares or "hash_ids" in row
        if len(arrival) >= MAX_REQUESTS:
            raise CapacityError(f"the trace has more than {MAX_REQUESTS:,} requests", field="trace")
        arrival.append(kinds.seconds(row.get(names[0]), line, names[0]))
        prompt.append(tokens_in(row.get(names[1]), line, names[1]))
        output.append(tokens_in(row.get(names[2]), line, names[2]))
        rank = row.get("priority")
        priority.append(0 if rank in (None, "") else _priority(rank, line))
        keys = row.get("hash_ids")
        prefixes.append(_keys(keys, line) if keys else None)
    if names is None:
        raise CapacityError(
            f"the trace has a header but no requests; expected rows of {PLAIN}", field="trace"
        )
    times, notes = _rebased(arrival, names[0], milliseconds=shares or names[0].endswith("_ms"))
    notes += kinds.notes(names[0])
    alone = sum(keys is None for keys in prefixes) if shares else 0
    if alone:
        notes.append(f"{alone:,} of {len(output):,} requests have no hash_ids: they share no prefix")
    zero = sum(tokens == 0 for tokens in output)
    if zero:
        notes.append(
            f"{zero:,} of {len(output):,} requests have no output tokens: they end with their prefill"
        )
    return Requests.of(
        arrival_s=times,
        prompt_tokens=prompt,
        output_tokens=output,
        priority=priority,
        prefixes=prefixes if shares else None,
        prefix_key_tokens=MOONCAKE_KEY_TOKENS,
        notes=notes,
    )


def _columns(row: dict[str, Any]) -> tuple[str, str, str]:
    found = [next((name for name in names if name in row), None) for names in (ARRIVAL, PROMPT, OUTPUT)]
    missing = [
        what for what, name in zip(("arrival", "prompt", "output"), found, strict=True) if name is None
    ]
    if missing:
        seen = ", ".join(list(row)[:8])[:120]
        raise CapacityError(
            f"the trace has no {' and no '.join(missing)} column; seen {seen}; expected {PLAIN}, or the columns of "
            "Azure, Mooncake, BurstGPT or ServeGen",
            field="trace",
        )
    return str(found[0]), str(found[1]), str(found[2])


class TimeKinds:
    """Reads the times of one column and remembers what they were: numbers, or dates with and without an offset."""

    def __init__(self) -> None:
        self.numbers = self.local = self.offset = 0

    def seconds(self, value: Any, line: int, name: str) -> float:
        """Seconds of a number or a date; a date without an offset is read as UTC. Raises CapacityError."""
        try:
            number = _float(value)
        except (TypeError, ValueError):
            try:
                moment = datetime.fromisoformat(str(value).strip())
            except ValueError:
                raise CapacityError(
                    f"line {line} of the trace has {name} {_cell(value)}; expected seconds or a date and time",
                    field="trace",
                ) from None
            self._one_kind(line, name, self.numbers, "a date after lines with numbers")
            self.local += moment.tzinfo is None
            self.offset += moment.tzinfo is not None
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        if not math.isfinite(number):
            raise CapacityError(
                f"line {line} of the trace has {name} {_cell(value)}; expected a finite number", field="trace"
            )
        self._one_kind(line, name, self.local + self.offset, "a number after lines with dates")
        self.numbers += 1
        return number

    def _one_kind(self, line: int, name: str, others: int, what: str) -> None:
        if others:
            raise CapacityError(
                f"line {line} of the trace has {name} as {what}; expected one kind", field="trace"
            )

    def notes(self, name: str) -> list[str]:
        """What was assumed."""
        if not (self.local and self.offset):
            return []
        return [
            f"{self.local:,} of {self.local + self.offset:,} times in {name} have no offset and were read as UTC; the others "
            "have one"
        ]


def tokens_in(value: Any, line: int, name: str) -> int:
    """A whole number of tokens from a cell. Raises CapacityError."""
    try:
        number = _float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= MAX_TOKENS or number != int(number):
        raise CapacityError(
            f"line {line} of the trace has {name} {_cell(value)}; expected a whole number of tokens, 0 or more",
            field="trace",
        )
    return int(number)


def _float(value: Any) -> float:
    """A cell as a float, infinite beyond its range. Raises TypeError or ValueError for what is no number."""
    try:
        return float(str(value) if isinstance(value, bool) else value)
    except OverflowError:  # a whole number of JSON of hundreds of digits
        return math.inf


def _cell(value: Any) -> str:
    """A cell as a message quotes it: texts in quotes, the rest as JSON spells it, at most 40 characters."""
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return shown_number(value)


def shown_number(value: float) -> str:
    """A number at a length that can be read.

    >>> shown_number(0.5), shown_number(10**400), shown_number(1234567.0)
    ('0.5', 'a number of 401 digits', '1234567.0')
    """
    text = str(value)
    return text if len(text) <= 40 else f"a number of {len(text.lstrip('-'))} digits"


def _priority(value: Any, line: int) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise CapacityError(
            f"line {line} of the trace has priority {_cell(value)}; expected a whole number",
            field="trace",
        ) from None


def _keys(value: Any, line: int) -> tuple[object, ...]:
    if not isinstance(value, list) or not all(isinstance(key, int | str) for key in value):
        raise CapacityError(
            f"line {line} of the trace has hash_ids that are not a list of ids", field="trace"
        )
    return tuple(value)


def check_span(seconds: float) -> None:
    """Raise CapacityError for arrivals over more than 400 days."""
    if seconds > MAX_SPAN_S:
        days = seconds / 86_400
        raise CapacityError(
            f"the trace spans {f'{days:,.0f}' if days < 1e9 else f'{days:.3g}'} days; expected one time base, all relative or "
            "all absolute, within 400 days",
            field="trace",
        )


def _rebased(arrival: list[float], name: str, *, milliseconds: bool) -> tuple[list[float], list[str]]:
    """Seconds from the first arrival when the times are absolute; relative times stay."""
    notes: list[str] = []
    first, last = min(arrival), max(arrival)
    scale = 1.0
    if milliseconds:
        scale = 1e-3
    else:
        for limit, factor, unit in (
            (1e17, 1e-9, "nanoseconds"),
            (1e14, 1e-6, "microseconds"),
            (1e11, 1e-3, "milliseconds"),
        ):
            if last > limit:
                scale = factor
                notes.append(f"{name} was read as {unit} since 1970")
                break
    absolute = first * scale > EPOCH_S
    check_span((last - first) * scale)
    if absolute or first < 0:
        notes.append("arrival times are absolute and were rebased to the first arrival")
        return [(at - first) * scale for at in arrival], notes
    return [at * scale for at in arrival], notes
