"""The first half of the chain: config -> bytes per token and layer -> block -> groups -> bytes per block.

Source: the caches that the plan laid out, a line per kind of layer. Left out: memory and requests (explain).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from capacity.engine import KvRules
from capacity.equations import PLANNER, Equation, bytes_text, element_text, whole
from capacity.kv_cache.layer_cache import LayerCache, kv_heads_per_gpu
from capacity.model import Attention, LatentAttention, Mixer, RecurrentState
from capacity.plan import Plan

SECTION = "KV layout"
KINDS = {
    "full": "full attention",
    "sliding": "sliding window",
    "chunked": "chunked local attention",
    "mla": "MLA latent",
    "indexer": "sparse indexer",
    "state": "recurrent state",
}


def layout_equations(plan: Plan) -> Iterator[Equation]:
    """Every step up to the bytes that one block id takes on the GPU that sets the pool."""
    counts = Counter(mixer for mixer in plan.resolved.spec.mixers())
    for mixer, caches in _caches_of(plan).items():
        if isinstance(mixer, RecurrentState):
            yield _state(plan, mixer, counts[mixer])
        elif isinstance(mixer, LatentAttention):
            yield from _latent(plan, mixer, caches, counts[mixer])
        else:
            yield _attention(plan, mixer, caches, counts[mixer])
    yield from _block_size(plan)
    yield from _pages(plan)
    yield from _groups(plan)
    yield from _bytes_per_block(plan)


def _caches_of(plan: Plan) -> dict[Mixer, tuple[LayerCache, ...]]:
    """The caches of each kind of mixer, as the layout made them (none for layers that share another's)."""
    found: dict[Mixer, tuple[LayerCache, ...]] = {}
    at = 0
    for mixer in plan.resolved.spec.mixers():
        if isinstance(mixer, Attention) and mixer.shares_kv:
            size = 0
        else:
            size = 2 if isinstance(mixer, LatentAttention) and mixer.indexer is not None else 1
        found.setdefault(mixer, plan.layout.layers[at : at + size])
        at += size
    return found


def _element(plan: Plan) -> float:
    r = plan.resolved
    if r.kv_format.element_bytes is None:
        return float(r.model_dtype_bytes)
    return r.kv_format.element_bytes


def _layers(count: int) -> str:
    return f"{count} layer{'' if count == 1 else 's'}"


def _attention(plan: Plan, m: Attention, caches: tuple[LayerCache, ...], count: int) -> Equation:
    tensor = plan.resolved.parallel.tensor
    if not caches:
        return Equation(
            section=SECTION,
            name=f"Bytes per token, layers that read another layer's cache ({_layers(count)})",
            formula="no cache of their own",
            values="-",
            result="0 B",
            source="the model's config",
            value=0,
            unit="B",
        )
    heads = kv_heads_per_gpu(m.num_kv_heads, tensor)
    cache = caches[0]
    window = f", window {whole(m.window)}" if m.window is not None else ""
    planned = "" if cache.kind == m.kind else ", planned as full attention"
    replica = " (each rank keeps a replica)" if tensor > m.num_kv_heads else ""
    per_token = cache.page_bytes / cache.block_size
    scale = plan.resolved.kv_format.scale_bytes
    return Equation(
        section=SECTION,
        name=f"Bytes per token and {KINDS[m.kind]} layer ({_layers(count)}{window}{planned})",
        formula="max(1, KV heads // TP) x (K width + V width) x element bytes"
        + (" + scales of K and V of each head" if scale else ""),
        values=f"max(1, {m.num_kv_heads} // {tensor}) = {heads}{replica}; "
        f"{heads} x ({m.head_dim} + {m.v_head_dim}) x {element_text(_element(plan))}"
        + (f" + {heads} x 2 x {scale}" if scale else ""),
        result=bytes_text(per_token),
        source=PLANNER,
        value=per_token,
        unit="B",
    )


def _latent(plan: Plan, m: LatentAttention, caches: tuple[LayerCache, ...], count: int) -> Iterator[Equation]:
    row = caches[0].page_bytes / caches[0].block_size
    if plan.resolved.kv_format.record_bytes is not None:
        scales = row - m.kv_lora_rank - 2 * m.qk_rope_head_dim
        formula = "latent in 8 bit + scales + 2 x rope width"
        values = f"{m.kv_lora_rank} + {scales:.0f} + 2 x {m.qk_rope_head_dim}"
    elif plan.resolved.release.runner == "v0":
        formula = "(latent + rope width, rounded up to 128) x element bytes"
        values = f"({m.kv_lora_rank} + {m.qk_rope_head_dim} -> {row / _element(plan):.0f})"
        values += f" x {element_text(_element(plan))}"
    else:
        formula = "(latent + rope width) x element bytes, whole on every rank"
        values = f"({m.kv_lora_rank} + {m.qk_rope_head_dim}) x {element_text(_element(plan))}"
    yield Equation(
        section=SECTION,
        name=f"Bytes per token and MLA layer ({_layers(count)})",
        formula=formula,
        values=values,
        result=bytes_text(row),
        source=f"{PLANNER}; not split by tensor parallelism",
        value=row,
        unit="B",
    )
    if m.indexer is not None:
        key = caches[1].page_bytes / caches[1].block_size
        yield Equation(
            section=SECTION,
            name=f"Bytes per token and indexer layer ({_layers(count)})",
            formula="index key in 8 bit + scales",
            values=f"{m.indexer.head_dim} + {key - m.indexer.head_dim:.0f}",
            result=bytes_text(key),
            source=PLANNER,
            value=key,
            unit="B",
        )


def _state(plan: Plan, m: RecurrentState, count: int) -> Equation:
    tensor = plan.resolved.parallel.tensor
    inner = f"{m.num_heads} x {m.head_dim}"
    taps = max(0, m.conv_kernel - 1) + (plan.inputs.num_speculative_tokens if m.conv_kernel > 1 else 0)
    dtype = plan.resolved.scenario.mamba_ssm_cache_dtype or m.state_dtype or "the model dtype"
    dtype = {"kda": "float32", "lightning": "the model dtype", "short_conv": "the model dtype"}.get(
        m.kind, dtype
    )
    return Equation(
        section=SECTION,
        name=f"State of one {m.kind.replace('_', ' ')} layer and request ({_layers(count)})",
        formula="convolution window + recurrent matrix, both divided by TP; the same for every length",
        values=f"{taps} taps over the channels; ({inner}) x {m.state_size} / {tensor}, kept in {dtype}",
        result=f"{bytes_text(plan.layout.state_bytes)} (largest state of the model)",
        source="the state shapes of vLLM's layers",
        value=float(plan.layout.state_bytes),
        unit="B",
    )


def _block_size(plan: Plan) -> Iterator[Equation]:
    asked, got = plan.resolved.block_size, plan.layout.block_size
    if asked == got:
        return
    attention = [c for c in plan.layout.layers if c.kind != "state"]
    per_token = max(c.page_bytes // c.block_size for c in attention)
    align = 128 if plan.resolved.spec.uses_mla else 16
    align = max(align, asked)
    yield Equation(
        section=SECTION,
        name="Block size, raised until one attention block covers one state",
        formula="align x ceil(state bytes / (align x attention bytes per token and layer))",
        values=f"{align} x ceil({whole(plan.layout.state_bytes)} / ({align} x {whole(per_token)}))",
        result=f"{whole(got)} tokens",
        source=PLANNER,
        value=float(got),
        unit="tokens",
    )


def _pages(plan: Plan) -> Iterator[Equation]:
    for cache, count in Counter(plan.layout.layers).items():
        equal = plan.grouping.page_bytes if not plan.grouping.uniform else cache.page_bytes
        scaled = next(
            (
                g.cache.block_size
                for g in plan.grouping.groups
                if any(i < len(plan.layout.layers) and plan.layout.layers[i] == cache for i in g.layers)
            ),
            cache.block_size,
        )
        note = ""
        if equal != cache.page_bytes:
            note = f"; padded to the largest, {bytes_text(equal)}"
            if scaled != cache.block_size:
                note = (
                    f"; block size x {scaled // cache.block_size} to match the largest, {bytes_text(equal)}"
                )
        if cache.kind == "state":
            formula, values = "one padded state", whole(cache.page_bytes)
        else:
            formula = "block size x bytes per token"
            values = f"{whole(cache.block_size)} x {cache.page_bytes / cache.block_size:,g}"
        yield Equation(
            section=SECTION,
            name=f"One block of one {KINDS[cache.kind]} layer ({_layers(count)})",
            formula=formula,
            values=values,
            result=bytes_text(cache.page_bytes) + note,
            source=PLANNER,
            value=float(cache.page_bytes),
            unit="B",
        )


def _groups(plan: Plan) -> Iterator[Equation]:
    grouping = plan.grouping
    total = sum(len(group.layers) for group in grouping.groups)
    if grouping.uniform:
        yield Equation(
            section=SECTION,
            name="Groups that share the pool",
            formula="layers of one rule form one group",
            values=_layers(total),
            result="1 group",
            source=PLANNER,
            value=1,
            unit="groups",
        )
        return
    counts: dict[LayerCache, int] = {}
    for group in grouping.groups:
        counts[group.cache] = counts.get(group.cache, 0) + len(group.layers)
    kinds = ", ".join(f"{n} {KINDS[c.kind]}" for c, n in counts.items())
    size = max(len(group.layers) for group in grouping.groups)
    yield Equation(
        section=SECTION,
        name="Layers per group",
        formula=_size_rule(plan.resolved.release.kv),
        values=f"{kinds}; smallest {min(counts.values())}, largest {max(counts.values())}",
        result=f"up to {size} per group",
        source=f"{PLANNER}; release {plan.resolved.release.row}",
        value=float(size),
        unit="layers",
    )
    each = Counter(group.cache for group in grouping.groups)
    parts = " + ".join(f"ceil({counts[c]} / {size}) = {n}" for c, n in each.items())
    yield Equation(
        section=SECTION,
        name="Groups that share the pool",
        formula="sum over kinds of ceil(layers / layers per group)",
        values=parts,
        result=f"{len(grouping.groups)} groups, {_layers(grouping.padding_layers)} of padding",
        source=PLANNER,
        value=float(len(grouping.groups)),
        unit="groups",
    )


def _size_rule(rules: KvRules) -> str:
    if rules.group_slack is None:
        return "the smallest count of a kind"
    return f"the largest count if it is below {rules.group_slack:g} x the smallest, else the smallest"


def _bytes_per_block(plan: Plan) -> Iterator[Equation]:
    grouping, stages = plan.grouping, plan.inputs.stages
    for index, stage in enumerate(stages):
        size = grouping.bytes_per_block(stage)
        if grouping.uniform:
            whole_model = grouping.whole_pages and len(stage) > 0
            held = grouping.pages if whole_model else grouping.pages[stage.start : stage.stop]
            pages = Counter(held)
            formula = "sum of the blocks of all layers on this GPU"
            if whole_model and len(stages) > 1:
                formula = (
                    "sum of the blocks of all layers of the model, which this release counts on every stage"
                )
            values = " + ".join(f"{n} x {whole(page)}" for page, n in pages.items())
        else:
            formula = "one layer's block x layers of the widest group on this GPU"
            values = f"{whole(grouping.page_bytes)} x {grouping.widest_group(stage)}"
        where = f", stage {index + 1} of {len(stages)}" if len(stages) > 1 else ""
        yield Equation(
            section=SECTION,
            name=f"Bytes per block{where}",
            formula=formula,
            values=values or "no layer with a cache",
            result=bytes_text(size),
            source=PLANNER,
            value=float(size),
            unit="B",
        )
