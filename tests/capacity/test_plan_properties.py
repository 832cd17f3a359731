"""What must hold for any scenario: the pool fits its memory, the figures agree, more never gives less."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from capacity.answer import answer
from capacity.catalog import model_ids, model_spec
from capacity.errors import CapacityError
from capacity.explain import explain
from capacity.export.serve_command import serve_command
from capacity.hardware import gpus
from capacity.parallelism import valid_tensor_parallel_sizes
from capacity.plan import Plan, plan
from capacity.scenario import Length, Scenario, field_table

MODELS = [model_id for model_id in model_ids() if model_spec(model_id).kv_layout_known]
CARDS = [gpu.id for gpu in gpus().values() if gpu.memory_gib is not None]
RELEASES = ["0.8.5", "0.10.2", "0.11.0", "0.12.0", "0.15.1", "0.18.1", "0.20.0", "0.26.0", "0.29.0", "0.32.0"]
RUN = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
# Weights in falling size. Where two formats differ in what they leave in 16 bit they are no such chain.
LIGHTER = {"bf16": "fp8-tensor", "fp8-tensor": "gptq-int4-g128"}


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """A scenario with every default that depends on the card's size pinned, so that one key moves alone."""
    model_id = draw(st.sampled_from(MODELS))
    spec = model_spec(model_id)
    sizes = [n for n in valid_tensor_parallel_sizes(spec, limit=16) if n in (1, 2, 4, 8, 16)]
    longest = spec.max_position_embeddings or 32768
    length = draw(st.integers(min_value=min(64, longest), max_value=longest))
    stages = draw(st.sampled_from([1, 1, 1, 2, 3]))
    return Scenario(
        model=model_id,
        gpu=draw(st.sampled_from(CARDS)),
        engine_version=draw(st.sampled_from(RELEASES)),
        tensor_parallel_size=draw(st.sampled_from(sizes)),
        pipeline_parallel_size=min(stages, spec.num_hidden_layers),
        max_model_len=length,
        max_num_seqs=draw(st.sampled_from([8, 64, 256, 1024])),
        max_num_batched_tokens=draw(st.sampled_from([512, 2048, 8192, 16384])),
        gpu_memory_utilization=draw(st.floats(min_value=0.3, max_value=0.97)),
        enforce_eager=draw(st.booleans()),
        enable_prefix_caching=draw(st.sampled_from([None, True, False])),
        block_size=draw(st.sampled_from([None, 16, 32, 64])),
        prompt_tokens=draw(st.one_of(st.none(), st.just(Length(mean=900.0, cv=1.0)))),
    )


def planned(scenario: Scenario) -> Plan | None:
    """The plan, or None where that release refuses the model."""
    try:
        return plan(scenario)
    except CapacityError:
        return None


@RUN
@given(scenarios())
def test_the_pool_fits_its_memory_and_the_figures_agree(scenario: Scenario) -> None:
    found = planned(scenario)
    assume(found is not None)
    assert found is not None and found.pool is not None
    pool, counted = found.pool, found.concurrency
    for stage, have in zip(found.inputs.stages, found.kv_bytes, strict=True):
        assert pool.num_blocks * found.grouping.bytes_per_block(stage) <= have
    kept = 1 if found.resolved.release.runner == "v1" else 0
    assert pool.max_concurrency == pool.num_blocks / pool.blocks_per_max_request
    assert pool.tokens == int(pool.max_concurrency * found.inputs.max_model_len)
    assert counted.guaranteed == max(0, pool.num_blocks - kept) // pool.blocks_per_max_request
    assert counted.low <= counted.guaranteed <= counted.high
    assert counted.guaranteed <= pool.max_concurrency
    if found.fit == "yes":
        assert pool.starts and counted.low >= 1
    if counted.typical is not None:
        assert counted.typical.safe <= counted.typical.mean


@RUN
@given(scenarios())
def test_every_face_answers_with_finite_figures(scenario: Scenario) -> None:
    found = planned(scenario)
    assume(found is not None)
    assert found is not None
    text = json.dumps(answer(found), allow_nan=False)
    assert json.loads(text)["verdict"]
    assert all(step.result and "nan" not in step.result for step in explain(found))
    assert serve_command(found).startswith("vllm serve ")


def no_fewer(before: Plan | None, after: Plan | None, *, blocks_too: bool = False) -> None:
    assert before is not None and before.pool is not None
    assert after is not None and after.pool is not None
    assert after.concurrency.guaranteed >= before.concurrency.guaranteed
    assert after.pool.max_concurrency >= before.pool.max_concurrency * (1 - 1e-12)
    if blocks_too:
        assert after.pool.num_blocks >= before.pool.num_blocks


@RUN
@given(scenarios(), st.floats(min_value=0.01, max_value=60))
def test_more_memory_never_lowers_concurrency(scenario: Scenario, more_gib: float) -> None:
    """Seats and token budget are pinned: the engine's own defaults for both grow with the card, and with them the
    activation peak, so that a slightly larger card may hold less in the engine itself."""
    before = planned(scenario)
    assume(before is not None and before.resolved.total_bytes is not None)
    assert before is not None and before.resolved.total_bytes is not None
    total = before.resolved.total_bytes / 2**30
    no_fewer(before, planned(replace(scenario, gpu_memory_gib=total + more_gib)), blocks_too=True)
    assert scenario.gpu_memory_utilization is not None
    higher = min(1.0, scenario.gpu_memory_utilization + more_gib / 100)
    no_fewer(before, planned(replace(scenario, gpu_memory_utilization=higher)), blocks_too=True)


