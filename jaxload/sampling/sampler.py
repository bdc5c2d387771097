"""Draws latents from a model by following its velocity from noise to a sample."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxload.sampling.config import SampleConfig
from jaxload.sampling.noise import NUM_TIMESTEPS, draw_noise, shift_sigma
from jaxload.shapes.geometry import Sizes
from jaxload.shapes.shape import parse_sizes
from jaxload.shapes.token_order import split_patches, to_latent

Sampler = Callable[[tuple[Any, ...], Array, Array], Array]


def make_sampler(
    graphdef: nnx.GraphDef,
    config: SampleConfig,
    *,
    channels: int,
    patch: Sizes,
    shift: float,
) -> Sampler:
    """Returns the function `(params, text, seed) -> latent`, not yet compiled."""
    grid = split_patches(parse_sizes(config.shape), patch)
    num_tokens, width = math.prod(grid), math.prod(patch) * channels

    def sample(
        params: tuple[Any, ...], text_TE: Float[Array, "t e"], seed: Int[Array, ""]
    ) -> Float[Array, "f h w c"]:
        # Guidance needs the velocity with and without the caption: a batch of two.
        text_2TE = jnp.stack([text_TE, jnp.zeros_like(text_TE)])
        sigmas = shift_sigma(
            jnp.linspace(1.0, 0.0, config.num_steps + 1, dtype=jnp.float32), shift
        )

        def euler_step(tokens_1SP, ends):
            sigma, next_sigma = ends
            # copy=True, because the parameters belong to the trace outside this scan.
            model = nnx.merge(graphdef, *params, copy=True)
            velocity = model.velocity(
                jnp.repeat(tokens_1SP, 2, axis=0),
                grid,
                jnp.full(2, NUM_TIMESTEPS * sigma),
                text_2TE,
            )
            with_text, without = velocity[:1], velocity[1:]
            guided = without + config.guidance * (with_text - without)
            return tokens_1SP + (next_sigma - sigma) * guided, None

        noise = draw_noise(jax.random.key(seed), (num_tokens, width))
        ends = (sigmas[:-1], sigmas[1:])
        tokens_1SP, _ = jax.lax.scan(euler_step, noise[None], ends)
        return to_latent(tokens_1SP[0], grid, patch)

    return sample
