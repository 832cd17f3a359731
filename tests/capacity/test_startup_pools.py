"""Blocks, tokens and concurrency of public start-ups from their printed KV memory, within its rounding."""

from __future__ import annotations

import pytest

from benchmarks.startup_pools import check, pool_rows

ROWS = [row for row in pool_rows() if not row["left_out"]]


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_printed_memory_gives_the_printed_pool(row: dict[str, str]) -> None:
    figures = check(row)
    assert figures
    assert [figure for figure in figures if not figure.right] == []


def test_rows_left_out_say_why() -> None:
    reasons = {row["left_out"] for row in pool_rows() if row["left_out"]}
    assert len(ROWS) >= 90 and all(len(reason) > 10 for reason in reasons)
