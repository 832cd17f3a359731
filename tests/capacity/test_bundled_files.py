"""Files beside the code reach an installed copy, and tables say plainly where their figures come from."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

from capacity.catalog.table import read_table
from capacity.engine import engine_release, known_releases, parse_version

ROOT = Path(__file__).parents[2]


def test_every_kind_of_file_in_a_package_is_packaged() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    files = [f for p in ("capacity", "connectors", "pages") for f in (ROOT / p).rglob("*.*") if f.is_file()]
    beside = [f for f in files if f.suffix not in (".py", ".pyc")]
    assert {f.suffix for f in beside} >= {".csv", ".json", ".png"}
    assert [f.name for f in beside if not any(fnmatch(f.name, pattern) for pattern in patterns)] == []


def test_releases_to_pick_come_from_the_table_newest_first() -> None:
    releases = known_releases()
    assert releases[0] == engine_release().asked == "0.32.0" and releases[-1] == "0.6.6"
    assert len(set(releases)) == len(releases) >= 20
    assert list(releases) == sorted(releases, key=parse_version, reverse=True)
    rows = {row["release"]: row["known"].split() for row in read_table("engine_releases")}
    assert all(engine_release(one).row == row for row, known in rows.items() for one in known)


def test_accelerator_sources_name_what_was_read() -> None:
    assert not [row["id"] for row in read_table("gpus") if "string search" in row["source"]]
