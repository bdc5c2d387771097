"""Tests of jaxload.sampling.sampler."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxload.errors import InputError
from jaxload.sampling.config import SampleConfig
from jaxload.sampling.sampler import make_sampler

CONFIG = SampleConfig(caption="x", shape="2x4x4", num_steps=8, guidance=1.0)


class PointMass(nnx.Module):
    """Exact velocity towards a constant latent, the mean of the text."""

    def velocity(self, tokens, grid, timestep, text):
        assert tokens.shape == (2, math.prod(grid), 64)
        target = text.mean(axis=(1, 2))[:, None, None]
        return (tokens - target) / (timestep / 1000)[:, None, None]


def draw(config: SampleConfig, text: jax.Array, seed: int = 0) -> jax.Array:
    graphdef, params = nnx.split(PointMass())
    sampler = make_sampler(graphdef, config, channels=16, patch=(1, 2, 2), shift=3.0)
    return jax.jit(sampler)((params,), text, jnp.int32(seed))


def test_follows_the_flow_to_the_data():
    latent = draw(CONFIG, jnp.full((3, 5), 0.7))
    assert latent.shape == (2, 4, 4, 16)
    np.testing.assert_allclose(latent, 0.7, atol=1e-4)


def test_guidance_goes_beyond_the_captionless_prediction():
    config = dataclasses.replace(CONFIG, guidance=3.0)
    # The latent is 0 without the caption and 0.7 with it; guidance 3 triples 0.7.
    np.testing.assert_allclose(draw(config, jnp.full((3, 5), 0.7)), 2.1, atol=1e-4)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("shape", "2x4", "expected FxHxW"), ("num_steps", 0, "sample.num_steps=0")],
)
def test_rejects_what_cannot_be_drawn(field, value, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(CONFIG, **{field: value})
