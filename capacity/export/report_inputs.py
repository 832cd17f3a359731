"""What a report was made from: the workload in words, and all that it takes to make the report again.

Every text is escaped. Left out: what the plan says (report).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from html import escape
from typing import Any

from capacity.plan import Plan
from capacity.scenario import Length

SCENARIO_FILE = "scenario.json"


def workload_words(plan: Plan) -> str:
    """The workload in one line: prompt and output tokens, their spread, the shared prefix.

    >>> from capacity.plan import plan
    >>> from capacity.scenario import Scenario
    >>> raw = {"model": "qwen3-0.6b", "gpu": "l4", "prompt_tokens": {"mean": 1500, "cv": 1}, "output_tokens": 300}
    >>> workload_words(plan(Scenario.parse(raw)))
    'Workload: prompt 1,500 tokens (spread 1), output 300 tokens (all alike), no shared prefix'
    """
    asked = plan.resolved.scenario
    if asked.prompt_tokens is None and asked.output_tokens is None and not asked.shared_prefix_tokens:
        return "Workload: no prompt or output lengths given"
    prefix = asked.shared_prefix_tokens
    return "Workload: " + ", ".join(
        (
            f"prompt {_length(asked.prompt_tokens)}",
            f"output {_length(asked.output_tokens)}",
            f"shared prefix {prefix:,} tokens" if prefix else "no shared prefix",
        )
    )


def _length(length: Length | None) -> str:
    if length is None:
        return "not given"
    if length.values:
        return f"{length.mean:,.10g} tokens on average over {len(length.values):,} observed lengths"
    return f"{length.mean:,.10g} tokens ({f'spread {length.cv:g}' if length.cv else 'all alike'})"


def settings(changes: Mapping[str, Any]) -> str:
    """Changed scenario keys in one line.

    >>> settings({"tensor_parallel_size": 2, "kv_cache_gib": None})
    'tensor_parallel_size = 2; kv_cache_gib left out'
    """
    return "; ".join(
        f"{key} left out" if value is None else f"{key} = {value}" for key, value in changes.items()
    )


def reproduce(plan: Plan, *, page_url: str | None) -> str:
    """The section with the scenario as JSON, the command that plans it and the page's link, when it is known."""
    text = json.dumps(plan.resolved.scenario.to_json(), indent=2)
    command = f"python -m capacity plan --scenario {shlex.quote(SCENARIO_FILE)}"
    address = f"<p>The page with the same inputs:</p><pre>{escape(page_url)}</pre>" if page_url else ""
    return (
        f"<h2>Make this plan again</h2><p>Save the scenario as {SCENARIO_FILE}, then run the command.</p>"
        f"<pre id='scenario'>{escape(text)}</pre><pre>{escape(command)}</pre>{address}"
    )
