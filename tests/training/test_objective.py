"""Tests of jaxload.training.objective."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxload.errors import InputError
from jaxload.sampling.noise import draw_noise, shift_sigma
from jaxload.training.config import FlowConfig
from jaxload.training.objective import FlowMatching, Objective, sample_keys

CONFIG = FlowConfig()


def flow_matching_loss(velocity, latent, text, keys_B, config) -> jax.Array:
    objective = FlowMatching(config)
    assert isinstance(objective, Objective)
    return objective(velocity, {"latent": latent, "text": text}, keys_B)[0]


def latents(batch: int) -> jax.Array:
    return jax.random.normal(jax.random.key(9), (batch, 2, 4, 4, 16))


def keys(ids, step: int = 3) -> jax.Array:
    return sample_keys(0, jnp.int32(step), jnp.asarray(ids, jnp.int32))


def test_the_true_velocity_has_no_loss():
    latent = latents(4)

    def oracle(noisy, timestep, text):
        s = (timestep / 1000)[:, None, None, None, None]
        return (noisy - latent) / s  # noisy = latent + s * (noise - latent)

    loss = flow_matching_loss(
        oracle, latent, jnp.zeros((4, 3, 8)), keys(range(4)), CONFIG
    )
    np.testing.assert_allclose(loss, 0.0, atol=1e-4)


def test_predicting_zero_costs_the_size_of_the_target():
    latent = latents(64)

    def zero(noisy, timestep, text):
        return jnp.zeros_like(noisy)

    loss = flow_matching_loss(
        zero, latent, jnp.zeros((64, 3, 8)), keys(range(64)), CONFIG
    )
    expected = 1.0 + np.square(latent).mean()
    np.testing.assert_allclose(loss.mean(), expected, rtol=0.03)


def test_noise_depends_on_the_sample_not_on_its_index():
    def identity(noisy, timestep, text):
        return noisy + timestep[:, None, None, None, None]

    latent = latents(4)
    text = jnp.ones((4, 3, 8))
    loss = flow_matching_loss(identity, latent, text, keys([5, 6, 7, 8]), CONFIG)
    order = jnp.array([2, 0, 3, 1])
    shuffled = flow_matching_loss(
        identity, latent[order], text, keys([7, 5, 8, 6]), CONFIG
    )
    np.testing.assert_array_equal(shuffled, loss[order])


def test_noise_differs_by_step_and_sample():
    drawn = {
        (step, i): np.asarray(draw_noise(keys([i], step)[0], (8,))).tobytes()
        for step in range(3)
        for i in range(3)
    }
    assert len(set(drawn.values())) == 9


def test_captions_are_dropped_at_the_rate_asked_for():
    seen = []

    def record(noisy, timestep, text):
        seen.append(text)
        return noisy

    config = dataclasses.replace(CONFIG, caption_dropout=0.25)
    flow_matching_loss(
        record,
        latents(1).repeat(800, axis=0),
        jnp.ones((800, 3, 8)),
        keys(range(800)),
        config,
    )
    (text,) = seen
    per_sample = text.reshape(800, -1)
    dropped = (per_sample == 0).all(axis=1)
    assert ((per_sample == 1).all(axis=1) | dropped).all()
    assert 0.19 < dropped.mean() < 0.31


@pytest.mark.parametrize("sampler", ["uniform", "logit_normal"])
def test_noise_levels_are_of_the_named_distribution(sampler):
    seen = []

    def record(noisy, timestep, text):
        seen.append(np.asarray(timestep) / 1000)
        return noisy

    config = FlowConfig(sigma_sampler=sampler, shift=1.0)
    flow_matching_loss(
        record,
        latents(1).repeat(4000, axis=0),
        jnp.ones((4000, 1, 1)),
        keys(range(4000)),
        config,
    )
    quantiles = np.quantile(seen[0], [0.25, 0.5, 0.75])
    expected = {
        "uniform": [0.25, 0.5, 0.75],
        "logit_normal": 1 / (1 + np.exp([0.6745, 0.0, -0.6745])),
    }[sampler]
    np.testing.assert_allclose(quantiles, expected, atol=0.03)


def test_shift_keeps_the_ends():
    sigma = jnp.array([0.0, 0.5, 1.0])
    np.testing.assert_allclose(shift_sigma(sigma, 3.0), [0.0, 0.75, 1.0], rtol=1e-6)


@pytest.mark.parametrize(("field", "value"), [("shift", 0.0), ("caption_dropout", 1.5)])
def test_rejects_values_out_of_range(field, value):
    with pytest.raises(InputError, match=f"flow.{field}={value}: expected"):
        dataclasses.replace(CONFIG, **{field: value})
