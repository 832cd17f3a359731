"""Who may import whom, as the table in docs/design.md says; read from every file's imports, not from habit."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# package -> what it may import beside the standard library and itself
MAY = {
    "capacity": {"numpy"},
    "connectors": {
        "capacity",
        "duckdb",
        "numpy",
        "pandas",
        "prometheus_client",
        "pyarrow",
        "requests",
        "starlette",
        "urllib3",
    },
    "pages": {"capacity", "connectors", "numpy", "pandas", "plotly", "streamlit"},
    "app": {"capacity", "connectors", "starlette", "streamlit"},
}
NEVER_STDLIB = {
    "capacity": {"threading", "socket", "urllib", "http", "subprocess", "asyncio", "multiprocessing"}
}
HEAVY = {"streamlit", "pandas", "plotly", "requests", "duckdb", "pyarrow", "prometheus_client", "starlette"}


def files_of(package: str) -> list[Path]:
    if package == "app":
        return [path for path in [ROOT / "app.py"] if path.exists()]
    return sorted((ROOT / package).rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    """Dotted names that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found.add(node.module)
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found


@pytest.mark.parametrize("package", MAY)
def test_only_allowed_imports(package: str) -> None:
    wrong = []
    for path in files_of(package):
        for name in imports_of(path):
            top = name.split(".")[0]
            standard = top in sys.stdlib_module_names
            if top in NEVER_STDLIB.get(package, ()) or (
                not standard and top != package and top not in MAY[package]
            ):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_a_page_imports_no_other_page() -> None:
    pages = {path.stem for path in (ROOT / "pages").glob("*.py")} - {"__init__"}
    wrong = []
    for path in files_of("pages"):
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] == "pages" and len(parts) > 1 and parts[1] in pages:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_only_listed_facts_are_read_from_disk() -> None:
    """The core opens its own tables and the file that a person names on the command line, nothing else."""
    readers = {"cli.py", "table.py", "engine.py", "scenario.py"}
    wrong = []
    for path in files_of("capacity"):
        calls = {
            node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        }
        opens = calls & {"open", "read_text", "read_bytes", "write_text", "write_bytes"}
        packaged = "importlib.resources" in {n.rpartition(".")[0] for n in imports_of(path)} | imports_of(
            path
        )
        if opens and path.name not in readers and not packaged:
            wrong.append(f"{path.relative_to(ROOT)} calls {', '.join(sorted(opens))}")
    assert not wrong


@pytest.mark.parametrize(
    "module", ["capacity", "capacity.plan", "capacity.cli", "capacity.search", "capacity.export.report"]
)
def test_the_core_loads_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; print(' '.join(sorted(set(sys.modules) & {HEAVY!r})))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_the_table_in_the_design_names_the_same_packages() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    for package in MAY:
        assert f"| `{package}" in text
