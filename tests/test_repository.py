"""The repository itself: readable anywhere, no machine's paths, small files, a change log for users."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = {".py", ".md", ".toml", ".txt", ".csv", ".json", ".sh", ".yml", ".yaml", ".cfg", ""}
MOST_LINES = 400
# Written in two parts so that this file does not hold what it forbids.
REGISTRY_HOSTS = ["pypi" + ".org", "python" + "hosted.org", "art" + "ifactory", "/sim" + "ple/"]
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/")


def tracked() -> list[Path]:
    run = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    names = run.stdout.split("\0") if run.returncode == 0 else []
    found = [ROOT / name for name in names if name]
    if not found:  # an unpacked archive without its history
        found = [
            p for top in ("capacity", "connectors", "pages", "tests", "docs") for p in (ROOT / top).rglob("*")
        ]
    return [path for path in found if path.is_file() and path.suffix in TEXT]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


@pytest.mark.parametrize("host", REGISTRY_HOSTS)
def test_no_registry_host(host: str) -> None:
    assert [str(path.relative_to(ROOT)) for path in tracked() if host in text_of(path)] == []


def test_no_path_of_a_machine() -> None:
    wrong = []
    for path in tracked():
        hit = MACHINE_PATHS.search(text_of(path))
        if hit is not None and path.name != Path(__file__).name:
            wrong.append(f"{path.relative_to(ROOT)}: {hit[0]}")
    assert wrong == []


def test_python_files_are_small() -> None:
    sizes = {
        path.relative_to(ROOT): len(text_of(path).splitlines()) for path in tracked() if path.suffix == ".py"
    }
    assert {str(path): lines for path, lines in sizes.items() if lines > MOST_LINES} == {}


def test_every_module_opens_with_what_it_answers() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in tracked()
        if path.suffix == ".py"
        and text_of(path).strip()
        and not text_of(path).lstrip().startswith(('"""', 'r"""'))
    ]
    assert silent == []


@pytest.mark.parametrize(
    "name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", "docs/design.md"]
)
def test_a_newcomer_finds(name: str) -> None:
    assert (ROOT / name).is_file() and text_of(ROOT / name).strip()


def test_every_dependency_is_pinned_and_explained() -> None:
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    wanted = [
        *project["dependencies"],
        *project["optional-dependencies"]["test"],
        *project["optional-dependencies"]["dev"],
    ]
    names = {re.split(r"[<>=!~\[ ]", one)[0].lower().replace("_", "-") for one in wanted}
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in text_of(ROOT / "constraints.txt").splitlines()
        if "==" in line
    }
    assert names <= pinned
    reasons = text_of(ROOT / "docs" / "adr" / "0001-dependencies.md").lower()
    assert {name for name in names if name not in reasons} == set()


def test_catalogue_tables_are_packaged() -> None:
    data = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]["setuptools"]["package-data"]
    assert "*.csv" in data["*"]
