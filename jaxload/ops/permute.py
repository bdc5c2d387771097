"""Permutation of tokens, differentiable without a scatter."""

# Shape suffixes: B batch, S tokens.

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxload.ops._arguments import vary_alike


def permute_tokens(
    x: Float[Array, "b s *d"],
    order_BS: Int[Array, "b s"],
    inverse_BS: Int[Array, "b s"],
) -> Float[Array, "b s *d"]:
    """Returns tokens in another order, for each sample its own.

    The derivative of a gather is a scatter-add, which is slow on GPUs and adds in any
    order. The derivative of a permutation is a gather by its inverse.

    Args:
        x: Tokens.
        order_BS: Index of the token that moves to each position; a permutation.
        inverse_BS: The inverse permutation.
    """
    return _permute(*vary_alike(x, order_BS, inverse_BS))


@jax.custom_vjp
def _permute(x: Array, order_BS: Array, inverse_BS: Array) -> Array:
    del inverse_BS
    return _gather(x, order_BS)


def _fwd(
    x: Array, order_BS: Array, inverse_BS: Array
) -> tuple[Array, tuple[Array, Array]]:
    return _gather(x, order_BS), (order_BS, inverse_BS)


def _bwd(indices: tuple[Array, Array], dy: Array) -> tuple[Array, None, None]:
    _, inverse_BS = indices
    return _gather(dy, inverse_BS), None, None


_permute.defvjp(_fwd, _bwd)


def _gather(x: Array, index_BS: Array) -> Array:
    def gather(x: Array, index_S: Array) -> Array:
        return x.at[index_S].get(mode="promise_in_bounds", unique_indices=True)

    return jax.vmap(gather)(x, index_BS.astype(jnp.int32))
