"""How a plan's numbers came about: every formula with the values put in, from the config to the concurrency.

Source: the plan's own records; each line repeats what the planner computed. Left out: the textbook's way
(textbook_steps).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from capacity.equations import PLANNER, Equation, whole
from capacity.explain_layout import KINDS, layout_equations
from capacity.explain_memory import memory_equations, taken_from
from capacity.kv_cache.layer_cache import LayerCache
from capacity.kv_cache.pool import Pool, blocks_for_request
from capacity.plan import Plan


def explain(plan: Plan) -> tuple[Equation, ...]:
    """All steps in the order in which the engine takes them.

    >>> from capacity.plan import plan
    >>> from capacity.scenario import Scenario
    >>> found = explain(plan(Scenario.parse({"model": "meta-llama/Llama-2-13b-hf", "kv_cache_gib": 25})))
    >>> found[0].values, found[0].result
    ('max(1, 40 // 1) = 40; 40 x (128 + 128) x 2', '20,480 B')
    """
    return (
        *layout_equations(plan),
        *memory_equations(plan),
        *_pool(plan),
        *_requests(plan),
    )


def _pool(plan: Plan) -> Iterator[Equation]:
    pool, section = plan.pool, "Blocks"
    if pool is None:
        return
    override = plan.inputs.num_gpu_blocks_override
    if override is not None:
        formula, values = "num_gpu_blocks_override", whole(override)
    else:
        sizes = [plan.grouping.bytes_per_block(stage) for stage in plan.inputs.stages]
        formula = "KV cache memory // bytes per block"
        values = "; ".join(
            f"{whole(max(0, have))} // {whole(size)} = {whole(max(0, have) // size)}"
            for have, size in zip(plan.kv_bytes, sizes, strict=True)
            if size
        )
        if len(sizes) > 1:
            formula += ", the smallest over the pipeline stages"
    yield Equation(
        section=section,
        name="Blocks in the pool",
        formula=formula,
        values=values,
        result=f"{whole(pool.num_blocks)} blocks",
        source=PLANNER,
        value=float(pool.num_blocks),
        unit="blocks",
    )
    inputs, rules = plan.inputs, plan.resolved.release.kv
    each = Counter(group.cache for group in plan.grouping.groups)
    for cache, count in each.items():
        ids = blocks_for_request(cache, inputs.max_model_len, inputs, rules)
        formula, values = _request_rule(plan, cache)
        groups = f"{count} group{'' if count == 1 else 's'}"
        yield Equation(
            section=section,
            name=f"Blocks per full-length request, {KINDS[cache.kind]} ({groups})",
            formula=formula,
            values=values,
            result=f"{whole(ids)} blocks a group",
            source=PLANNER,
            value=float(ids),
            unit="blocks",
        )
    parts = " + ".join(
        f"{count} x {whole(blocks_for_request(cache, inputs.max_model_len, inputs, rules))}"
        for cache, count in each.items()
    )
    yield Equation(
        section=section,
        name="Blocks per full-length request",
        formula="sum over all groups: they draw from one pool",
        values=parts,
        result=f"{whole(pool.blocks_per_max_request)} blocks",
        source=PLANNER,
        value=float(pool.blocks_per_max_request),
        unit="blocks",
    )


def _request_rule(plan: Plan, cache: LayerCache) -> tuple[str, str]:
    i, length = plan.inputs, whole(plan.inputs.max_model_len)
    block = whole(cache.block_size)
    flying = f"{whole(i.max_num_batched_tokens)} x {i.concurrent_steps}"
    if cache.kind == "sliding":
        return (
            "ceil(min(window - 1 + max_num_batched_tokens x steps in flight, max_model_len) / block) + 1",
            f"ceil(min({whole(cache.window)} - 1 + {flying}, {length}) / {block}) + 1",
        )
    if cache.kind == "chunked":
        return (
            "ceil(min(chunk + max_num_batched_tokens x steps in flight, max_model_len) / block)",
            f"ceil(min({whole(cache.window)} + {flying}, {length}) / {block})",
        )
    if cache.kind == "state":
        rules = plan.resolved.release.kv
        if i.align_state and rules.state_ids == "length":
            return "ceil(max_model_len / block), states cached per block", f"ceil({length} / {block})"
        base = 2 if i.align_state and rules.state_ids == "two" else 1
        why = "a second one for prefix caching" if base == 2 else "one state whatever the length"
        return f"{why}, and one per speculative token", f"{base} + {i.num_speculative_tokens}"
    dcp = i.decode_context_parallel_size
    if dcp > 1:
        return (
            "ceil(ceil(max_model_len / decode_context_parallel_size) / block)",
            f"ceil(ceil({length} / {dcp}) / {block})",
        )
    return "ceil(max_model_len / block)", f"ceil({length} / {block})"


def _requests(plan: Plan) -> Iterator[Equation]:
    pool, counted, section = plan.pool, plan.concurrency, "Requests"
    if pool is None:
        return
    need, length = pool.blocks_per_max_request, plan.inputs.max_model_len
    yield Equation(
        section=section,
        name="Maximum concurrency as the engine logs it",
        formula="blocks / blocks per full-length request",
        values=f"{whole(pool.num_blocks)} / {whole(need)}",
        result=f"{pool.max_concurrency:,.2f}x",
        source=PLANNER,
        value=pool.max_concurrency,
        unit="requests",
    )
    yield _tokens(plan, pool, length)
    kept = 1 if plan.resolved.release.runner == "v1" else 0
    yield Equation(
        section=section,
        name="Guaranteed: whole full-length requests",
        formula="(blocks - the one the engine keeps) // blocks per full-length request"
        if kept
        else "blocks // blocks per full-length request",
        values=f"({whole(pool.num_blocks)} - {kept}) // {whole(need)}"
        if kept
        else f"{whole(pool.num_blocks)} // {whole(need)}",
        result=f"{whole(counted.guaranteed)} requests ({whole(counted.low)}-{whole(counted.high)})",
        source="block id 0 is never handed out" if kept else PLANNER,
        value=float(counted.guaranteed),
        unit="requests",
    )
    usual = counted.typical
    if usual is not None:
        yield Equation(
            section=section,
            name="Blocks of one request at a random moment of its decode, mean",
            formula="mean over the lengths and over evenly spread progress, weighted by output length",
            values=f"{usual.tokens_mean:,.0f} tokens held on average",
            result=f"{usual.blocks_mean:,.1f} blocks",
            source="renewal argument: a request is seen in proportion to its time in decode",
            value=usual.blocks_mean,
            unit="blocks",
        )
        yield Equation(
            section=section,
            name="Typical: where the pool is full on average",
            formula="blocks that requests can get, less the shared prefix once, // mean blocks",
            values=f"{whole(max(0, pool.num_blocks - kept))} blocks, {usual.blocks_mean:,.1f} a request",
            result=f"{whole(usual.mean)} requests; {whole(usual.safe)} hold at {usual.percentile:g} %",
            source="the workload's lengths; spread by the normal approximation",
            value=float(usual.mean),
            unit="requests",
        )
    yield Equation(
        section=section,
        name="Seats",
        formula="max_num_seqs",
        values=whole(counted.seats),
        result=f"{whole(counted.seats)} requests at once; "
        + ("KV cache binds first" if counted.binding == "kv_cache" else "the seats bind first"),
        source=taken_from(plan, "max_num_seqs"),
        value=float(counted.seats),
        unit="requests",
    )


def _tokens(plan: Plan, pool: Pool, length: int) -> Equation:
    rules, groups = plan.resolved.release.kv, plan.grouping.groups
    if rules.tokens_logged == "concurrency":
        formula = "int(maximum concurrency x max_model_len)"
        values = f"int({pool.max_concurrency:.6g} x {whole(length)})"
    else:
        smallest = min(group.cache.block_size for group in groups)
        block = plan.inputs.block_size if rules.tokens_logged == "config_block" else smallest
        dcp = plan.inputs.decode_context_parallel_size
        formula = "blocks // groups x block size" + (" x decode context parallel" if dcp > 1 else "")
        values = f"{whole(pool.num_blocks)} // {len(groups)} x {whole(block)}"
        values += f" x {dcp}" if dcp > 1 else ""
    return Equation(
        section="Requests",
        name="KV cache size as the engine logs it",
        formula=formula,
        values=values,
        result=f"{whole(pool.tokens_logged)} tokens",
        source=f"{PLANNER}; release {plan.resolved.release.row}",
        value=float(pool.tokens_logged),
        unit="tokens",
    )
