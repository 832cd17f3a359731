"""The exact half of the plan against vLLM's own planner and against public start-ups; parameter counts.

``python -m benchmarks.accuracy_kv`` prints the tables; ``main()`` returns them as markdown for docs/accuracy.md.
"""

from __future__ import annotations

from collections import Counter
from statistics import median

from benchmarks.startup_pools import check, pool_rows
from capacity.catalog import model_ids, model_spec, published_count
from capacity.parameters import count_parameters
from tests.capacity import test_kv_reference as reference


def main() -> str:
    """All tables as markdown; printed as well."""
    text = "\n\n".join((_planner(), _pools(), _parameters()))
    print(text)
    return text


def _planner() -> str:
    facts = reference.RESULTS
    models = list(reference._from_catalogue())
    lines = ["| vLLM's planner, recorded | results | wrong |", "|---|---|---|"]
    for name, rows, check_one in (
        ("from layer facts: groups, bytes per block, blocks, blocks per request, tokens, log lines", facts,
         reference.test_facts_give_the_engines_plan),
        ("from catalogue models: block size, blocks, blocks per request, tokens", models,
         reference.test_catalogue_models_give_the_engines_plan),
    ):  # fmt: skip
        wrong = 0
        for release, want in rows:
            try:
                check_one(release, want)
            except AssertionError:
                wrong += 1
        lines.append(f"| {name} | {len(rows):,} | {wrong} |")
    releases = len({release for release, _ in facts})
    return "\n".join(lines) + f"\n\n{len(reference.CASES)} cases over {releases} releases, 0.10.2 to 0.32.0."


def _pools() -> str:
    rows = pool_rows()
    kept = [row for row in rows if not row["left_out"]]
    figures = [figure for row in kept for figure in check(row)]
    lines = [
        "| figure of public start-ups | rows | within the printed memory's rounding | largest error |",
        "|---|---|---|---|",
    ]
    for name in ("blocks", "tokens", "concurrency"):
        some = [figure for figure in figures if figure.figure == name]
        worst = max(some, key=lambda figure: abs(figure.error))
        right = sum(figure.right for figure in some)
        lines.append(f"| {name} | {len(some)} | {right} | {worst.error:+.2%} ({worst.row}) |")
    reasons = Counter(row["left_out"] for row in rows if row["left_out"])
    left = "; ".join(f"{count} {why}" for why, count in reasons.most_common())
    return "\n".join(lines) + f"\n\n{len(kept)} of {len(rows)} start-ups; left out: {left}."


def _parameters() -> str:
    errors = []
    for model_id in model_ids():
        published = published_count(model_id)
        spec = model_spec(model_id)
        if published is None:
            continue
        count = count_parameters(spec)
        basis = published.basis or ""
        total = count.total + (count.mtp if "mtp" in basis else 0)
        errors.append((abs(total / published.parameters - 1), model_id))
    errors.sort()
    return (
        "| parameter counts | models | median error | worst of the best 95 % |\n|---|---|---|---|\n"
        f"| catalogue against published totals | {len(errors)} | {median(e for e, _ in errors):.3%} | "
        f"{errors[int(0.95 * (len(errors) - 1))][0]:.2%} |\n\n"
        "Totals here leave out copies of embeddings that some checkpoints store; the golden test compares like with like."
    )


if __name__ == "__main__":
    main()
