"""Flow matching: the model learns the velocity from a sample to noise."""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jaxload.errors import InputError

Velocity = Callable[[Array, Array, Array], Array]
"""(latent, timestep, text) -> velocity: a model that is called."""

NUM_TIMESTEPS = 1000.0
"""What a model is told of a noise level of 1, as is customary."""


_NOISE_STREAM = 1_000_003  # Apart from the keys that parameters are drawn from.


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowConfig:
    """Noise levels and conditioning of the training loss."""

    sigma_sampler: Literal["uniform", "logit_normal"] = "logit_normal"
    """Distribution of the noise level in [0, 1], before the shift."""

    shift: float = 1.0
    """Moves noise levels up for long sequences: s*sigma / (1 + (s-1)*sigma)."""

    caption_dropout: float = 0.1
    """Share of samples trained without their caption, for guidance when sampling."""

    def __post_init__(self):
        if self.shift <= 0:
            raise InputError(f"flow.shift={self.shift}: expected a positive number")
        if not 0 <= self.caption_dropout <= 1:
            raise InputError(
                f"flow.caption_dropout={self.caption_dropout}: expected 0 to 1"
            )


def shift_sigma(sigma: Array, shift: float) -> Array:
    """Moves noise levels towards 1 by `shift`, keeping both ends."""
    return shift * sigma / (1.0 + (shift - 1.0) * sigma)


def sample_keys(
    seed: int, step: Int[Array, ""], ids_B: Int[Array, " b"]
) -> Key[Array, " b"]:
    """A random key for each sample of a step.

    Keyed by what is trained and not by where it lies, so that noise is the same for any
    batch size, replica or host that a sample lands on.
    """
    noise_key = jax.random.fold_in(jax.random.key(seed), _NOISE_STREAM)
    step_key = jax.random.fold_in(noise_key, step)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(step_key, ids_B)


def draw_noise(key: Key[Array, ""], shape: tuple[int, ...]) -> Array:
    """Draws standard normal noise in float32.

    Drawn flat: XLA takes ten times as long to compile the generator in several axes.
    """
    return jax.random.normal(key, (math.prod(shape),), jnp.float32).reshape(shape)


def flow_matching_loss(
    velocity: Velocity,
    latent_BFHWC: Float[Array, "b f h w c"],
    text_BTE: Float[Array, "b t e"],
    keys_B: Key[Array, " b"],
    config: FlowConfig,
) -> Float[Array, " b"]:
    """Returns each sample's mean squared error of the velocity, in float32."""
    noise_keys, sigma_keys, drop_keys = jax.vmap(
        lambda key: jax.random.split(key, 3), out_axes=1
    )(keys_B)
    latent_BFHWC = latent_BFHWC.astype(jnp.float32)
    noise_BFHWC = jax.vmap(lambda key: draw_noise(key, latent_BFHWC.shape[1:]))(
        noise_keys
    )
    sigma_B = jax.vmap(lambda key: _draw_sigma(key, config))(sigma_keys)
    draw_B = jax.vmap(lambda key: jax.random.uniform(key))(drop_keys)

    s = sigma_B[:, None, None, None, None]
    noisy_BFHWC = (1.0 - s) * latent_BFHWC + s * noise_BFHWC
    kept_B = draw_B >= config.caption_dropout
    text_BTE = jnp.where(kept_B[:, None, None], text_BTE, jnp.zeros_like(text_BTE))
    predicted_BFHWC = velocity(noisy_BFHWC, NUM_TIMESTEPS * sigma_B, text_BTE)
    error = predicted_BFHWC - (noise_BFHWC - latent_BFHWC)
    return jnp.mean(jnp.square(error), axis=(1, 2, 3, 4))


def _draw_sigma(key: Key[Array, ""], config: FlowConfig) -> Array:
    if config.sigma_sampler == "uniform":
        sigma = jax.random.uniform(key, (), jnp.float32)
    else:
        sigma = jax.nn.sigmoid(jax.random.normal(key, (), jnp.float32))
    return shift_sigma(sigma, config.shift)
