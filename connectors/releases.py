"""Which engine release a page comes from, told by the names it shows: no engine exports its version.

The lowest release is the latest ``first`` of the names present; the highest comes from names that are gone
and, on a page that looks whole, from names that are always exported but absent. Contradictions give no
release.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from connectors import vocabulary
from connectors.vocabulary import Release, release_text

WHOLE_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRange:
    """``lowest`` inclusive, ``below`` exclusive, ``last`` inclusive; None where not known."""

    lowest: Release | None = None
    below: Release | None = None
    last: Release | None = None

    @property
    def text(self) -> str | None:
        """The range in words, None where nothing is known."""
        if self.lowest is None:
            return None
        start = release_text(self.lowest)
        if self.below is not None and (self.last is None or self.below <= self.last):
            return f"{start} to before {release_text(self.below)}"
        if self.last is not None:
            return f"{start} to {release_text(self.last).removesuffix('.99')}"
        return f"{start} or later"


def infer_release(kind: str, present: Collection[int], *, complete: bool) -> ReleaseRange:
    """Range of releases that show these rows (by their order in the table)."""
    table = [row for rows in vocabulary.rows_of(kind).values() for row in rows]
    shown = [row for row in table if row.order in present and row.first is not None]
    if not shown:
        return ReleaseRange()
    lowest = max(row.first for row in shown if row.first is not None)
    last = min((row.last for row in shown if row.last is not None), default=None)
    if last is not None and last < lowest:
        return ReleaseRange()
    due = [row for row in table if not row.optional and row.first is not None and row.first <= lowest]
    share = sum(row.order in present for row in due) / len(due) if due else 0.0
    below = None
    if complete and share >= WHOLE_SHARE:
        later = [
            row.first
            for row in table
            if not row.optional and row.order not in present and row.first is not None and row.first > lowest
        ]
        below = min(later, default=None)
    return ReleaseRange(lowest=lowest, below=below, last=last)
