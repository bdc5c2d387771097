"""cuDNN's flash attention, with forward and backward as two functions.

`jax.nn.dot_product_attention` wraps the same kernels, but hides the residuals of the
backward pass and requires cuDNN at tracing time. The primitives used here do neither.
"""

# Shape suffixes: B batch, S queries, T keys, N heads, K head width.

import math
from typing import Any

import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jaxtyping import Array

_DTYPES = ("bfloat16", "float16")
_MAX_HEAD_WIDTH = 128  # 256 needs Hopper; the choice must not depend on the GPU.
_HEAD_WIDTH_MULTIPLE = 8


def supports(dtype: str, head_width: int) -> bool:
    """Returns True if cuDNN has kernels for this dtype and head width."""
    return (
        dtype in _DTYPES
        and head_width <= _MAX_HEAD_WIDTH
        and head_width % _HEAD_WIDTH_MULTIPLE == 0
    )


def forward(
    q_BSNK: Array, k_BTNK: Array, v_BTNK: Array, lengths_B: Array | None = None
) -> tuple[Array, Array]:
    """Returns the attention output, and the scores' logsumexp [B, N, S] in float32."""
    out_BSNK, lse_BNS = cudnn._dot_product_attention_fwd_p.bind(
        q_BSNK,
        k_BTNK,
        v_BTNK,
        *_other_operands(q_BSNK, lengths_B),
        is_training=True,
        **_attributes(q_BSNK, lengths_B),
    )
    return out_BSNK, lse_BNS


def backward(
    q_BSNK: Array,
    k_BTNK: Array,
    v_BTNK: Array,
    out_BSNK: Array,
    lse_BNS: Array,
    dout_BSNK: Array,
    lengths_B: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Returns the gradients of queries, keys and values."""
    dq_BSNK, dk_BTNK, dv_BTNK = cudnn._dot_product_attention_bwd_p.bind(
        q_BSNK,
        k_BTNK,
        v_BTNK,
        *_other_operands(q_BSNK, lengths_B),
        lse_BNS,
        out_BSNK,
        dout_BSNK,
        **_attributes(q_BSNK, lengths_B),
    )
    return dq_BSNK, dk_BTNK, dv_BTNK


def _other_operands(q_BSNK: Array, lengths_B: Array | None) -> list[Array]:
    """Returns bias, query and key lengths, two offsets and two page tables."""
    unused = jnp.zeros(0, q_BSNK.dtype)
    if lengths_B is None:
        return [unused] * 7
    num_queries_B = jnp.full_like(lengths_B, q_BSNK.shape[1])
    return [unused, num_queries_B, lengths_B, *[unused] * 4]


def _attributes(q_BSNK: Array, lengths_B: Array | None) -> dict[str, Any]:
    masks = cudnn.MaskType
    return {
        "scale": 1 / math.sqrt(q_BSNK.shape[-1]),
        "seed": 0,
        "dropout_rate": 0.0,
        "variadic_args": (False, False),  # No bias, no bias gradient.
        "mask_type": masks.NO_MASK if lengths_B is None else masks.PADDING,
        "layout": cudnn.AttentionLayout.BTNH.value,
        "sliding_window_length": None,
    }
