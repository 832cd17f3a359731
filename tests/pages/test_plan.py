"""The Plan page without a browser: answers, examples, the link, tabs."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from capacity.plan import plan
from capacity.scenario import Scenario
from pages.ui.examples import examples
from pages.ui.fields import FORM, to_scenario, to_texts
from pages.ui.format import count
from pages.ui.inputs import PlanInputs
from pages.ui.link import pack
from tests.pages.plan_page import LLAMA, ROOT, figures, in_link, page, problem, verdict

SHAPES = ROOT / "tests" / "fixtures" / "model_shapes"


def test_first_visit_answers_and_fills_the_link() -> None:
    found = page()
    assert not found.exception
    expected = plan(Scenario.parse(examples()[0].scenario))
    assert figures(found)["Guaranteed"] == count(expected.concurrency.guaranteed)
    assert figures(found)["KV blocks"] == count(expected.pool.num_blocks)  # type: ignore[union-attr]
    assert verdict(found).startswith("**Fits.**")
    assert in_link(found, "engine_version") == "0.32.0"
    assert in_link(found, "model") == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize("index", range(6))
def test_examples_give_the_planners_answer(index: int) -> None:
    example = examples()[index]
    found = page()
    found.selectbox(key="plan_example").select(example.name).run()
    assert not found.exception
    expected = plan(Scenario.parse(example.scenario))
    assert figures(found)["Guaranteed"] == count(expected.concurrency.guaranteed)
    assert figures(found)["KV tokens"] == count(expected.pool.tokens_logged)  # type: ignore[union-attr]
    assert len(found.metric) <= 5


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_widget_texts_round_trip(example: object) -> None:
    scenario = example.scenario  # type: ignore[attr-defined]
    assert Scenario.parse(to_scenario(to_texts(scenario))) == Scenario.parse(scenario)


def test_link_alone_gives_the_same_page() -> None:
    link = {
        "model": "Qwen/Qwen3-32B",
        "gpu": "h200",
        "engine_version": "0.11.0",
        "max_model_len": "16K",
        "enforce_eager": "on",
    }
    found = page(**link)
    raw = {**link, "max_model_len": 16384, "enforce_eager": True}
    expected = plan(Scenario.parse(raw))
    assert figures(found)["Guaranteed"] == count(expected.concurrency.guaranteed)
    assert figures(found)["KV blocks"] == count(expected.pool.num_blocks)  # type: ignore[union-attr]


def test_the_shared_link_holds_the_open_tab() -> None:
    shared = [str(one.value) for one in page(model="Qwen/Qwen3-8B", gpu="h200", tab="Textbook").code]
    assert sum("plan_tab=Textbook" in text and "plan_gpu=h200" in text for text in shared) == 1


def test_a_link_written_by_hand_takes_scenario_keys() -> None:
    link = {"model": "gpt-oss-120b", "gpu": "h100", "max_model_len": "16K", "gpu_memory_utilization": "0.95"}
    opened = AppTest.from_file(str(ROOT / "pages" / "plan.py"), default_timeout=30)
    opened.query_params.update(link)
    found = opened.run()
    assert not found.exception
    expected = plan(Scenario.parse({**link, "max_model_len": 16384, "gpu_memory_utilization": 0.95}))
    assert figures(found)["KV blocks"] == count(expected.pool.num_blocks)  # type: ignore[union-attr]
    assert in_link(found, "gpu_memory_utilization") == "0.95" and "gpu" not in found.query_params


@pytest.mark.parametrize(
    "link",
    [
        {},
        {
            "model": "Qwen/Qwen3-32B",
            "gpu": "h200",
            "max_model_len": "16K",
            "enforce_eager": "on",
            "dtype": "float16",
        },
        {"source": "Form", "gpu": "h100-sxm", "form_num_hidden_layers": "32", "prompt_tokens_cv": "1"},
        {"source": "Config", "gpu": "h100-sxm", "config": pack(LLAMA)},
    ],
)
def test_what_is_known_before_the_controls_is_what_they_hold(
    link: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[PlanInputs] = []
    real = PlanInputs.scenario

    def scenario(inputs: PlanInputs) -> dict[str, object]:
        asked.append(inputs)
        return real(inputs)

    monkeypatch.setattr(PlanInputs, "scenario", scenario)
    found = page(**link)
    assert not found.exception and len(asked) == 1
    assert not found.session_state["plan_settling"]


def test_link_without_release_is_pinned() -> None:
    found = page(model="Qwen/Qwen3-8B", gpu="h100-sxm")
    assert in_link(found, "engine_version") == "0.32.0"
    assert "plan_max_model_len" not in found.query_params


def test_pasted_config_travels_in_the_link() -> None:
    first = page(source="Config", gpu="h100-sxm", engine_version="0.32.0", max_model_len="4096")
    assert not first.error and not first.exception
    first.text_area(key="plan_config_text").set_value(LLAMA).run()
    assert not first.exception
    packed = in_link(first, "config")
    second = page(
        source="Config", gpu="h100-sxm", engine_version="0.32.0", max_model_len="4096", config=packed
    )
    assert figures(second) == figures(first)
    assert second.text_area(key="plan_config_text").value == LLAMA


def test_damaged_config_in_link_is_said() -> None:
    packed = pack(LLAMA)
    assert packed is not None
    found = page(source="Config", gpu="h100-sxm", config=packed[:40])
    assert "the link" in problem(found)
    found.text_area(key="plan_config_text").set_value(LLAMA).run()
    assert not found.error
    assert verdict(found).startswith("**Fits.**")


def test_small_form_plans_a_model() -> None:
    form = {
        "num_hidden_layers": "40",
        "num_attention_heads": "40",
        "num_key_value_heads": "40",
        "hidden_size": "5120",
        "vocab_size": "32000",
        "intermediate_size": "13824",
    }
    found = page(
        source="Form",
        gpu="a100-80-sxm",
        engine_version="0.11.0",
        max_model_len="4096",
        **{f"form_{k}": v for k, v in form.items()},
    )
    assert not found.exception
    catalogue = plan(
        Scenario.parse(
            {
                "model": "meta-llama/Llama-2-13b-hf",
                "gpu": "a100-80-sxm",
                "engine_version": "0.11.0",
                "max_model_len": 4096,
            }
        )
    )
    assert figures(found)["Guaranteed"] == count(catalogue.concurrency.guaranteed)


def test_half_a_form_names_what_is_still_missing() -> None:
    found = page(source="Form", gpu="h100-sxm", form_num_hidden_layers="32")
    assert not found.error and not found.exception
    assert any(
        "Still to fill in: Heads, KV heads, Hidden size, Vocabulary." in one.value for one in found.markdown
    )
    found.text_input(key="plan_form_vocab_size").set_value("many").run()
    assert "Vocabulary is 'many'" in problem(found)


@pytest.mark.parametrize(
    ("source", "said"), [("Config", "Paste a config.json"), ("Form", "Describe the model")]
)
def test_nothing_entered_teaches_and_its_example_is_the_catalogues_model(source: str, said: str) -> None:
    rest = {"gpu": "h100-sxm", "engine_version": "0.32.0", "max_model_len": "8192"}
    found = page(source=source, **rest)
    assert not found.error and not found.exception and not found.metric
    assert any(said in one.value for one in found.markdown)
    found.button(key=f"plan_try_{source.lower()}").click().run()
    assert not found.error and not found.exception
    assert figures(found) == figures(page(model="meta-llama/Llama-3.1-8B-Instruct", **rest))


def test_every_field_of_the_form_and_every_spread_has_help() -> None:
    found = page(source="Form", gpu="h100-sxm")
    asked = [key for key, _ in FORM]
    assert all(found.text_input(key=f"plan_form_{key}").help for key in asked)
    assert all(found.text_input(key=f"plan_{key}_tokens_cv").help for key in ("prompt", "output"))


def test_reset_returns_from_the_form_to_the_catalogue() -> None:
    found = page(source="Form", gpu="h100-sxm")
    found.button(key="plan_reset").click().run()
    assert not found.exception
    assert in_link(found, "source") == "Catalogue"
    assert figures(found) == figures(page())


@pytest.mark.parametrize("name", ["plan", "compare", "simulate", "live"])
def test_the_title_of_a_page_is_its_only_first_heading(name: str) -> None:
    found = AppTest.from_file(str(ROOT / "pages" / f"{name}.py"), default_timeout=60).run()
    assert not found.exception
    assert [one.value for one in found.title] == [name.capitalize()]
    assert not any(line.startswith("# ") for one in found.markdown for line in str(one.value).splitlines())


def test_weights_larger_than_the_card_is_an_answer_with_fixes() -> None:
    found = page(model="meta-llama/Llama-3.1-70B-Instruct", gpu="l4", max_model_len="4096")
    assert not found.exception
    assert verdict(found).startswith("**Does not fit:**")
    assert any("What to change" in str(one.value) for one in found.markdown)


def test_a_fix_can_be_applied() -> None:
    found = page(model="meta-llama/Llama-3.1-8B-Instruct", gpu="rtx4090", engine_version="0.32.0")
    assert "Fits" not in verdict(found)
    found.button(key="plan_fix_0").click().run()
    assert not found.exception
    assert verdict(found).startswith("**Fits.**")


def test_a_fix_that_leaves_a_key_out_empties_its_field() -> None:
    found = page(model="meta-llama/Llama-3.1-8B-Instruct", gpu="h100-sxm", kv_cache_gib="90")
    assert "Fits" not in verdict(found)
    found.button(key="plan_fix_0").click().run()
    assert found.text_input(key="plan_kv_cache_gib").value == ""
    assert not found.exception and not found.error
    assert verdict(found).startswith("**Fits.**")


def test_reset_clears_overrides() -> None:
    found = page(model="Qwen/Qwen3-8B", gpu="l40s", max_num_seqs="64", other_memory_gib="2")
    found.button(key="plan_reset").click().run()
    assert found.text_input(key="plan_max_num_seqs").value == ""
    assert found.text_input(key="plan_other_memory_gib").value == ""
    assert figures(found) == figures(page())


TABS = [
    "Length",
    "Allocation",
    "Engine log and command",
    "Textbook",
    "How this number came about",
    "Assumptions",
    "Weights per GPU",
]


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_draws(tab: str) -> None:
    found = page(
        model="deepseek-ai/DeepSeek-V3", gpu="h200", tensor_parallel_size="8", max_model_len="8192",
        prompt_tokens="2048", output_tokens="512", tab=tab,
    )  # fmt: skip
    assert not found.exception
    names = [one.label for one in found.download_button] if hasattr(found, "download_button") else []
    assert names.count("CSV") >= 2 or tab == "Engine log and command" or not names


def test_engine_tab_shows_log_lines_and_command() -> None:
    found = page(
        model="meta-llama/Llama-3.1-8B-Instruct", gpu="h100-sxm", engine_version="0.32.0", max_model_len="8192",
        tab="Engine log and command",
    )  # fmt: skip
    text = "\n".join(str(one.value) for one in found.code)
    assert "GPU KV cache size" in text
    assert "vllm serve meta-llama/Llama-3.1-8B-Instruct" in text


@pytest.mark.parametrize("shape", sorted(SHAPES.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_configs_plan_when_pasted(shape: Path) -> None:
    found = page(
        source="Config", gpu="b200", tensor_parallel_size="1", engine_version="0.32.0", max_model_len="512"
    )
    found.text_area(key="plan_config_text").set_value(shape.read_text(encoding="utf-8")).run()
    assert not found.exception
    assert figures(found)["KV tokens"] != ""


def test_hub_that_cannot_be_asked_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = page(source="Config", gpu="h100-sxm", hub_id="organisation/name")
    found.button(key="plan_hub_load").click().run()
    assert "HF_HUB_OFFLINE" in problem(found)
    assert found.text_input(key="plan_hub_id").value == "organisation/name"
