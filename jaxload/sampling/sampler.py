"""Draws latents from a model by following its velocity from noise to a sample."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxload.sampling.config import SampleConfig
from jaxload.sampling.noise import NUM_TIMESTEPS, draw_noise, shift_sigma
from jaxload.shapes.shape import parse_sizes

Sampler = Callable[[tuple[Any, ...], Array, Array], Array]


def make_sampler(
    graphdef: nnx.GraphDef, config: SampleConfig, *, channels: int, shift: float
) -> Sampler:
    """Returns the function `(params, text, seed) -> latent`, not yet compiled."""
    latent_shape = (1, *parse_sizes(config.shape), channels)

    def sample(
        params: tuple[Any, ...], text_TE: Float[Array, "t e"], seed: Int[Array, ""]
    ) -> Float[Array, "f h w c"]:
        # Guidance needs the velocity with and without the caption: a batch of two.
        text_2TE = jnp.stack([text_TE, jnp.zeros_like(text_TE)])
        sigmas = shift_sigma(
            jnp.linspace(1.0, 0.0, config.num_steps + 1, dtype=jnp.float32), shift
        )

        def euler_step(latent_1FHWC, ends):
            sigma, next_sigma = ends
            # copy=True, because the parameters belong to the trace outside this scan.
            model = nnx.merge(graphdef, *params, copy=True)
            velocity = model(
                jnp.repeat(latent_1FHWC, 2, axis=0),
                jnp.full(2, NUM_TIMESTEPS * sigma),
                text_2TE,
            )
            with_text, without = velocity[:1], velocity[1:]
            guided = without + config.guidance * (with_text - without)
            return latent_1FHWC + (next_sigma - sigma) * guided, None

        noise = draw_noise(jax.random.key(seed), latent_shape)
        latent, _ = jax.lax.scan(euler_step, noise, (sigmas[:-1], sigmas[1:]))
        return latent[0]

    return sample