@RUN
@given(scenarios())
def test_lighter_weights_never_lower_concurrency(scenario: Scenario) -> None:
    heavy = replace(scenario, weight_format="bf16")
    for heavier, lighter in LIGHTER.items():
        heavy = replace(scenario, weight_format=heavier)
        before = planned(heavy)
        assume(before is not None)
        no_fewer(before, planned(replace(scenario, weight_format=lighter)), blocks_too=True)


@RUN
@given(scenarios())
def test_lower_kv_precision_never_lowers_concurrency(scenario: Scenario) -> None:
    before = planned(replace(scenario, kv_cache_dtype="bfloat16"))
    after = planned(replace(scenario, kv_cache_dtype="fp8"))
    assume(before is not None and after is not None)
    no_fewer(before, after)


@RUN
@given(scenarios(), st.floats(min_value=0.01, max_value=1.0))
def test_shorter_requests_never_lower_concurrency(scenario: Scenario, share: float) -> None:
    before = planned(scenario)
    assume(before is not None)
    assert scenario.max_model_len is not None
    after = planned(replace(scenario, max_model_len=max(1, int(scenario.max_model_len * share))))
    no_fewer(before, after)


@st.composite
def raw_scenarios(draw: st.DrawFn) -> dict[str, object]:
    """Any JSON that the field table allows, one or more keys."""
    raw: dict[str, object] = {"model": draw(st.sampled_from(MODELS))}
    for field in draw(st.lists(st.sampled_from(list(field_table().values())), max_size=8)):
        low, high = field.minimum or 0, min(field.maximum or 1e6, 1e9)
        if field.choices:
            raw[field.key] = draw(st.sampled_from(field.choices))
        elif field.type == "flag":
            raw[field.key] = draw(st.booleans())
        elif field.type == "integer":
            raw[field.key] = draw(st.integers(int(low), int(high)))
        elif field.type == "number":
            raw[field.key] = draw(st.floats(low, high))
        elif field.type in ("numbers", "integers") and field.key != "kv_cache_memory_bytes":
            raw[field.key] = draw(st.lists(st.integers(int(low), int(high)), min_size=1, max_size=4))
        elif field.type == "length":
            mean = st.floats(low, high)
            raw[field.key] = draw(
                st.one_of(
                    mean,
                    st.fixed_dictionaries({"mean": mean, "cv": st.floats(0, 20)}),
                    st.fixed_dictionaries({"values": st.lists(mean, min_size=1, max_size=5)}),
                )
            )
        elif field.type == "text" and field.key != "model":
            raw[field.key] = draw(
                st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(str.strip)
            )
    return raw


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(raw_scenarios())
def test_parse_render_parse_is_the_identity(raw: dict[str, object]) -> None:
    first = Scenario.parse(raw)
    rendered = first.to_json()
    assert Scenario.parse(json.loads(json.dumps(rendered, allow_nan=False))) == first
    assert Scenario.parse(rendered).to_json() == rendered


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(raw_scenarios())
def test_any_allowed_scenario_is_answered_or_refused_in_one_line(raw: dict[str, object]) -> None:
    try:
        found = plan(Scenario.parse(raw))
    except CapacityError as error:
        text = str(error)
        assert text and "\n" not in text and text[:1] == text[:1].lower()
        return
    json.dumps(answer(found), allow_nan=False)


def test_the_chain_of_formats_is_one() -> None:
    spec = model_spec("llama-3.1-8b")
    assert spec.model_id in MODELS and len(MODELS) > 100 and len(CARDS) > 20
    with pytest.raises(CapacityError):
        plan(Scenario(model=spec.model_id, gpu="h100-sxm", tensor_parallel_size=3))


@RUN
@given(scenarios())
def test_blocks_and_reservation_agree_with_the_pool(scenario: Scenario) -> None:
    """Reserving max_model_len holds the guaranteed requests; blocks hold no fewer, and finished requests no more
    than requests still growing do."""
    found = planned(
        replace(scenario, prompt_tokens=Length(mean=300.0, cv=0.5), output_tokens=Length(mean=80.0))
    )
    assume(found is not None)
    assert found is not None and found.fragmentation is not None and found.concurrency.typical is not None
    parts = found.fragmentation
    assert parts.contiguous_requests == found.concurrency.guaranteed
    assert parts.paged_requests >= parts.contiguous_requests
    assert parts.used_tokens <= parts.reserved_tokens and 0 <= parts.waste_share < 1
    assert parts.paged_requests <= found.concurrency.typical.mean


def test_a_request_in_decode_holds_its_window_only() -> None:
    """gpt-oss: 18 full and 18 windowed layers of 128 tokens in two groups. At 8,000 to 8,500 tokens a request holds 516
    blocks of the full group on average and ceil((128 - 1 + 2) / 16) + 1 = 10 of the other, not a full step's 1,025."""
    keys = {
        "model": "gpt-oss-120b",
        "kv_cache_gib": 6,
        "max_model_len": 16384,
        "max_num_batched_tokens": 8192,
    }
    found = plan(Scenario.parse({**keys, "prompt_tokens": 8000, "output_tokens": 500}))
    assert found.concurrency.typical is not None
    assert found.concurrency.typical.blocks_mean == pytest.approx(516 + 10, abs=1)
