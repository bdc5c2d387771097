"""Tests of jaxload.ops.attention."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxload.ops import attention


def test_against_float64():
    q, k, v = (
        np.asarray(jax.random.normal(jax.random.key(i), shape), np.float64)
        for i, shape in enumerate([(2, 5, 3, 8), (2, 7, 3, 8), (2, 7, 3, 8)])
    )
    scores = np.einsum("bsnk,btnk->bnst", q, k) / np.sqrt(8)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    expected = np.einsum("bnst,btnk->bsnk", weights, v)
    got = attention(*(jnp.asarray(x, jnp.float32) for x in (q, k, v)))
    np.testing.assert_allclose(got, expected, atol=1e-5)
