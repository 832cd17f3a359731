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
    """All groups of a model. ``uniform``: one group whose layers may differ in page size, summed per layer.

    ``whole_pages``: each pipeline stage counts the pages of all layers. ``by_stage``: the stages' own groupings, with
    layer positions of the whole model, where a release makes groups stage by stage; ``groups`` are then the first's.
    """

    groups: tuple[Group, ...]
    page_bytes: int
    uniform: bool
    pages: tuple[int, ...]
    padding_layers: int = 0
    whole_pages: bool = False
    by_stage: tuple[Grouping, ...] = ()

    def of_stage(self, index: int) -> Grouping:
        """The grouping that the worker of stage ``index`` makes."""
        return self.by_stage[index] if self.by_stage else self

    def widest_group(self, stage: range | None = None) -> int:
        """Layers of ``stage`` in the group that has the most of them."""
        groups = (group for part in self.by_stage or (self,) for group in part.groups)
        return max(sum(1 for i in group.layers if stage is None or i in stage) for group in groups)

    def bytes_per_block(self, stage: range | None = None) -> int:
        """Bytes that one block id takes on a worker holding the layers of ``stage`` (None = all layers)."""
        if self.uniform:  # one group of all layers, in order
            whole = stage is None or (self.whole_pages and len(stage) > 0)
            return sum(self.pages if whole or stage is None else self.pages[stage.start : stage.stop])
        return self.page_bytes * self.widest_group(stage)


def group_layers(layers: Sequence[LayerCache], rules: KvRules, *, stages: Sequence[range] = ()) -> Grouping:
    """Deal the layers of a model into groups.

    ``layers``: one entry per cache-owning layer in model order. ``stages``: the layers of each pipeline stage, which
    matter to releases that group stage by stage. Raises CapacityError where that release refuses.
    """
    if not layers:
        raise CapacityError("the model has no layer that keeps a cache", field="model_config")
    if rules.groups_by_stage and len(stages) > 1 and not _one_kind(layers):
        return _group_by_stage(layers, rules, stages)
    try:
        return _group(layers, rules)
    except CapacityError:
        kinds = {layer.kind for layer in layers}
        if not rules.full_fallback or not {"mla", "sliding"} <= kinds or kinds & {"chunked", "state"}:
            raise
    windows_in_full = [replace(layer, kind="full") if layer.kind == "sliding" else layer for layer in layers]
    return _group(windows_in_full, rules)


def _one_kind(layers: Sequence[LayerCache]) -> bool:
    kinds = set(layers)
    return len(kinds) == 1 or (
        all(kind.plans_as_full for kind in kinds) and len({k.shape for k in kinds}) == 1
    )


def _spec_order(cache: LayerCache) -> tuple[str, int, int, int]:
    return cache.kind, cache.block_size, cache.heads, cache.window


def _group_by_stage(layers: Sequence[LayerCache], rules: KvRules, stages: Sequence[range]) -> Grouping:
    """Each stage groups its own layers; the engine then wants the same cache in the same place on every stage."""
    parts: list[Grouping] = []
    for stage in stages:
        if len(stage) == 0:
            continue
        part = _group(layers[stage.start : stage.stop], rules)
        moved = (replace(group, layers=tuple(i + stage.start for i in group.layers)) for group in part.groups)
        parts.append(replace(part, groups=tuple(sorted(moved, key=lambda group: _spec_order(group.cache)))))
    first = [group.cache for group in parts[0].groups]
    for part in parts[1:]:
        others = [group.cache for group in part.groups]
        if any(a != b for a, b in zip(first, others, strict=False)):
            raise CapacityError(
                f"release {rules.release} refuses pipeline stages that hold different kinds of layers; "
                "it needs 0.11 or newer, or another pipeline_layer_split",
                field="pipeline_parallel_size",
            )
    left = iter(parts)
    own = tuple(next(left) if len(stage) else parts[0] for stage in stages)
    return replace(parts[0], by_stage=own, uniform=False)


def _group(layers: Sequence[LayerCache], rules: KvRules) -> Grouping:
    kinds = list(dict.fromkeys(layers))
    windows = {(kind.kind, kind.window) for kind in kinds}
    same_rule = all(kind.plans_as_full for kind in kinds) or (len(windows) == 1 and kinds[0].window > 0)
    indexed = any(kind.kind == "indexer" for kind in kinds)
    if same_rule and indexed and len(kinds) > 1 and rules.mixed_pages != "yes":
        raise CapacityError(
            f"release {rules.release} has no sparse-attention indexer cache; it needs 0.11 or newer",
            field="engine_version",
        )
    pages = {kind.page_bytes for kind in kinds}
    if same_rule and len(pages) > 1 and rules.mixed_pages == "no":
        sizes = " and ".join(str(size) for size in sorted(pages)[:2])
        raise CapacityError(
            f"release {rules.release} refuses layers whose pages differ ({sizes} bytes); it needs 0.11 or newer",
            field="engine_version",
        )
    shapes = {kind.shape for kind in kinds}
    one_group = len(shapes) == 1 or rules.mixed_pages != "no"
    if len(kinds) == 1 or (same_rule and one_group and len({k.block_size for k in kinds}) == 1):
        return Grouping(
            groups=(Group(cache=kinds[0], layers=tuple(range(len(layers)))),),
            page_bytes=kinds[0].page_bytes,
            uniform=True,
            pages=tuple(layer.page_bytes for layer in layers),
            whole_pages=len(shapes) > 1 and not rules.mixed_pages_by_stage,
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
        return replace(kind, page_bytes=page, natural_bytes=kind.page_bytes)
    needed = "0.29 or newer" if not rules.pads_pages else "pages that divide each other (MLA is never padded)"
    raise CapacityError(
        f"release {rules.release} refuses a page of {kind.page_bytes} bytes beside one of {page}; it needs {needed}",
        field="engine_version",
    )
