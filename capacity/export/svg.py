"""Three charts as SVG text: a stacked bar, a log-log curve with a band, and bars beside each other.

Pure functions: values in, text out; every label is escaped. Colours are CSS variables of the page around them.
Left out: what the values mean (report).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 720


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of a bar. ``colour`` is a CSS colour; ``hatched`` marks what is empty."""

    label: str
    value: float
    colour: str
    hatched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A labelled line across a bar (``at`` in its unit) or a labelled point of a curve (``at``, ``height``)."""

    label: str
    at: float
    height: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A curve with its band: (x, y, low, high) with x above 0."""

    points: Sequence[tuple[float, float, float, float]]
    colour: str


def stacked_bar(parts: Sequence[Part], *, marks: Sequence[Mark], unit: str, alt: str) -> str:
    """One horizontal bar of ``parts`` with dashed ``marks`` above it and an axis below, zero-based."""
    full = max(sum(part.value for part in parts), *(mark.at for mark in marks), 1e-9)
    top, high, left, right = 20 * len(marks) + 6, 46, 8, 8
    scale = (WIDTH - left - right) / full
    out, x = [], float(left)
    for part in parts:
        wide = part.value * scale
        fill = "url(#hatch)" if part.hatched else part.colour
        out.append(
            f'<rect x="{x:.1f}" y="{top}" width="{max(0.0, wide):.1f}" height="{high}" fill="{fill}" '
            f'stroke="var(--paper)" stroke-width="1"><title>{escape(part.label)}: {part.value:.2f} {unit}</title></rect>'
        )
        if wide > 7.4 * max(len(part.label), 9):
            ink = "var(--ink)" if part.hatched else _ink(part.colour)
            middle = x + wide / 2
            out.append(_text(middle, top + 20, part.label, anchor="middle", fill=ink))
            out.append(
                _text(middle, top + 36, f"{part.value:.1f} {unit}", anchor="middle", fill=ink, bold=True)
            )
        x += wide
    for row, mark in enumerate(sorted(marks, key=lambda m: -m.at)):
        at, y = left + mark.at * scale, 14 + 20 * row
        anchor = "end" if at > WIDTH / 2 else "start"
        out.append(
            f'<line x1="{at:.1f}" y1="{y + 4}" x2="{at:.1f}" y2="{top + high + 6}" stroke="var(--ink)" '
            'stroke-width="1.5" stroke-dasharray="5 3"/>'
        )
        out.append(_text(at + (-5 if anchor == "end" else 5), y, mark.label, anchor=anchor))
    step = _nice_step(full / 6)
    base = top + high + 6
    for i in range(int(full / step + 1e-9) + 1):
        at = left + i * step * scale
        out.append(f'<line x1="{at:.1f}" y1="{base}" x2="{at:.1f}" y2="{base + 4}" stroke="var(--line)"/>')
        anchor = "start" if i == 0 else "end" if at > WIDTH - 24 else "middle"
        out.append(_text(at, base + 17, f"{i * step:g}", anchor=anchor, fill="var(--quiet)"))
    out.append(_text(WIDTH / 2, base + 34, unit, anchor="middle", fill="var(--quiet)"))
    return _svg(base + 40, alt, out)


