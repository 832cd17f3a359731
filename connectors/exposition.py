"""Metrics pages into samples, on prometheus_client's parsers: what was complete is kept, what was cut is
said.

Text and OpenMetrics are chosen by content type and judged by the body. Bodies that are no metrics page
(HTML, JSON, empty, binary) raise NotMetrics with what was seen. Left out: what the names mean
(``vocabulary``).
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from connectors.errors import NotMetrics, TooLarge

SIZE_CAP_BYTES = 4_000_000
GZIP_MAGIC = b"\x1f\x8b"
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
SUFFIXES = ("_bucket", "_count", "_sum", "_total", "_created", "_info")
BOUND = re.compile(r'(?<=[{,])le="([^"\\]*)",?')
LABELS = re.compile(r'[^\s{]*\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}')
EXEMPLAR = " # {"
LINE_CAP = 32_000
TITLE = re.compile(r"<title[^>]*>([^<]{1,60})", re.IGNORECASE)

KNOWN_SERIES = 60_000
UNREADABLE = (ValueError, OverflowError)

_known: dict[str, tuple[str, Mapping[str, str]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposition:
    """Samples of the wanted families. ``complete`` is False where the page was cut or lines could not be
    read.
    """

    samples: tuple[Sample, ...]
    names_seen: int
    complete: bool = True
    notes: tuple[str, ...] = ()


def gunzip(body: bytes, *, cap_bytes: int = SIZE_CAP_BYTES) -> bytes:
    """Decompressed body; TooLarge past the cap (a bomb is never unpacked), NotMetrics where the stream is
    broken.
    """
    unpack = zlib.decompressobj(wbits=47)
    try:
        out = unpack.decompress(body, cap_bytes + 1)
    except zlib.error as error:
        raise NotMetrics("the body is compressed but cannot be unpacked; expected a metrics page") from error
    if len(out) > cap_bytes:
        raise TooLarge(f"the page is larger than {cap_bytes / 1e6:.0f} MB after decompression")
    return out


def _decode(body: bytes, content_type: str) -> tuple[str, list[str]]:
    notes: list[str] = []
    if body.startswith(GZIP_MAGIC):
        body = gunzip(body)
        notes.append("the page was gzip-compressed without saying so")
    text = body.decode("utf-8", errors="replace").removeprefix("\ufeff").replace("\r\n", "\n")
    start = text.lstrip()[:400]
    if not start:
        raise NotMetrics("the answer is empty; expected a metrics page")
    if start[0] == "<":
        title = TITLE.search(text[:4000])
        called = f" titled {title.group(1).strip()!r}" if title else ""
        raise NotMetrics(f"the answer is an HTML page{called}; expected a metrics page (a login or a proxy?)")
    if start[0] in "{[" and _is_json(text):
        raise NotMetrics("the answer is a JSON document; expected a metrics page")
    if text[:2000].count("\x00") + text[:2000].count("\ufffd") > len(text[:2000]) // 10:
        raise NotMetrics("the answer is binary; expected a metrics page (compressed in an unknown way?)")
    if content_type and not content_type.startswith(("text/plain", "application/openmetrics-text")):
        notes.append(f"the page is labelled {content_type.split(';')[0][:40]}, read by its content")
    return text, notes


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except RecursionError:
        return True
    except ValueError:
        return text.lstrip().startswith(('{"', "[{", "{\n", "[\n"))
    return True


def family_of(name: str) -> str:
    """The family of a sample name, suffix removed.

    >>> family_of("vllm:e2e_request_latency_seconds_bucket")
    'vllm:e2e_request_latency_seconds'
    """
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name[: -len(suffix)]
    return name


def _key(line: str) -> str:
    end = line.rfind("}")
    return line[: end + 1] if end >= 0 else line.split(" ", 1)[0]


@dataclass(slots=True)
class _Lines:
    """Wanted sample lines by family, in the order of the page, with what was noticed on the way."""

    families: dict[str, list[str]]
    last_family: str
    names: set[str]
    unreadable: int
    repeated: int
    torn: set[str]
    last_line: str = ""
    long: bool = False


def _without_exemplar(line: str) -> str:
    labels = LABELS.match(line)
    at = line.find(EXEMPLAR, labels.end() if labels else 0)
    return line if at < 0 else line[:at]


def _collect(text: str, wanted: Callable[[str], bool]) -> _Lines:
    found = _Lines(families={}, last_family="", names=set(), unreadable=0, repeated=0, torn=set())
    known: dict[str, list[str] | None] = {}
    seen: dict[str, str] = {}
    last = ""
    for line in text.split("\n"):
        if not line or line[0] == "#" or not line.strip():
            continue
        if len(line) > LINE_CAP:
            found.unreadable += 1
            found.long = True
            continue
        match = NAME.match(line)
        if match is None:
            found.unreadable += line.isprintable() is False or line[0] not in '{"'
            continue
        name = match.group()
        if name not in known:
            found.names.add(name)
            known[name] = found.families.setdefault(family_of(name), []) if wanted(name) else None
        last, found.last_line = name, line
        kept = known[name]
        if kept is None:
            continue
        if EXEMPLAR in line:
            line = _without_exemplar(line)
        key = _key(line)
        if key in seen:
            found.repeated += 1
            if seen[key] != line:
                found.torn.add(family_of(name))
            continue
        seen[key] = line
        kept.append(line)
    found.last_family = family_of(last)
    return found


def _learn(series: Iterable[str]) -> None:
    """Names and labels of new series through prometheus_client in one go: the next scrapes repeat the same
    text.

    Buckets of one histogram differ in ``le`` alone, whose value holds no escape: the rest is parsed once
    for all.
    """
    new = [one for one in series if one not in _known]
    if not new:
        return
    if len(_known) + len(new) > KNOWN_SERIES:
        _known.clear()
    bounds = {one: bound for one in new if (bound := BOUND.search(one)) is not None}
    bare = {one: one[: m.start()] + one[m.end() :] if (m := bounds.get(one)) else one for one in new}
    rest = list(dict.fromkeys(bare.values()))
    try:
        found = [s for f in parse_text("".join(f"{one} 0\n" for one in rest)) for s in f.samples]
    except UNREADABLE:
        return
    if len(found) != len(rest):
        return
    parsed = dict(zip(rest, found, strict=True))
    for one in new:
        sample = parsed[bare[one]]
        labels = {**sample.labels, "le": bounds[one].group(1)} if one in bounds else sample.labels
        _known[one] = sample.name, labels


def _sample(line: str) -> Sample:
    """One line of the text format; what is not ``series value`` goes through the whole parser."""
    series = _key(line)
    value = line[len(series) :]
    known = _known.get(series)
    if known is None or "_" in value or len(value.split()) != 1:
        for family in parse_text(line + "\n"):
            for sample in family.samples:
                return _finite_size(sample)
        raise ValueError(f"no sample in {line[:60]!r}")
    return Sample(*known, float(value))  # type: ignore[arg-type]


def _finite_size(sample: Sample) -> Sample:
    """The parsers give whole numbers of any length; one beyond a float's range is infinite."""
    try:
        return sample._replace(value=float(sample.value))
    except OverflowError:
        return sample._replace(value=math.copysign(math.inf, sample.value > 0 or -1))


