"""Objectives: the loss of each sample, with metrics and running statistics."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jaxload.models.embeddings import row_lengths, without_padding
from jaxload.sampling.noise import NUM_TIMESTEPS, draw_noise, shift_sigma
from jaxload.training.config import FlowConfig

Velocity = Callable[[Array, Array, Array], Array]
"""A model as a function: (tokens [B, S, P], timestep [B], text) -> velocity [B, S, P].

The grid of the tokens is bound to it.
"""

Metrics = Mapping[str, Array]
"""Arrays of any shape, each a sum over samples."""

_NOISE_STREAM = 1_000_003  # Separates noise from the keys of the parameters.
_NUM_NOISE_LEVELS = 8
_DECAY = 0.98  # Running sums remember about 50 steps.


@runtime_checkable
class Objective(Protocol):
    """A loss, and running statistics that a run carries from step to step."""

    def __call__(
        self, model: Velocity, batch: Mapping[str, Array], keys_B: Key[Array, " b"]
    ) -> tuple[Float[Array, " b"], Metrics]:
        """Returns the loss of each sample, and metrics summed over the samples.

        Args:
            model: Model, which ignores padding and returns arbitrary values there.
            batch: Arrays of `jaxload.data.batch_spec.batch_spec`. If they include
                `grid`, the tokens of a sample are followed by padding, which must not
                affect the results.
            keys_B: Random key of each sample.
        """
        ...

    def init_metrics(self) -> Metrics:
        """Returns zero metrics with the shapes that a call returns."""
        ...

    def init_statistics(self) -> Any:
        """Returns the statistics before the first step."""
        ...

    def advance_statistics(self, statistics: Any, metrics: Metrics) -> Any:
        """Returns the statistics after a step with these summed metrics; pure."""
        ...

    def report(self, statistics: Any) -> dict[str, Array]:
        """Returns the part of the statistics that a step's event shows."""
        ...


@dataclasses.dataclass(frozen=True)
class FlowMatching:
    """Flow matching: the model learns the velocity from a sample to noise.

    The statistics are the loss by noise level, from low to high, over recent steps.
    They show whether a model fails at one noise level or at all levels.
    """

    config: FlowConfig

    def __call__(
        self, model: Velocity, batch: Mapping[str, Array], keys_B: Key[Array, " b"]
    ) -> tuple[Float[Array, " b"], Metrics]:
        """Returns the mean squared error of each sample's velocity, in float32."""
        noise_keys, sigma_keys, drop_keys = jax.vmap(
            lambda key: jax.random.split(key, 3), out_axes=1
        )(keys_B)
        lengths_B = row_lengths(batch["grid"]) if "grid" in batch else None
        tokens_BSP = without_padding(batch["tokens"].astype(jnp.float32), lengths_B)
        noise_BSP = jax.vmap(lambda key: draw_noise(key, tokens_BSP.shape[1:]))(
            noise_keys
        )
        sigma_B = jax.vmap(lambda key: _draw_sigma(key, self.config))(sigma_keys)
        draw_B = jax.vmap(lambda key: jax.random.uniform(key))(drop_keys)

        s = sigma_B[:, None, None]
        noisy_BSP = (1.0 - s) * tokens_BSP + s * noise_BSP
        kept_B, text_BTE = draw_B >= self.config.caption_dropout, batch["text"]
        text_BTE = jnp.where(kept_B[:, None, None], text_BTE, jnp.zeros_like(text_BTE))
        predicted_BSP = model(noisy_BSP, NUM_TIMESTEPS * sigma_B, text_BTE)
        error_BSP = predicted_BSP - (noise_BSP - tokens_BSP)
        loss_B = _mean_square(error_BSP, lengths_B)
        return loss_B, _by_noise_level(loss_B, sigma_B)

    def init_metrics(self) -> dict[str, Array]:
        """Returns zero sums of losses and counts, by noise level."""
        zeros = jnp.zeros(_NUM_NOISE_LEVELS, jnp.float32)
        return {"loss_by_noise": zeros, "count_by_noise": zeros}

    def init_statistics(self) -> dict[str, Array]:
        """Returns zero running sums of the metrics."""
        return self.init_metrics()

    def advance_statistics(
        self, statistics: dict[str, Array], metrics: Metrics
    ) -> dict[str, Array]:
        """Returns the decayed running sums with a step's metrics added."""
        return {name: _DECAY * statistics[name] + metrics[name] for name in statistics}

    def report(self, statistics: dict[str, Array]) -> dict[str, Array]:
        """Returns the mean loss by noise level; NaN for levels without samples."""
        count = statistics["count_by_noise"]
        mean = statistics["loss_by_noise"] / count
        return {"loss_by_noise": jnp.where(count > 0, mean, jnp.nan)}


def sample_keys(
    seed: int, step: Int[Array, ""], ids_B: Int[Array, " b"]
) -> Key[Array, " b"]:
    """Returns a random key for each sample of a step.

    Keys depend on the sample's id and not on its index in the batch, so that its noise
    is the same for any batch size, replica or host.
    """
    noise_key = jax.random.fold_in(jax.random.key(seed), _NOISE_STREAM)
    step_key = jax.random.fold_in(noise_key, step)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(step_key, ids_B)


def _mean_square(error_BSP: Array, lengths_B: Array | None) -> Array:
    """Returns the mean square over the elements of each sample, without padding."""
    if lengths_B is None:
        return jnp.mean(jnp.square(error_BSP), axis=(1, 2))
    total_B = jnp.square(without_padding(error_BSP, lengths_B)).sum(axis=(1, 2))
    return total_B / (lengths_B * error_BSP.shape[2]).astype(jnp.float32)


def _by_noise_level(loss_B: Array, sigma_B: Array) -> dict[str, Array]:
    """Returns the sums of losses and the sample counts, by intervals of sigma."""
    loss_B = jax.lax.stop_gradient(loss_B)
    level_B = jnp.clip(
        (sigma_B * _NUM_NOISE_LEVELS).astype(jnp.int32), 0, _NUM_NOISE_LEVELS - 1
    )
    at_level = jax.nn.one_hot(level_B, _NUM_NOISE_LEVELS, dtype=jnp.float32)
    return {
        "loss_by_noise": (at_level * loss_B[:, None]).sum(axis=0),
        "count_by_noise": at_level.sum(axis=0),
    }


def _draw_sigma(key: Key[Array, ""], config: FlowConfig) -> Array:
    if config.sigma_sampler == "uniform":
        sigma = jax.random.uniform(key, (), jnp.float32)
    else:
        sigma = jax.nn.sigmoid(jax.random.normal(key, (), jnp.float32))
    return shift_sigma(sigma, config.shift)
