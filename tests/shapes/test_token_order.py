"""Tests of jaxload.shapes.token_order."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxload.models.embeddings import from_patches, to_patches, token_grid
from jaxload.shapes.token_order import split_patches, to_latent, to_tokens

CASES = [
    pytest.param((3, 4, 6, 5), (1, 2, 2), id="2x2"),
    pytest.param((2, 6, 4, 3), (1, 3, 2), id="3x2"),
    pytest.param((4, 2, 2, 16), (2, 1, 2), id="frames"),
    pytest.param((1, 1, 1, 1), (1, 1, 1), id="one"),
]


@pytest.mark.parametrize(("shape", "patch"), CASES)
def test_the_order_is_that_of_the_models(shape, patch):
    latent = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    grid = split_patches(shape, patch)
    assert grid == token_grid((1, *shape), patch)
    tokens = to_tokens(latent, patch)
    np.testing.assert_array_equal(
        tokens, to_patches(jnp.asarray(latent)[None], patch)[0]
    )
    found = to_latent(tokens, grid, patch)
    again = from_patches(jnp.asarray(tokens)[None], grid, patch)[0]
    np.testing.assert_array_equal(found, again)
    np.testing.assert_array_equal(found, latent)


def test_the_first_frames_are_a_prefix():
    latent = np.random.default_rng(0).standard_normal((5, 4, 6, 3))
    tokens = to_tokens(latent, (1, 2, 2))
    first = to_tokens(latent[:2], (1, 2, 2))
    np.testing.assert_array_equal(tokens[: len(first)], first)
