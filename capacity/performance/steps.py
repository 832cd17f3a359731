"""Seconds of one decode step and seconds to a first token of one deployment, from its terms and coefficients.

Source: terms x coefficients (docs/performance.md), held between GPUs that are slower and faster in every respect. Left out:
waiting for a seat, intervals (predict.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capacity.hardware import gpus
from capacity.performance.coefficients import Chain, Coefficients, coefficients, model_shape, release_key
from capacity.performance.peers import Peers, held_between, peers_of
from capacity.performance.records import Deployment
from capacity.performance.terms import FIRST_TERMS, STEP_TERMS, StepTerms, first_token_terms, step_terms

Array = NDArray[np.float64]

NO_TIME = 1e-12
V0_RELEASES = ("0.0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8")


def engine_key(engine: str, release: str | None) -> str:
    """The engine under which coefficients are kept: vLLM up to 0.8 ran another scheduler on the critical path.

    >>> engine_key("vllm", "0.7.3"), engine_key("vllm", None)
    ('vllm-v0', 'vllm')
    """
    short = ".".join(release_key(release).split(".")[:2])
    return "vllm-v0" if engine == "vllm" and short in V0_RELEASES else engine


@dataclass(frozen=True, slots=True)
class Prepared:
    """What stays the same over the operating points of a deployment: peers, their factors, the own chains."""

    peers: Peers
    factors: dict[str, Array]
    weights: Array
    chains: dict[str, Chain]


def prepared_for(deployment: Deployment, shipped: Coefficients) -> Prepared:
    work, gpu, layout = deployment.work, deployment.gpu, deployment.layout
    key = (work, gpu, layout.gpus > 1, deployment.engine, deployment.release)
    found = shipped.kept.get(key)
    if found is None:
        engine, shape, release = (
            engine_key(deployment.engine, deployment.release),
            model_shape(work),
            release_key(deployment.release),
        )
        others = shipped.known_gpus("step", engine, shape, work.precision)
        peers = peers_of(gpu, others, work.dense_compute, work.expert_compute, layout.gpus > 1)
        chains = {
            q: [
                shipped.chain(
                    q,
                    engine=engine,
                    shape=shape,
                    precision=work.precision,
                    gpu=gpus()[name] if row else gpu,
                    release=release,
                )
                for row, name in enumerate(peers.ids)
            ]
            for q in ("step", "first_token")
        }
        found = Prepared(
            peers,
            {q: np.array([c.factors for c in rows]) for q, rows in chains.items()},
            np.array([max(chains["step"][i].rows, 1.0) for i in peers.chain]),
            {q: rows[0] for q, rows in chains.items()},
        )
        if len(shipped.kept) > 20_000:
            shipped.kept.clear()
        shipped.kept[key] = found
    assert isinstance(found, Prepared)
    return found


def _seconds(quantity: str, values: Array, prepared: Prepared) -> Array:
    all_s = np.einsum("tdp,dt->dp", values, prepared.factors[quantity])
    return held_between(np.maximum(all_s, NO_TIME), prepared.peers, prepared.weights)


def step_seconds(
    deployment: Deployment,
    concurrency: Array,
    prompt_tokens: Array,
    output_tokens: Array,
    *,
    open_loop: bool = False,
    shipped: Coefficients | None = None,
) -> tuple[Array, Array, StepTerms]:
    """(seconds per decode step, seconds to the first token after a seat is free, terms) at running ``concurrency``.

    ``open_loop``: requests come by themselves (Poisson), not each when another ends. Never below the physical floor of the
    step, nor faster to a first token than the prompts in flight can be computed. The three arrays broadcast to (points,).
    """
    prepared = prepared_for(deployment, shipped or coefficients())
    terms = step_terms(
        deployment.work,
        prepared.peers.devices,
        deployment.layout,
        concurrency=concurrency,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_tokens=deployment.cached_tokens,
        step_tokens=1.0 + deployment.speculative_tokens,
    )
    terms.floor_s = np.maximum(terms.floor_s, deployment.host_s)
    step = np.maximum(_seconds("step", terms.values, prepared) + deployment.host_s, terms.floor_s[0])
    # Seconds per step of the others' prompts: each neighbour starts one in 1 of ``output`` steps.
    others = _seconds("step", terms.values * PREFILL_PART, prepared)
    # Waiting and decoding together hold a neighbour's prompt once and a quarter at most: outputs of a few tokens.
    steps = prepared.chains["first_token"].factors[BUNCHED[0]]
    most = 1.0 + BUNCHED_SHARE * np.maximum(output_tokens, 1.0)
    waited = step - others * (1.0 - np.minimum(most / steps, 1.0))
    own = first_token_terms(terms, waited[None, :], prompt_tokens=prompt_tokens, engine=deployment.engine)
    if open_loop:
        own[BUNCHED] = 0.0
    first = _seconds("first_token", own, prepared)
    if open_loop:
        first = first + _until_own_step(step, others, terms, output_tokens) * (1.0 - 1.0 / terms.batch)
    first = np.maximum(first, terms.prefill_matmul[0] + terms.prefill_attention[0] + others)
    return step, first + deployment.host_s, terms


PREFILL_PART = np.array([name.startswith("prefill") for name in STEP_TERMS], dtype=float)[:, None, None]
# What a closed loop adds: users that start together and come back together (docs/performance.md, open and closed loop).
BUNCHED = [list(FIRST_TERMS).index(name) for name in ("busy_step", "queue_prefill")]

BUNCHED_SHARE = 0.25


def _until_own_step(step: Array, others: Array, terms: StepTerms, output_tokens: Array) -> Array:
    """Seconds that a Poisson arrival at a busy engine spends in steps beside its own prompt: the rest of the step in flight
    (E[S^2] / 2 E[S], with prompts Poisson among steps) and the step that it shares with the others."""
    per_step = np.maximum(terms.batch - 1.0, 0.0) / np.maximum(output_tokens, 1.0)
    uneven = np.divide(others**2, per_step, out=np.zeros_like(others * per_step), where=per_step > 0)
    return np.asarray(step + (step + uneven / step) / 2.0)
