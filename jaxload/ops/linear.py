"""Linear map with a bias and, optionally, a low-rank adapter (LoRA)."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxload.ops._batch_of_one import without_batch_of_one


@dataclasses.dataclass(frozen=True)
class Adapter:
    """Low-rank addition to a matrix: `scale * down @ up`."""

    down: Float[Array, "d r"]
    up: Float[Array, "r e"]
    scale: float


@without_batch_of_one
def linear(
    x: Float[Array, "*b d"],
    kernel: Float[Array, "d e"],
    bias: Float[Array, " e"],
    *,
    adapter: Adapter | None = None,
    dtype: DTypeLike,
    out_dtype: DTypeLike,
    name: str,
) -> Float[Array, "*b e"]:
    """Returns `x kernel + bias`, with the adapter added to the kernel.

    Args:
        x: Any number of rows.
        kernel: Converted to `dtype`.
        bias: Converted to `out_dtype`.
        adapter: Its matrices are converted to `dtype`.
        dtype: Dtype of the operands of matmuls.
        out_dtype: Dtype of the result.
        name: Name of matmul results in `jax.checkpoint` policies.
    """
    x = x.astype(dtype)
    y = _matmul(x, kernel, out_dtype)
    if adapter is not None:
        h = _matmul(x, adapter.down, out_dtype).astype(dtype)
        h = checkpoint_name(h, name)
        y += adapter.scale * _matmul(h, adapter.up, out_dtype)
    y = checkpoint_name(y, name)
    bias = bias.astype(y.dtype)
    return y + bias.reshape((1,) * (y.ndim - 1) + bias.shape)


def _matmul(x: Array, kernel: Array, out_dtype: DTypeLike) -> Array:
    # By default, a GPU multiplies float32 as TF32, with 10 mantissa bits.
    is_float32 = x.dtype == jnp.float32
    return jnp.matmul(
        x,
        kernel.astype(x.dtype),
        precision=jax.lax.Precision.HIGHEST if is_float32 else None,
        preferred_element_type=out_dtype,
    )
