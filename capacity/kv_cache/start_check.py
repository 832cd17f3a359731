"""The engine's start-up check: does the KV memory of every stage hold one request of max_model_len?

What is counted changed from release to release (catalog/engine_releases.csv: size_check, check_by_stage,
override_in_check, null_block_in_check). Source: vLLM's planner, 0.10.2 to 0.32.0 (tests/golden/kv_mixed.csv).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from capacity.engine import KvRules
from capacity.kv_cache.grouping import Grouping
from capacity.kv_cache.layer_cache import LayerCache
from capacity.kv_cache.requests import PoolInputs, blocks_for_request, blocks_per_request


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A stage that does not hold one request: bytes that the check asks for, and bytes that it has."""

    stage: int
    needed: int
    available: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCheck:
    """The check of one engine. All sizes in bytes of one GPU."""

    grouping: Grouping
    layers: Sequence[LayerCache]
    inputs: PoolInputs
    rules: KvRules

    def needed_bytes(self, stage: int, tokens: int) -> int:
        """Bytes that this release asks of a stage for one request of ``tokens`` tokens."""
        part = None if not self.rules.check_by_stage else self.inputs.stages[stage]
        grouping, inputs, rules = self.grouping, self.inputs, self.rules
        if rules.size_check == "per_layer":
            held = self.layers if part is None else self.layers[part.start : part.stop]
            own = (
                (replace(layer, kind=layer.was) if layer.was else layer, n)
                for layer, n in Counter(held).items()
            )
            return sum(
                n * blocks_for_request(layer, tokens, inputs, rules) * layer.page_bytes for layer, n in own
            )
        if rules.size_check == "blocks" or grouping.uniform:
            return blocks_per_request(grouping, tokens, inputs, rules) * grouping.bytes_per_block(part)
        first = blocks_for_request(grouping.groups[0].cache, tokens, inputs, rules)
        return first * grouping.bytes_per_block(part)

    def available_bytes(self, stage: int) -> int:
        """Bytes that the check has for that: less the block that the engine keeps, where the release counts it."""
        rules, override = self.rules, self.inputs.num_gpu_blocks_override
        block = self.grouping.bytes_per_block(self.inputs.stages[stage])
        have = self.inputs.available_bytes[stage]
        if override is not None and rules.override_in_check:
            have = override * block
        if not rules.check_by_stage:
            have = min(self.inputs.available_bytes)
        return have - (block if rules.null_block_in_check else 0)

    def first_shortfall(self, tokens: int) -> Shortfall | None:
        """The first stage that does not hold a request of ``tokens`` tokens; None when all do."""
        for stage, part in enumerate(self.inputs.stages):
            if len(part) == 0:
                continue
            needed, have = self.needed_bytes(stage, tokens), self.available_bytes(stage)
            if needed > have or have <= 0:
                return Shortfall(stage=stage, needed=needed, available=have)
        return None

    def longest_length(self) -> int:
        """Largest request length in tokens that every stage lets pass; 0 when none does. Binary search."""
        low, high = 0, self.inputs.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.first_shortfall(middle) is None else (low, middle - 1)
        return low