def log_log(
    line: Line, *, points: Sequence[Mark], level: Mark | None, x_title: str, y_title: str, alt: str
) -> str:
    """A curve with a band on two log axes, labelled ``points``, and one dashed horizontal ``level``."""
    xs = [p[0] for p in line.points]
    ys = [y for p in line.points for y in p[1:] if y > 0] + [m.height for m in points if m.height > 0]
    if level is not None:
        ys.append(level.at)
    y0, y1 = 10 ** math.floor(math.log10(max(1e-2, min(ys) / 2))), 10 ** math.ceil(math.log10(max(ys) * 1.05))
    x0, x1 = min(xs), max(max(xs), min(xs) * 2)
    left, right, top, bottom, height = 62, 14, 12, 46, 300

    def px(x: float) -> float:
        return left + (WIDTH - left - right) * math.log(x / x0) / math.log(x1 / x0)

    def py(y: float) -> float:
        share = math.log(max(y, y0) / y0) / math.log(y1 / y0)
        return height - bottom - (height - top - bottom) * share

    out = []
    for power in range(round(math.log10(y0)), round(math.log10(y1)) + 1):
        y = py(10.0**power)
        out.append(f'<line x1="{left}" y1="{y:.1f}" x2="{WIDTH - right}" y2="{y:.1f}" stroke="var(--line)"/>')
        out.append(_text(left - 6, y + 4, f"{10.0**power:,g}", anchor="end", fill="var(--quiet)"))
    tick = 2 ** math.ceil(math.log2(x0))
    every = max(1, round(math.log2(x1 / x0) / 8))
    while tick <= x1:
        at = px(tick)
        out.append(
            f'<line x1="{at:.1f}" y1="{height - bottom}" x2="{at:.1f}" y2="{height - bottom + 4}" stroke="var(--quiet)"/>'
        )
        anchor = "end" if at > WIDTH - 40 else "middle"
        out.append(_text(at, height - bottom + 18, _short(tick), anchor=anchor, fill="var(--quiet)"))
        tick *= 2**every
    upper = " ".join(f"{px(p[0]):.1f},{py(p[3]):.1f}" for p in line.points)
    lower = " ".join(f"{px(p[0]):.1f},{py(p[2]):.1f}" for p in reversed(line.points))
    out.append(f'<polygon points="{upper} {lower}" fill="{line.colour}" opacity="0.3"/>')
    path = " ".join(f"{px(p[0]):.1f},{py(p[1]):.1f}" for p in line.points)
    out.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"/>')
    if level is not None:
        y = py(level.at)
        out.append(
            f'<line x1="{left}" y1="{y:.1f}" x2="{WIDTH - right}" y2="{y:.1f}" stroke="var(--ink)" '
            'stroke-width="1.2" stroke-dasharray="5 3"/>'
        )
        out.append(_text(WIDTH - right - 4, y - 6, level.label, anchor="end"))
    for mark in points:
        x, y = px(min(max(mark.at, x0), x1)), py(mark.height)
        right_half = x > WIDTH * 0.55
        low_down = y > height - bottom - 26
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{line.colour}" stroke="var(--paper)"/>')
        label_x = x - 9 if right_half else x + 9
        label_y = y - 10 if low_down or not right_half else y + 20
        out.append(
            _text(label_x, label_y, mark.label, anchor="end" if right_half else "start", bold=True, halo=True)
        )
    out.append(_text((left + WIDTH - right) / 2, height - 6, x_title, anchor="middle", fill="var(--quiet)"))
    middle = (top + height - bottom) / 2
    out.append(
        f'<text x="14" y="{middle:.0f}" transform="rotate(-90 14 {middle:.0f})" text-anchor="middle" '
        f'fill="var(--quiet)">{escape(y_title)}</text>'
    )
    return _svg(height, alt, out)


def bars(rows: Sequence[tuple[str, Sequence[Part], str]], *, unit: str, alt: str) -> str:
    """Rows of (name, parts, what it comes to): horizontal bars on one zero-based scale."""
    full = max(max(sum(part.value for part in parts) for _, parts, _ in rows), 1e-9)
    left, right, each = 128, 150, 40
    scale = (WIDTH - left - right) / full
    out = []
    for index, (name, parts, result) in enumerate(rows):
        y, x = 6 + index * each, float(left)
        out.append(_text(left - 8, y + 19, name, anchor="end"))
        for part in parts:
            wide = part.value * scale
            fill = "url(#hatch)" if part.hatched else part.colour
            out.append(
                f'<rect x="{x:.1f}" y="{y}" width="{max(wide, 0.0):.1f}" height="28" fill="{fill}" '
                f'stroke="var(--paper)"><title>{escape(part.label)}: {part.value:,.0f} {unit}</title></rect>'
            )
            ink = "var(--ink)" if part.hatched else _ink(part.colour)
            label = f"{part.label} {part.value:,.0f}"
            if wide > 7 * len(label):
                out.append(_text(x + wide / 2, y + 19, label, anchor="middle", fill=ink))
            x += wide
        out.append(_text(x + 8, y + 19, result, anchor="start", bold=True))
    bottom = 6 + len(rows) * each
    out.append(_text(left, bottom + 12, f"{unit}, from 0", anchor="start", fill="var(--quiet)"))
    return _svg(bottom + 18, alt, out)


def _svg(height: float, alt: str, parts: Sequence[str]) -> str:
    hatch = (
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" fill="var(--soft)"/>'
        '<line x1="0" y1="0" x2="0" y2="6" stroke="var(--line)" stroke-width="3"/></pattern></defs>'
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(alt, quote=True)}">'
        f"{hatch}{''.join(parts)}</svg>"
    )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str,
    fill: str = "var(--ink)",
    bold: bool = False,
    halo: bool = False,
) -> str:
    weight = ' font-weight="600"' if bold else ""
    edge = ' stroke="var(--paper)" stroke-width="4" paint-order="stroke"' if halo else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{weight}{edge}>{escape(text)}</text>'


def _ink(colour: str) -> str:
    """Black or white, whichever reads better on a hex colour."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#FFFFFF" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#111111"


def _nice_step(rough: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below ``rough``.

    >>> _nice_step(13.2), _nice_step(4.0)
    (20.0, 5.0)
    """
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))


def _short(tokens: float) -> str:
    """A power of two as people say it.

    >>> _short(512), _short(131072), _short(1048576)
    ('512', '128K', '1M')
    """
    if tokens >= 1 << 20:
        return f"{tokens / (1 << 20):g}M"
    return f"{tokens / 1024:g}K" if tokens >= 1024 else f"{tokens:g}"
