"""The printable report: nothing from outside, nothing that runs, every text escaped, charts to scale."""

import io
import json
import re
from contextlib import redirect_stdout
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from capacity.answer import verdict
from capacity.catalog.table import read_table
from capacity.cli import main
from capacity.export.report import report_html
from capacity.export.report_style import MEMORY_COLOURS
from capacity.export.serve_command import serve_command
from capacity.export.svg import Line, Mark, Part, bars, log_log, stacked_bar
from capacity.fixes import fixes
from capacity.hardware import find_gpu, gpus
from capacity.length_curve import length_curve
from capacity.plan import Plan, plan
from capacity.scenario import Scenario
from pages.ui.charts import TERM_COLOURS

VOID = {"meta", "br"}
WORKLOAD = {"prompt_tokens": {"mean": 1500, "cv": 1}, "output_tokens": 300}
CASES = [
    {"model": "llama-3.1-8b", "gpu": "h100", "max_model_len": 8192, **WORKLOAD},
    {"model": "meta-llama/Llama-2-13b-hf", "gpu": "a100-80gb", "engine_version": "0.11.0", **WORKLOAD},
    {"model": "qwen3-next-80b-a3b", "gpu": "h100", "tensor_parallel_size": 4, "pipeline_parallel_size": 2},
    {"model": "llama-3.1-70b", "gpu": "h100"},
    {"model": "gemma-3-27b", "kv_cache_gib": 20},
    {"model": "deepseek-v3", "gpu": "h200", "tensor_parallel_size": 8, "kv_cache_gib": 38},
]


