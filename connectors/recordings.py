"""Tables of samples (``t_s`` and a column per metric) as snapshots: what a spreadsheet or a log of scrapes
holds.

Columns are metric names, vLLM names without their prefix, or signal names such as ``running``. Left out:
histograms.
"""

from __future__ import annotations

import csv
import math

from prometheus_client.samples import Sample

from capacity.telemetry import TargetSnapshot
from connectors import vocabulary
from connectors.engine_config import Limits
from connectors.errors import NotMetrics
from connectors.reading import read

CSV_START = b"t_s,"


def _name(column: str) -> str | None:
    """The sample name for a column, None where it is no metric that is read."""
    if vocabulary.find(column):
        return column
    if vocabulary.find(f"vllm:{column}"):
        return f"vllm:{column}"
    rows = vocabulary.rows_of("vllm").get(column)
    return rows[0].name if rows and rows[0].kind in ("gauge", "counter") else None


def table_snapshots(body: bytes, *, target: str, limits: Limits | None = None) -> list[TargetSnapshot]:
    """One snapshot per row, in order. A blank or unreadable cell is an absent sample. Raises NotMetrics."""
    try:
        table = list(csv.reader(body.decode("utf-8", errors="replace").splitlines()))
    except csv.Error as error:
        raise NotMetrics(f"the table cannot be read ({error})") from error
    names = [_name(column.strip()) for column in table[0]]
    out = []
    for cells in table[1:]:
        try:
            numbers = [float(cell) if cell.strip() else math.nan for cell in cells]
        except ValueError:
            raise NotMetrics(f"row {cells[:3]} of the table is not made of numbers") from None
        samples = [
            Sample(name, {}, value, None, None)
            for name, value in zip(names[1:], numbers[1:], strict=False)
            if name is not None and not math.isnan(value)
        ]
        when = numbers[0] if numbers else math.nan
        found = read(samples, time_s=when, monotonic_s=when, limits=limits)
        if found.engines and math.isfinite(when):
            out.append(TargetSnapshot(target=target, time_s=when, monotonic_s=when, engines=found.engines))
    if not out:
        raise NotMetrics("the table has no column of a known metric; valid: t_s and metric names")
    return out
