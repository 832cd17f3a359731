"""How a model is cut over GPUs: which tensor-parallel sizes its heads allow, and which layers each stage holds.

Source: vLLM's start-up checks and its even pipeline split. Left out: expert load balancing, sequence parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.errors import CapacityError
from capacity.model import Attention, LatentAttention, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """A legal cut. ``stages``: the model layers of each pipeline stage. ``gpus``: per engine replica times replicas."""

    tensor: int
    stages: tuple[range, ...]
    data: int
    expert: bool
    decode_context: int

    @property
    def pipeline(self) -> int:
        return len(self.stages)

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.data


def valid_tensor_parallel_sizes(spec: ModelSpec, *, limit: int = 64) -> tuple[int, ...]:
    """Tensor-parallel sizes up to ``limit`` that the model's heads allow."""
    return tuple(size for size in range(1, limit + 1) if _heads_reason(spec, size) is None)


def cut(
    spec: ModelSpec,
    *,
    tensor: int,
    pipeline: int,
    split: tuple[int, ...] | None = None,
    data: int = 1,
    expert: bool = False,
    decode_context: int = 1,
) -> Parallelism:
    """Check a cut. Raises CapacityError with the valid sizes where the heads or layers do not allow it."""
    reason = _heads_reason(spec, tensor)
    if reason is not None:
        sizes = valid_tensor_parallel_sizes(spec, limit=max(64, min(tensor, 128)))
        largest = max(size for size in sizes if tensor % size == 0)
        anyway = (
            f"pipeline_parallel_size {tensor}"
            if tensor <= spec.num_hidden_layers
            else f"tensor_parallel_size {largest} and data_parallel_size {tensor // largest}"
        )
        raise CapacityError(
            f"tensor_parallel_size {tensor} does not divide {reason}; valid: {', '.join(map(str, sizes))}. "
            f"To use {tensor} GPUs anyway set {anyway}",
            field="tensor_parallel_size",
        )
    layers = spec.num_hidden_layers
    if pipeline > layers:
        raise CapacityError(
            f"pipeline_parallel_size {pipeline} is more than the model's {layers} layers",
            field="pipeline_parallel_size",
        )
    if split is not None:
        if pipeline not in (1, len(split)) or sum(split) != layers:
            raise CapacityError(
                f"pipeline_layer_split {'+'.join(map(str, split))} has {len(split)} stages and {sum(split)} layers; "
                f"expected {max(pipeline, len(split))} stages that sum to {layers}",
                field="pipeline_layer_split",
            )
        sizes = split
    else:
        sizes = even_split(layers, pipeline)
    if tensor % decode_context:
        divisors = ", ".join(str(d) for d in range(1, tensor + 1) if tensor % d == 0)
        raise CapacityError(
            f"decode_context_parallel_size {decode_context} does not divide tensor_parallel_size {tensor}; "
            f"valid: {divisors}",
            field="decode_context_parallel_size",
        )
    if decode_context > 1:
        _check_decode_context(spec, tensor, decode_context)
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    stages = tuple(range(starts[i], starts[i + 1]) for i in range(len(sizes)))
    return Parallelism(tensor=tensor, stages=stages, data=data, expert=expert, decode_context=decode_context)


def _check_decode_context(spec: ModelSpec, tensor: int, ranks: int) -> None:
    """The engine splits a request over the ranks that keep the same KV head: TP / KV heads of them, all with MLA."""
    heads = max((m.num_kv_heads for m in spec.kinds() if isinstance(m, Attention)), default=1)
    most = tensor if spec.uses_mla else tensor // heads
    if ranks > most:
        valid = ", ".join(str(d) for d in range(1, most + 1) if tensor % d == 0) or "1"
        raise CapacityError(
            f"decode_context_parallel_size {ranks} needs {ranks} ranks for each of the {heads} KV heads; "
            f"tensor_parallel_size {tensor} has {max(1, most)}; valid: {valid}",
            field="decode_context_parallel_size",
        )


def even_split(layers: int, stages: int) -> tuple[int, ...]:
    """The engine's split: what does not divide goes one layer each to the stages before the last.

    >>> even_split(61, 4)
    (15, 15, 16, 15)
    """
    base, rest = divmod(layers, stages)
    sizes = [base] * stages
    for i in range(rest):
        sizes[(stages - 2 - i) % stages] += 1
    return tuple(sizes)


def _heads_reason(spec: ModelSpec, tensor: int) -> str | None:
    """What ``tensor`` does not divide, or None when it is legal."""
    if spec.num_attention_heads and spec.num_attention_heads % tensor:
        return f"the {spec.num_attention_heads} attention heads"
    for mixer in spec.kinds():
        if isinstance(mixer, Attention):
            if mixer.num_heads % tensor:
                return f"the {mixer.num_heads} attention heads"
            if mixer.num_kv_heads % tensor and tensor % mixer.num_kv_heads:
                return f"the {mixer.num_kv_heads} KV heads (nor is it a multiple of them)"
        elif isinstance(mixer, LatentAttention):
            if mixer.num_heads % tensor:
                return f"the {mixer.num_heads} attention heads"
        elif mixer.num_heads > 1 and mixer.num_heads % tensor:
            return f"the {mixer.num_heads} state heads"
        elif mixer.num_heads * mixer.head_dim % tensor:
            return f"the state's inner width {mixer.num_heads * mixer.head_dim}"
    return None
