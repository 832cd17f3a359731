"""`make accuracy`: every accuracy table, printed and written to docs/accuracy.md.

Left out: speed (bench).
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

PARTS = (
    ("KV cache layout and parameters", "benchmarks.accuracy_kv"),
    ("Memory bill", "benchmarks.accuracy_memory"),
    ("Throughput and latency", "benchmarks.accuracy_performance"),
    ("Simulation against recorded runs", "benchmarks.accuracy_simulation"),
)
PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
HEAD = (
    "# Accuracy\n\nWritten by `make accuracy`; every figure can be repeated. Errors are predicted over measured, signed where "
    "a sign is shown.\n"
)


def main() -> None:
    """Run all parts, or those named with --only; the page is written only when all ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", choices=[module.rsplit("_", 1)[1] for _, module in PARTS], action="append")
    only = parser.parse_args().only
    page = [HEAD]
    for title, module in PARTS:
        if only and module.rsplit("_", 1)[1] not in only:
            continue
        print(f"\n## {title}\n", flush=True)
        page.append(f"## {title}\n\n{importlib.import_module(module).main()}\n")
    if not only:
        PAGE.write_text("\n".join(page), encoding="utf-8")
        print(f"\nwritten: docs/{PAGE.name}")


if __name__ == "__main__":
    main()
