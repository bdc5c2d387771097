"""Noise and noise levels, shared by training and sampling."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

NUM_TIMESTEPS = 1000.0
"""Timestep that a model gets at a noise level of 1, by convention."""


def shift_sigma(sigma: Array, shift: float) -> Array:
    """Moves noise levels towards 1 if `shift` is above 1; keeps 0 and 1."""
    return shift * sigma / (1.0 + (shift - 1.0) * sigma)


def draw_noise(key: Key[Array, ""], shape: tuple[int, ...]) -> Array:
    """Draws standard normal noise in float32.

    The noise of tokens `[S, P]` begins with the noise of any smaller S, bit for bit, so
    that a sample has the same noise in every program. The noise is drawn as a flat
    array, also because XLA takes ten times as long to compile the generator for several
    axes.
    """
    return jax.random.normal(key, (math.prod(shape),), jnp.float32).reshape(shape)
