"""Tests of jaxload.ops.permute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxload.ops import permute_tokens


@pytest.mark.parametrize("shape", [(3, 7, 2, 5), (1, 1, 4), (2, 9, 3)])
def test_tokens_and_gradients_move_there_and_back(shape: tuple[int, ...]):
    rng = np.random.default_rng(0)
    order = np.stack([rng.permutation(shape[1]) for _ in range(shape[0])])
    inverse = jnp.asarray(np.argsort(order, axis=1))
    x, dy = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for _ in range(2))
    y, vjp = jax.vjp(lambda x: permute_tokens(x, jnp.asarray(order), inverse), x)
    _, expected = jax.vjp(lambda x: jax.vmap(lambda x, i: x[i])(x, order), x)
    for i, indices in enumerate(order):
        np.testing.assert_array_equal(y[i], x[i][indices])
    np.testing.assert_array_equal(vjp(dy)[0], expected(dy)[0])


def test_the_gradient_scatters_nothing():
    x, order = jnp.ones((2, 4, 3)), jnp.tile(jnp.arange(4), (2, 1))

    def loss(x: jax.Array) -> jax.Array:
        return (permute_tokens(x, order, order) ** 2).sum()

    text = jax.jit(jax.grad(loss)).lower(x).as_text()
    assert "gather" in text
    assert "scatter" not in text
