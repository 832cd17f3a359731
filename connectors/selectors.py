"""Label matchers as people type them, checked as a Prometheus server would and written in one way.

All three quotes of PromQL are read: ``"..."`` and ``'...'`` with escapes, and raw backticks. Left out: whole
expressions, metric names (they are chosen by the vocabulary).
"""

from __future__ import annotations

import re

from connectors.errors import BadTarget

WHOLE = re.compile(r"^\{(.*)\}$", re.DOTALL)
MATCHER = re.compile(
    r"""\s*(?P<label>[a-zA-Z_][a-zA-Z0-9_]*)\s*(?P<operator>=~|!~|!=|=)\s*
    (?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)\s*(?:,|$)""",
    re.DOTALL | re.VERBOSE,
)
ESCAPE = re.compile(
    r"""\\(?:(?P<known>[abfnrtv\\]|[0-3][0-7]{2}|x[0-9a-fA-F]{2}|(?:u|U0000)(?![dD][89a-fA-F])[0-9a-fA-F]{4}
    |U000[1-9a-fA-F][0-9a-fA-F]{4}|U0010[0-9a-fA-F]{4})|(?P<other>.?))|(?P<bare>")""",
    re.DOTALL | re.VERBOSE,
)
# What RE2 refuses although Python knows it, and what it knows although Python does not.
NOT_RE2 = re.compile(r"\(\?(?:[=!>(]|<[=!]|P=)|\\[1-9]|[+*?}]\+")
ONLY_RE2 = re.compile(
    r"\\(?:[pP](?:\{\^?\w+\}|\w)|[zC]|Q.*?(?:\\E|$))|\(\?[imsU-]+\)|(?<=\[)\[:\^?\w+:\]", re.DOTALL
)


def matchers(selector: str | None) -> str:
    """A selector's matchers without braces, values in double quotes; BadTarget where it is none.

    >>> matchers('{job="vllm", pod=~"a|b"}')
    'job="vllm",pod=~"a|b"'
    >>> matchers("{job='vllm', pod=~`a[.]b`}")
    'job="vllm",pod=~"a[.]b"'
    """
    if selector is None or not selector.strip():
        return ""
    whole = WHOLE.match(selector.strip())
    inner = (whole.group(1) if whole else selector).strip()
    parts: list[str] = []
    at = 0
    while at < len(inner):
        found = MATCHER.match(inner, at)
        if found is None:
            raise _refused(selector)
        try:
            value = _double_quoted(found["value"])
            _check(found["label"], found["operator"], value)
        except ValueError as error:
            raise _refused(selector, str(error)) from error
        parts.append(f"{found['label']}{found['operator']}{value}")
        at = found.end()
    return ",".join(parts)


def _refused(selector: str, why: str = "") -> BadTarget:
    said = f" ({why})" if why else ""
    return BadTarget(f"selector {selector[:60]!r} is not valid{said}; valid: '{{job=\"vllm\"}}'")


def _double_quoted(text: str) -> str:
    """A quoted value in double quotes; ValueError for what is no escape inside it."""
    quote, inside = text[0], text[1:-1]
    if quote == "`":
        return '"' + inside.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if "\n" in inside:
        raise ValueError("the value spans lines")

    def one(found: re.Match[str]) -> str:
        if found["known"] is not None:
            return found[0]
        if found["bare"]:
            return '\\"'
        if found["other"] == quote:
            return '\\"' if quote == '"' else "'"
        raise ValueError(f"{found[0]!r} is no escape in a quoted value; a backslash is written twice")

    return f'"{ESCAPE.sub(one, inside)}"'


def _check(label: str, operator: str, value: str) -> None:
    """ValueError with what a server would refuse in one matcher."""
    if label == "__name__":
        raise ValueError("the metric names are chosen already")
    if operator not in ("=~", "!~"):
        return
    pattern = value[1:-1].replace("\\\\", "\\").replace('\\"', '"')
    if NOT_RE2.search(re.sub(r"\\[^1-9]", "", pattern)):
        raise ValueError(f"the pattern of {label} uses what RE2 does not know")
    try:
        re.compile(ONLY_RE2.sub("x", pattern))
    except (re.error, OverflowError) as error:
        raise ValueError(f"the pattern of {label} cannot be read: {error}") from error