class Reader(HTMLParser):
    """Collects tags and checks that every one that opens is closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


@pytest.fixture(params=CASES, ids=lambda case: case["model"])
def found(request: pytest.FixtureRequest) -> Plan:
    return plan(Scenario.parse(request.param))


def test_well_formed_and_self_contained(found: Plan) -> None:
    page = read(report_html(found, fixes=fixes(found) if found.fit != "yes" else ()))
    tags = {tag for tag, _ in page.seen}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base", "a"}
    for tag, attrs in page.seen:
        assert not {key for key in attrs if key.startswith("on") or key in ("src", "href")}, (tag, attrs)
    assert verdict(found) in page.text
    assert "nan" not in page.text.lower().split() and "inf" not in page.text.lower().split()


def test_says_the_plans_figures(found: Plan) -> None:
    page = read(report_html(found))
    assert found.pool is not None
    for line in found.pool.log_lines:
        assert (line in page.text) == (found.pool.num_blocks > 0)
    assert f"{found.pool.blocks_per_max_request:,}" in page.text
    if found.bill is not None:
        for term in found.bill.terms:
            assert " ".join(term.source.split()) in " ".join(page.text.split())


@pytest.mark.parametrize(
    "hostile",
    ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style><b>", "&lt;i&gt;", "a'b\"c"],
)
def test_hostile_texts_do_not_become_html(hostile: str) -> None:
    with open("tests/fixtures/model_shapes/llama3_8b.json", encoding="utf-8") as lines:
        config = {**json.load(lines), "_name_or_path": hostile}
    found = plan(Scenario.parse({"model_config": config, "gpu": "h100", **WORKLOAD}))
    changes = [
        {
            "action": hostile,
            "changes": {hostile: hostile},
            "guaranteed": 1,
            "max_concurrency": 1.0,
            "fit": "marginal",
        }
    ]
    page = read(report_html(found, fixes=changes, made_at=hostile))
    plain = read(
        report_html(found, fixes=[{**changes[0], "action": "x", "changes": {"x": "x"}}], made_at="x")
    )
    assert [tag for tag, _ in page.seen] == [tag for tag, _ in plain.seen]
    assert hostile in page.text


def test_no_external_address(found: Plan) -> None:
    text = report_html(found)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style and "@import" not in style
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {"#hatch"}
    assert "default-src 'none'" in text


def test_bar_widths_are_to_scale() -> None:
    text = stacked_bar(
        [Part(label="a", value=30, colour="#0072B2"), Part(label="b", value=10, colour="#009E73")],
        marks=[Mark(label="budget", at=36)],
        unit="GiB",
        alt="x",
    )
    widths = [float(w) for w in re.findall(r'<rect x="[\d.]+" y="\d+" width="([\d.]+)"', text)]
    assert widths[0] == pytest.approx(3 * widths[1], rel=0.01)
    mark = float(re.search(r'<line x1="([\d.]+)"', text.split("</defs>")[1])[1])  # type: ignore[index]
    assert mark == pytest.approx(8 + 0.9 * sum(widths), abs=1)


def test_curve_points_fall_on_the_axes() -> None:
    text = log_log(
        Line(points=[(100, 1000, 900, 1100), (10_000, 10, 9, 11)], colour="#0072B2"),
        points=[Mark(label="10 at 10,000", at=10_000, height=10)],
        level=Mark(label="seats", at=256),
        x_title="tokens",
        y_title="requests",
        alt="x",
    )
    assert "10 at 10,000" in text and "10,000" in text and "seats" in text
    corners = [
        tuple(map(float, p.split(","))) for p in re.search(r'polyline points="([^"]+)"', text)[1].split()
    ]  # type: ignore[index]
    assert corners[0][0] < corners[1][0] and corners[0][1] < corners[1][1]


def test_bars_share_one_scale() -> None:
    rows = [
        ("a", (Part(label="u", value=4, colour="#0072B2"),), "1"),
        ("b", (Part(label="u", value=2, colour="#0072B2"),), "2"),
    ]
    widths = [
        float(w) for w in re.findall(r'width="([\d.]+)" height="28"', bars(rows, unit="tokens", alt="x"))
    ]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)


def test_length_curve_falls_and_ends_in_the_guarantee(found: Plan) -> None:
    curve = length_curve(found)
    if found.pool is None or found.pool.num_blocks == 0:
        assert curve == ()
        return
    assert all(a.requests >= b.requests and a.tokens < b.tokens for a, b in pairwise(curve))
    assert all(p.low <= p.requests <= p.high for p in curve)
    assert int(curve[-1].requests) == found.concurrency.guaranteed
    assert curve[-1].tokens == found.inputs.max_model_len


def test_a_plan_without_room_promises_nothing() -> None:
    page = read(report_html(plan(Scenario.parse({"model": "llama-3.1-70b", "gpu": "h100"}))))
    assert "Does not fit" in page.text and "Command as planned (it does not fit)" in page.text
    assert "What the engine" not in page.text and "as given" not in page.text


def test_without_a_pool_the_report_shows_no_false_zeros() -> None:
    raw = {"model": "deepseek-v3", "gpu": "l4", **WORKLOAD}
    found = plan(Scenario.parse(raw))
    page = report_html(found, fixes=fixes(found))
    shown = re.findall(r"<dd>([^<]*)<small>([^<]*)", page)
    assert shown[1:] == [
        ("0", "the engine does not start"),
        ("–", "as the engine logs them"),
        ("–", "no pool"),
        ("–", "no memory is left"),
    ]
    assert "Blocks hold" not in page and "use 4 x B300 SXM" in page


def test_headlines_round_as_the_page_does() -> None:
    raw = {"model": "gpt-oss-120b", "gpu": "h100", "engine_version": "0.32.0", "max_model_len": 16384}
    found = plan(Scenario.parse(raw))
    assert f"KV cache gets {found.kv_bytes[0] / 2**30:.2f} of the 72.8 GiB" in report_html(found)


def test_a_marginal_plan_says_what_it_holds_only_if_it_starts() -> None:
    raw = {
        "model": "gemma-3-27b",
        "gpu": "h100",
        "max_model_len": 131072,
        "engine_version": "0.32.0",
        **WORKLOAD,
    }
    found = plan(Scenario.parse(raw))
    assert found.fit == "marginal" and found.concurrency.guaranteed == 0
    assert "<small>if it starts: full on average" in report_html(found)


@pytest.mark.parametrize("table", ["engine_defaults", "model_aliases", "gpus", "models"])
def test_every_row_states_its_own_source(table: str) -> None:
    for row in read_table(table):
        assert row["source"].strip() and "as above" not in row["source"], row


def test_a_source_is_shown_whole() -> None:
    for card in gpus():
        if find_gpu(card).memory_gib is None:
            continue
        made = plan(Scenario.parse({"model": "qwen3-0.6b", "gpu": card, "max_model_len": 512}))
        memory = next(a for a in made.assumptions if a.key == "gpu_memory_gib")
        assert memory.source.endswith(find_gpu(card).source)
        assert not any("kv_reference" in a.source or "as above" in a.source for a in made.assumptions)


def test_names_the_workload_the_date_and_the_link(found: Plan) -> None:
    address = "http://localhost:8501/?plan_gpu=h100-sxm&plan_tab=Speed"
    page = read(report_html(found, made_at="2026-01-02 03:04 UTC", page_url=address))
    assert "Made 2026-01-02 03:04 UTC" in page.text and address in page.text
    asked = found.resolved.scenario
    if asked.prompt_tokens is None:
        assert "no prompt or output lengths given" in page.text
    else:
        assert "prompt 1,500 tokens (spread 1), output 300 tokens (all alike), no shared prefix" in page.text
    silent = read(report_html(found)).text
    assert "Made 2" not in silent and "http://localhost" not in silent


def test_a_shared_prefix_and_observed_lengths_are_named() -> None:
    raw = {
        "model": "qwen3-0.6b",
        "gpu": "l4",
        "shared_prefix_tokens": 1200,
        "prompt_tokens": {"values": [2000, 4000]},
    }
    text = read(report_html(plan(Scenario.parse(raw)))).text
    assert (
        "prompt 3,000 tokens on average over 2 observed lengths, output not given, shared prefix 1,200 tokens"
        in text
    )


def test_the_report_alone_makes_the_plan_again(found: Plan, tmp_path: Path) -> None:
    text = report_html(found)
    scenario = unescape(re.search(r"<pre id='scenario'>(.*?)</pre>", text, re.S)[1])  # type: ignore[index]
    assert Scenario.parse(json.loads(scenario)) == found.resolved.scenario
    assert serve_command(found) in read(text).text
    (tmp_path / "scenario.json").write_text(scenario, encoding="utf-8")
    command = re.search(r"python -m capacity (plan --scenario scenario\.json)", text)[1].split()  # type: ignore[index]
    command[-1] = str(tmp_path / command[-1])
    out = io.StringIO()
    with redirect_stdout(out):
        assert main([*command, "--json"]) in (0, 1)
    assert json.loads(out.getvalue())["verdict"] == verdict(found)


def test_the_bill_has_the_pages_colours() -> None:
    assert {name: TERM_COLOURS[name] for name in MEMORY_COLOURS} == MEMORY_COLOURS
    bill = report_html(plan(Scenario.parse(CASES[0])))
    assert "background:#AA4499'></i>CUDA graphs" in bill and "background:#B8A24A'></i>Non-torch" in bill
