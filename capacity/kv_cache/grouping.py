"""Layers of several kinds -> groups that share one block pool, as the engine deals them out.

A block id belongs to one group at a time and carries that group's layers, so all pages must be equal and the
widest group sets the bytes per block. Source: vLLM's planner, release by release (tests/golden/kv_reference.csv).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from capacity.engine import KvRules
from capacity.errors import CapacityError
from capacity.kv_cache.layer_cache import LayerCache
from capacity.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers that share block ids: positions in the model's layer order, and the cache they keep."""

    cache: LayerCache
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """All groups of a model. ``uniform``: one group whose layers may differ in page size, summed per layer."""

    groups: tuple[Group, ...]
    page_bytes: int
    uniform: bool
    pages: tuple[int, ...]
    padding_layers: int = 0

    def bytes_per_block(self, stage: range | None = None) -> int:
        """Bytes that one block id takes on a worker holding the layers of ``stage`` (None = all layers)."""
        if self.uniform:  # one group of all layers, in order
            return sum(self.pages if stage is None else self.pages[stage.start : stage.stop])
        if stage is None or len(stage) == sum(len(group.layers) for group in self.groups):
            return self.page_bytes * max(len(group.layers) for group in self.groups)
        widest = max(sum(1 for i in group.layers if stage is None or i in stage) for group in self.groups)
        return self.page_bytes * widest


def group_layers(layers: Sequence[LayerCache], rules: KvRules) -> Grouping:
    """Deal the layers of a model into groups.

    ``layers``: one entry per cache-owning layer in model order. Raises CapacityError where that release refuses.
    """
    if not layers:
        raise CapacityError("the model has no layer that keeps a cache", field="model_config")
    kinds = list(dict.fromkeys(layers))
    windows = {(kind.kind, kind.window) for kind in kinds}
    same_rule = all(kind.plans_as_full for kind in kinds) or (len(windows) == 1 and kinds[0].window > 0)
    if same_rule and len(kinds) > 1 and any(k.kind == "indexer" for k in kinds) and not rules.indexer_cache:
        raise CapacityError(
            f"release {rules.release} has no sparse-attention indexer cache; it needs 0.11 or newer",
            field="engine_version",
        )
    if len(kinds) == 1 or (same_rule and len({k.block_size for k in kinds}) == 1):
        return Grouping(
            groups=(Group(cache=kinds[0], layers=tuple(range(len(layers)))),),
            page_bytes=kinds[0].page_bytes,
            uniform=True,
            pages=tuple(layer.page_bytes for layer in layers),
        )
    page = max(kind.page_bytes for kind in kinds)
    equal = {kind: _equal_page(kind, page, rules) for kind in kinds}
    by_kind: dict[LayerCache, list[int]] = {}
    for i, layer in enumerate(layers):
        by_kind.setdefault(equal[layer], []).append(i)
    size = group_size([len(members) for members in by_kind.values()], rules)
    in_runs = rules.dealing == "in_runs"
    order = sorted(by_kind, key=lambda cache: in_runs and not cache.plans_as_full)
    groups: list[Group] = []
    for cache in order:
        members = by_kind[cache]
        count = ceil_div(len(members), size)
        dealt = (members[j * size : (j + 1) * size] if in_runs else members[j::count] for j in range(count))
        groups.extend(Group(cache=cache, layers=tuple(part)) for part in dealt)
    widest = max(len(group.layers) for group in groups)
    return Grouping(
        groups=tuple(groups),
        page_bytes=page,
        uniform=False,
        pages=(),
        padding_layers=widest * len(groups) - len(layers),
    )


def group_size(counts: Sequence[int], rules: KvRules) -> int:
    """Layers per group from the number of layers of each kind.

    The smallest count, unless the largest is within the release's slack of it: then the largest.
    """
    low, high = min(counts), max(counts)
    return high if rules.group_slack is not None and high < rules.group_slack * low else low


def _equal_page(kind: LayerCache, page: int, rules: KvRules) -> LayerCache:
    """The same cache with its page made as large as the model's largest page."""
    if kind.page_bytes == page:
        return kind
    if kind.kind == "state":
        return replace(kind, page_bytes=page)
    if not rules.unequal_pages:
        raise CapacityError(
            f"release {rules.release} refuses layers whose pages differ ({kind.page_bytes} and {page} bytes); "
            "it needs 0.12 or newer",
            field="engine_version",
        )
    if page % kind.page_bytes == 0:
        return replace(kind, page_bytes=page, block_size=kind.block_size * (page // kind.page_bytes))
    if rules.pads_pages and kind.kind != "mla":
        return replace(kind, page_bytes=page)
    needed = "0.29 or newer" if not rules.pads_pages else "pages that divide each other (MLA is never padded)"
    raise CapacityError(
        f"release {rules.release} refuses a page of {kind.page_bytes} bytes beside one of {page}; it needs {needed}",
        field="engine_version",
    )
