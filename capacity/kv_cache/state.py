"""Bytes of one request's recurrent state in one layer on one GPU.

Source: the state shapes of vLLM's layers (checked on the planner runs and on start-up logs with 272 to 1,600 token
blocks). Speculative tokens widen the convolution part. Left out: states of encoders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.errors import CapacityError
from capacity.model import RecurrentState
from capacity.units import ceil_div

if TYPE_CHECKING:
    from capacity.kv_cache.layout import CacheSettings

KDA_STATE_BYTES = 4  # always float32, whatever mamba_ssm_cache_dtype says (kda_state_dtype of the engine)
DTYPE_BYTES = {
    "float32": 4,
    "float": 4,
    "fp32": 4,
    "float16": 2,
    "bfloat16": 2,
    "half": 2,
    "fp16": 2,
    "bf16": 2,
}


def dtype_bytes(name: str, field: str) -> int:
    """Bytes of a torch dtype's name. Raises CapacityError for others.

    >>> dtype_bytes("bfloat16", "dtype")
    2
    """
    plain = name.removeprefix("torch.").lower()
    if plain not in DTYPE_BYTES:
        raise CapacityError(
            f"{field} is {name[:40]!r}; expected auto, bfloat16, float16 or float32", field=field
        )
    return DTYPE_BYTES[plain]


def state_bytes(mixer: RecurrentState, settings: CacheSettings) -> int:
    """One state in bytes: the convolution window in the model's dtype plus the recurrent matrix in the state's."""
    tp, conv_bytes = settings.tensor, settings.model_dtype_bytes
    asked = settings.ssm_dtype if settings.ssm_dtype not in (None, "auto") else mixer.state_dtype
    ssm_bytes = dtype_bytes(asked, "mamba_ssm_cache_dtype") if asked else conv_bytes
    window = max(0, mixer.conv_kernel - 1)
    inner = mixer.num_heads * mixer.head_dim
    spec_window = window + settings.num_speculative_tokens if window else 0
    if mixer.kind == "mamba1":
        return (window * inner // tp) * conv_bytes + inner // tp * mixer.state_size * ssm_bytes
    if mixer.kind == "mamba2":
        groups = mixer.num_groups if mixer.num_groups % tp == 0 else tp
        channels = (inner + 2 * groups * mixer.state_size) // tp
        return spec_window * channels * conv_bytes + inner // tp * mixer.state_size * ssm_bytes
    if mixer.kind == "gated_delta_net":
        channels = (2 * mixer.num_groups * mixer.state_size + inner) // tp
        return spec_window * channels * conv_bytes + inner // tp * mixer.state_size * ssm_bytes
    if mixer.kind == "kda":
        channels = (2 * mixer.num_heads * mixer.state_size + inner) // tp
        return spec_window * channels * conv_bytes + inner // tp * mixer.state_size * KDA_STATE_BYTES
    if mixer.kind == "lightning":
        return ceil_div(inner, tp) * mixer.state_size * conv_bytes
    return window * ceil_div(inner, tp) * conv_bytes