def _samples(lines: Iterable[str], *, openmetrics: str | None) -> Iterator[Sample]:
    """Samples of some lines of one page; ValueError where the parser refuses one."""
    if openmetrics is None:
        yield from map(_sample, lines)
        return
    for family in parse_openmetrics(openmetrics):
        yield from map(_finite_size, family.samples)


def _read_all(found: _Lines) -> tuple[list[Sample], list[str]]:
    """Every family through the parser in one go; one by one where that fails. Returns samples and broken
    families.
    """
    _learn(_key(line) for lines in found.families.values() for line in lines)
    try:
        return list(_samples((x for f in found.families.values() for x in f), openmetrics=None)), []
    except UNREADABLE:
        pass
    samples: list[Sample] = []
    broken: list[str] = []
    for family, lines in found.families.items():
        try:
            samples += _samples(lines, openmetrics=None)
        except UNREADABLE:
            broken.append(family)
    return samples, broken


def _read_openmetrics(text: str, wanted: Callable[[str], bool]) -> list[Sample] | None:
    """OpenMetrics by its own strict parser, or None where the page is not strictly OpenMetrics."""
    try:
        return [s for s in _samples((), openmetrics=text) if wanted(s.name)]
    except UNREADABLE:
        return None


def parse(body: bytes, *, content_type: str = "", wanted: Callable[[str], bool]) -> Exposition:
    """Samples of the families that ``wanted(sample name)`` accepts.

    A page cut in mid-line loses its last family, a line that cannot be read loses its family; both make
    the result incomplete and are noted. A series that appears twice is read once. Raises NotMetrics,
    TooLarge.
    """
    text, notes = _decode(body, content_type)
    openmetrics = content_type.startswith("application/openmetrics-text")
    found = _collect(text, wanted)
    if not found.names:
        first = next((line for line in text.split("\n") if line.strip()), "")[:60]
        raise NotMetrics(f"the answer holds no samples (starts with {first!r}); expected a metrics page")
    complete = True
    tail = text.rstrip()[-5:]
    cut = not text.endswith("\n") if tail != "# EOF" else False
    if openmetrics and tail != "# EOF":
        cut = True
    if "_bucket" in found.last_line and "+Inf" not in found.last_line:
        cut = True
    if cut:
        complete = False
        found.families.pop(found.last_family, None)
        notes.append(f"partial page: it ends inside {found.last_family}, which is left out")
    broken: list[str] = []
    strict = _read_openmetrics(text, wanted) if openmetrics and not cut and not found.long else None
    if strict is not None:
        samples = strict
    else:
        samples, broken = _read_all(found)
    for family in broken:
        complete = False
        notes.append(f"partial page: {family} cannot be read and is left out")
    if found.unreadable:
        complete = False
        notes.append(f"partial page: {found.unreadable} lines cannot be read")
    if found.repeated:
        differ = f"; values differ in {', '.join(sorted(found.torn))}" if found.torn else ""
        notes.append(f"{found.repeated} series appear twice, read once{differ}")
    return Exposition(
        samples=tuple(samples), names_seen=len(found.names), complete=complete, notes=tuple(notes)
    )
