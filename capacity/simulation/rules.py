"""Which scheduler goes by which name."""

from __future__ import annotations

from collections.abc import Callable

from capacity.simulation.replica import Rules
from capacity.simulation.rules_sglang import Sglang
from capacity.simulation.rules_static import StaticBatch
from capacity.simulation.rules_vllm_v0 import VllmV0
from capacity.simulation.rules_vllm_v1 import VllmV1
from capacity.simulation.settings import EngineSettings

_RULES: dict[str, Callable[[EngineSettings], Rules]] = {
    "vllm-v1": VllmV1,
    "vllm-v0": VllmV0,
    "sglang": Sglang,
    "static": StaticBatch,
    "request-level": StaticBatch,
}


def make_rules(settings: EngineSettings) -> Rules:
    """The scheduler that ``settings.scheduler.rules`` names, fresh for one engine."""
    return _RULES[settings.scheduler.rules](settings)
