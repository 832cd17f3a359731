"""The read-me says what is bundled, and every command that it shows parses."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from capacity.catalog import model_ids
from capacity.catalog.table import read_table
from capacity.cli import VERBS
from capacity.engine import known_releases
from capacity.hardware import gpus

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_counts_are_those_of_the_tables() -> None:
    formats = len(list(read_table("weight_formats"))) + len(list(read_table("kv_formats")))
    said = f"{len(model_ids())} models, {len(gpus())} accelerators, {formats} weight and KV formats"
    assert said in README
    newest, oldest = known_releases()[0], known_releases()[-1]
    assert f"vLLM {oldest.rpartition('.')[0]} to {newest.rpartition('.')[0]} are bundled" in README


def test_every_command_names_a_verb() -> None:
    verbs = re.findall(r"python -m capacity (\w+)", README)
    assert len(verbs) >= 8 and set(verbs) <= set(VERBS)
    for line in re.findall(r"python -m connectors (.+?)(?:#|>|$)", README, re.MULTILINE):
        assert shlex.split(line)[0] in ("demo", "scrape", "rules", "watch")


def test_pictures_and_pages_it_links_exist() -> None:
    root = Path(__file__).parents[1]
    named = [*re.findall(r"!\[[^]]*\]\(([^)]+)\)", README), *re.findall(r"`(docs/[\w./]+)`", README)]
    assert named and all((root / name).exists() for name in named)
