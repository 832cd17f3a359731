"""Policies that the Simulate page sets side by side: a gate with up to two settings, and what else differs.

A policy is a change to the scenario. Source of gates and keys: docs/simulation.md, Admission. Left out: widgets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from capacity.errors import CapacityError
from pages.ui.fields import number
from pages.ui.simulate_fields import further, merged

LETTERS = ("a", "b", "c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A number of a gate: its key in the scenario, its label, and the value taken when it is blank."""

    key: str
    label: str
    default: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """An admission policy of the scenario with what the page asks for."""

    label: str
    settings: tuple[Setting, ...]
    help: str


def _s(key: str, label: str, default: str) -> Setting:
    return Setting(key=key, label=label, default=default)


GATES: dict[str, Gate] = {
    "none": Gate(label="No gate", settings=(), help="everything that could ever run is let in"),
    "queue_limit": Gate(
        label="Queue limit", settings=(_s("max_waiting", "May wait", "3"),),
        help="503 when that many requests wait",
    ),
    "block_gate": Gate(
        label="Block gate", settings=(_s("min_free_fraction", "Keep free, share", "0.15"),),
        help="429 when prompt and expected answer would leave less of the pool free",
    ),
    "token_bucket": Gate(
        label="Token bucket",
        settings=(_s("refill_tokens_per_s", "Prompt tokens/s", "1000"), _s("capacity_tokens", "Bucket, tokens", "40000")),
        help="429 when the bucket is short of the prompt's tokens",
    ),
    "saturation": Gate(
        label="Saturation",
        settings=(_s("queue_threshold", "Waiting", "5"), _s("kv_threshold", "KV use, share", "0.8")),
        help="429 while the mean of max(waiting / threshold, KV use / threshold) is 1 or more",
    ),
    "concurrency_limit": Gate(
        label="Concurrency limit", settings=(_s("max_requests", "In flight", "64"),),
        help="429 above that many requests in flight",
    ),
    "adaptive_concurrency": Gate(
        label="Adaptive concurrency", settings=(_s("target_p99_s", "p99 E2E target, s", "30"),),
        help="429 above a limit that rises and falls with p99 E2E",
    ),
    "priority_shed": Gate(
        label="Priority shedding",
        settings=(_s("keep_up_to", "Keep up to priority", "0"), _s("kv_threshold", "KV use, share", "0.8")),
        help="429 for less urgent requests while the pool is that full; lower values are more urgent",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One contestant: texts of its widgets. ``gate`` empty keeps the scenario's own admission."""

    letter: str
    gate: str = ""
    first: str = ""
    second: str = ""
    also: str = ""

    @property
    def name(self) -> str:
        """What it is called beside its letter.

        >>> Policy(letter="b", gate="block_gate").name
        'Block gate 0.15'
        >>> Policy(letter="b", gate="none", also='{"fleet": {"router": "least_loaded"}}').name
        'No gate, router least loaded'
        """
        gate = GATES.get(self.gate)
        words = "As in the scenario" if gate is None else gate.label
        if gate is not None and gate.settings:
            words += " " + " / ".join(
                text or s.default for s, text in zip(gate.settings, self._texts(), strict=False)
            )
        return f"{words}, {self._changed()}" if self.also.strip() else words

    def _changed(self) -> str:
        """What else it changes, in at most two keys."""
        try:
            leaves = list(_leaves(further(self.also, "changes")))
        except CapacityError:
            leaves = []
        if not 1 <= len(leaves) <= 2 or any(len(text) > 24 for _, text in leaves):
            return "changed"
        return ", ".join(f"{key} {text}".replace("_", " ") for key, text in leaves)

    @property
    def title(self) -> str:
        return f"{self.letter.upper()} · {self.name}"

    def _texts(self) -> tuple[str, str]:
        return self.first.strip(), self.second.strip()

    def change(self) -> dict[str, Any]:
        """The keys that this policy puts on the scenario. Raises CapacityError."""
        own = further(self.also, f"changes of policy {self.letter.upper()}")
        if not self.gate:
            return own
        gate = GATES.get(self.gate)
        if gate is None:
            raise CapacityError(f"no gate {self.gate[:40]!r}; expected one of {', '.join(GATES)}")
        if self.gate == "none":
            return merged({"admission": []}, own)
        values = {
            setting.key: number(text or setting.default)
            for setting, text in zip(gate.settings, self._texts(), strict=False)
        }
        return merged({"admission": [{"policy": self.gate, **values}]}, own)

    def texts(self) -> dict[str, str]:
        return {"gate": self.gate, "first": self.first, "second": self.second, "also": self.also}


def policy_of(letter: str, change: Mapping[str, Any]) -> Policy:
    """A change to the scenario as widgets: its gate where one of the page's own does the same, the rest as JSON.

    >>> policy_of("c", {"admission": [{"policy": "block_gate", "min_free_fraction": 0.2}], "seed": 3})
    Policy(letter='c', gate='block_gate', first='0.2', second='', also='{"seed": 3}')
    >>> policy_of("a", {"admission": []}).name
    'No gate'
    """
    rest = dict(change)
    gate, texts = _gate_of(rest.get("admission"))
    if gate:
        rest.pop("admission")
    return Policy(
        letter=letter, gate=gate, first=texts[0], second=texts[1], also=json.dumps(rest) if rest else ""
    )


def _gate_of(admission: Any) -> tuple[str, tuple[str, str]]:
    """(gate, its settings as texts) of a scenario's admission; an empty name when the page has no such gate."""
    if admission == []:
        return "none", ("", "")
    one = admission[0] if isinstance(admission, list) and len(admission) == 1 else None
    gate = GATES.get(str(one.get("policy"))) if isinstance(one, Mapping) else None
    if gate is None or set(one) != {"policy", *(setting.key for setting in gate.settings)}:
        return "", ("", "")
    values = [one[setting.key] for setting in gate.settings]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        return "", ("", "")
    texts = [f"{value:.10g}" for value in values]
    return str(one["policy"]), (texts[0], texts[1] if len(texts) > 1 else "")


def _leaves(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The last key and the value of everything that a change sets."""
    for key, value in found.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        elif isinstance(value, bool):
            yield key, "on" if value else "off"
        else:
            yield key, str(value)


def scenarios(base: Mapping[str, Any], policies: tuple[Policy, ...]) -> list[dict[str, Any]]:
    """The scenario of each policy. Raises CapacityError."""
    return [merged(base, policy.change()) for policy in policies]
