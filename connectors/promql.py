"""Signals as PromQL: which series hold them, under every spelling that an exporter may have given the names.

Names come from ``metric_names.csv``; a spelling (``Naming``) adds a serving layer's prefix and the colon turned
into an underscore. Left out: lines and alerts (``alert_rules``), panels (``grafana``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from connectors import vocabulary
from connectors.selectors import matchers

GROUP = "waterline"
# Signal of a rule or panel -> (signal of the vocabulary, matcher, label that is summed away).
PARTS = {
    "deferred": ("waiting_by_reason", 'reason="deferred"', "reason"),
    "asleep": ("sleep_state", 'sleep_state="awake"', "sleep_state"),
    "aborted": ("finished", 'finished_reason="abort"', ""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """How one kind of exporter spells the names. ``prefixes`` stand in place of the engine's own (``vllm:``);
    ``identity`` are the labels that all series of one engine share.
    """

    exporter: str
    engine: str
    prefixes: tuple[str, ...]
    identity: str
    holds_for: str

    @property
    def group(self) -> str:
        """The name of its group of rules."""
        return GROUP if self.exporter == "vllm" else f"{GROUP}-{self.exporter}"


# exporter, engine, prefix without its colon, identity, what it holds for
_ROWS = (
    ("vllm", "vllm", "vllm", "instance, engine, model_name", "vLLM, also with underscores for colons"),
    ("ray", "vllm", "ray_vllm", "instance, ReplicaId, engine, model_name", "vLLM behind Ray Serve"),
    ("sglang", "sglang", "sglang", "instance, model_name", "SGLang"),
)
NAMINGS = tuple(
    Naming(
        exporter=exporter, engine=engine, prefixes=(f"{own}:", f"{own}_"), identity=identity, holds_for=says
    )
    for exporter, engine, own, identity, says in _ROWS
)
VLLM = NAMINGS[0]


def known(signal: str, naming: Naming = VLLM) -> bool:
    """Whether the engine exports a signal at all."""
    return PARTS.get(signal, (signal, "", ""))[0] in vocabulary.rows_of(naming.engine)


def spellings(name: str, naming: Naming = VLLM) -> list[str]:
    """One metric name as this kind of exporter may spell it.

    >>> spellings("vllm:kv_cache_usage_perc", NAMINGS[1])
    ['ray_vllm:kv_cache_usage_perc', 'ray_vllm_kv_cache_usage_perc']
    """
    own, colon, rest = name.partition(":")
    return [prefix + rest for prefix in naming.prefixes] if colon else [own]


def braces(*parts: str) -> str:
    """Matchers in braces, nothing where there are none."""
    inside = ",".join(part for part in parts if part)
    return f"{{{inside}}}" if inside else ""


def either(found: Sequence[str]) -> str:
    """The first of several expressions that has series, per label set."""
    return found[0] if len(found) == 1 else f"({' or '.join(found)})"


def series(
    signal: str, *, selector: str | None = None, over: str = "", window: str = "", naming: Naming = VLLM
) -> str:
    """PromQL for a signal: its newest name, or an older one or another spelling where that is absent.

    ``over`` with ``window``: a function of a range, such as ``rate`` over ``1m``, of each of them. BadTarget
    for a selector that is none.

    >>> series("running", selector='{job="vllm"}')
    '(vllm:num_requests_running{job="vllm"} or vllm_num_requests_running{job="vllm"})'
    >>> series("preemptions", over="rate", window="1m", naming=NAMINGS[2])
    '(rate(sglang:num_retracted_requests_total[1m]) or rate(sglang_num_retracted_requests_total[1m]))'
    """
    name, only, dropped = PARTS.get(signal, (signal, "", ""))
    inside = braces(only, matchers(selector))
    found = []
    for row in vocabulary.rows_of(naming.engine)[name]:
        for spelled in spellings(row.name, naming):
            full = f"{spelled}{'_total' if row.kind.startswith('counter') else ''}{inside}"
            found.append(f"{over}({full}[{window}])" if over else full)
    text = either(found)
    return f"sum without ({dropped}) ({text})" if dropped else text
