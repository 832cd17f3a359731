"""The bars of the memory bill: KV GiB of public start-ups, intervals, the eight H100 start-ups."""

from __future__ import annotations

import pytest

from benchmarks.accuracy_memory import (
    Outcome,
    cross_validated,
    h100_outcomes,
    outcomes,
    summary,
)
from benchmarks.fit_memory import fit
from benchmarks.startup_rows import Row, startup_rows
from capacity.engine import parse_version
from capacity.memory.coefficients import coefficient


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return startup_rows()


@pytest.fixture(scope="module")
def held_out(rows: list[Row]) -> list[Outcome]:
    return cross_validated(rows)


def test_enough_start_ups_are_predicted(rows: list[Row]) -> None:
    assert len(rows) >= 70
    assert len({row["group"] for row in rows}) >= 20
    left = [row for row in startup_rows(all_rows=True) if row["left_out"]]
    assert all(len(row["left_out"]) > 10 for row in left)


@pytest.mark.parametrize("weights_stated", [True, False])
def test_kv_memory_error(rows: list[Row], weights_stated: bool) -> None:
    """Rows that the fit has seen: its interval may hold a little more than 90 % of them."""
    found = summary(outcomes(rows, weights_stated=weights_stated))
    assert found.median <= 0.02
    assert found.p90 <= 0.06
    assert 0.70 <= found.coverage <= 0.95


def test_kv_memory_error_with_the_source_left_out(held_out: list[Outcome]) -> None:
    found = summary(held_out)
    assert found.median <= 0.02
    assert found.p90 <= 0.06
    assert 0.70 <= found.coverage <= 0.90


def test_h100_start_ups_with_computed_weights() -> None:
    """Mean error 3 %, worst 5 %; pools under 5 GiB within 0.5 GiB. gpt-oss-120b is checked apart (see there)."""
    errors = []
    for row, predicted in h100_outcomes(weights_stated=False, adds_up=False):
        observed = float(row["kv_cache_gib"])
        if row["model"] == "openai/gpt-oss-120b":
            continue
        if observed < 5:
            assert predicted == pytest.approx(observed, abs=0.5), row["model"]
        else:
            assert predicted == pytest.approx(observed, rel=0.05), row["model"]
        errors.append(abs(predicted / observed - 1))
    assert len(errors) == 7
    assert sum(errors) / len(errors) <= 0.03


def test_h100_start_ups_with_stated_weights_and_the_utilization_that_adds_up() -> None:
    """gpt-oss-120b's own terms (64.38 + 7.38 + 0.13) leave 3.33 GiB at 0.95, not at the 0.9 of its heading."""
    found = h100_outcomes(weights_stated=True, adds_up=True)
    assert len(found) == 8
    for row, predicted in found:
        assert predicted == pytest.approx(float(row["kv_cache_gib"]), abs=0.1), row["model"]


@pytest.mark.parametrize(
    ("name", "release", "when", "tolerance"),
    [
        ("sampler_bytes_per_logit", "0.8.0", "v1", 0.5),
        ("sampler_bytes_per_logit", "0.17.0", "v1", 0.3),
        ("non_torch_gib", "0.11.0", "nvidia tp1", 0.02),
        ("non_torch_gib", "0.18.0", "nvidia tp1", 0.02),
        ("non_torch_gib", "0.17.0", "nvlink tp2", 0.05),
        ("graph_gib_per_layer", "0.6.0", "cc9", 0.006),
    ],
)
def test_the_catalog_agrees_with_the_fit(
    rows: list[Row], name: str, release: str, when: str, tolerance: float
) -> None:
    found = fit(rows)[(name, release, when)]
    assert coefficient(name, parse_version(release), when).value == pytest.approx(found.value, abs=tolerance)
