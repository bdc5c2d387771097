"""Root mean square norm with a scale."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxload.ops._batch_of_one import without_batch_of_one


@without_batch_of_one
def rms_norm(
    x: Float[Array, "*b d"], scale: Float[Array, " d"], *, eps: float
) -> Float[Array, "*b d"]:
    """Returns `x / rms(x) * scale` over the last axis in the dtype of x.

    All arithmetic is in float32; `eps` is added to the mean square.
    """
    x32 = x.astype(jnp.float32)
    mean_square = jnp.square(x32).mean(axis=-1, keepdims=True)
    scale = scale.astype(jnp.float32)
    scale = scale.reshape((1,) * (x.ndim - 1) + scale.shape)
    return (x32 * jax.lax.rsqrt(mean_square + eps) * scale).astype(x.dtype)
