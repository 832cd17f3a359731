"""What a pool's verdict says about several engines: whose evidence it is, and reasons that differ."""

from __future__ import annotations

from capacity.diagnosis import down_verdict
from capacity.pool_diagnosis import diagnose_pool
from capacity.telemetry import Signals, Value
from capacity.verdicts import Confidence, Evidence, Severity, verdict

POOL = Signals(
    values={name: Value(value=0.0) for name in ("kv_usage", "running", "waiting", "rejections_per_s")},
    seconds=60.0,
)
HEALTHY = verdict("healthy", Severity.OK, Confidence.HIGH, "healthy: served", Evidence(text="running 3"))


def test_evidence_of_one_engine_bears_its_name() -> None:
    stalled = verdict(
        "stalled", Severity.CRITICAL, Confidence.HIGH, "stalled: no token", Evidence(text="running 9")
    )
    found = diagnose_pool({"a": HEALTHY, "b": stalled}, POOL)
    assert [e.text for e in found.evidence] == ["1 of 2 engines (b): stalled: no token", "b: running 9"]


def test_targets_that_are_down_for_different_reasons_do_not_share_one() -> None:
    found = diagnose_pool({"a": HEALTHY}, POOL, down={"b": "status 500", "c": "connection refused"})
    assert found.summary == "down: no metrics, for different reasons: 2 of 3 engines (b, c)"
    assert {"b: status 500", "c: connection refused"} <= {e.text for e in found.evidence}


def test_targets_that_are_down_for_one_reason_say_it() -> None:
    found = diagnose_pool({"a": HEALTHY}, POOL, down={"b": "status 500", "c": "status 500"})
    assert found.summary == f"{down_verdict('status 500').summary}: 2 of 3 engines (b, c)"
