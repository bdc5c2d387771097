"""Attention: one function for every model, whatever implementation stands behind it."""

import jax
from jaxtyping import Array, Float

# Shape suffixes: B batch, S queries, T keys, N heads, K head width.


def attention(
    q_BSNK: Float[Array, "b s n k"],
    k_BTNK: Float[Array, "b t n k"],
    v_BTNK: Float[Array, "b t n k"],
) -> Float[Array, "b s n k"]:
    """Returns `softmax(q k^T / sqrt(K)) v`, every query attending to every key."""
    return jax.nn.dot_product_attention(q_BSNK, k_BTNK, v_BTNK)
