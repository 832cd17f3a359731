"""Sentences about scenario keys in the words of the page: the field's label where the key was.

Source of labels: simulate_fields, simulate_policies. Left out: keys that have no field; they stay as they are.
"""

from __future__ import annotations

import re

from pages.ui.simulate_fields import FIELDS
from pages.ui.simulate_policies import GATES

# Labels that say what they are only beside their neighbour.
IN_FULL = {
    "prompt_cv": "Spread of prompt tokens",
    "output_cv": "Spread of output tokens",
    "max_retries": "Retries, at most",
    "long_prompt": "Prompt of long documents",
    "long_output": "Output of long documents",
    "long_cv": "Prompt spread of long documents",
    "slow_factor": "Slow replica, times slower",
}
WHOLE = {
    "workload.prompt_tokens": "Prompt tokens",
    "workload.output_tokens": "Output tokens",
    "step_time": "Step time",
}


def _labels() -> dict[str, str]:
    """Key path -> how the page calls it."""
    found = {key: f"“{label}”" for key, label in WHOLE.items()}
    for field in FIELDS:
        name = f"“{IN_FULL.get(field.key, field.label)}”"
        found[".".join(field.path)] = (
            name if field.scale == 1.0 else f"{name} in seconds"
        )  # as the scenario has it
        if field.path[0] == "step_time":
            found[field.path[-1]] = name
    for gate in GATES.values():
        for setting in gate.settings:
            found[f"admission[0].{setting.key}"] = f"“{setting.label}”"
    return found


LABELS = _labels()
PATTERN = re.compile(
    r"(?<![\w.'])("
    + "|".join(re.escape(key) for key in sorted(LABELS, key=len, reverse=True))
    + r")(?![\w.\[']|\()"
)


def labelled(sentence: str) -> str:
    """The sentence with the page's labels in place of keys.

    >>> labelled("workload.arrival.rate_rps is 0; expected a number, 1e-09 to 1e+06")
    '“Requests/s” is 0; expected a number, 1e-09 to 1e+06'
    >>> labelled("step_time.fixed_s is -0.005; expected seconds, 0 or more")
    '“Fixed per step, ms” in seconds is -0.005; expected seconds, 0 or more'
    """
    if sentence.startswith("unknown key"):  # it lists keys that can be typed
        return sentence
    return PATTERN.sub(lambda match: LABELS[match[1]], sentence)
