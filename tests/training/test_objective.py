"""Tests of jaxload.training.objective."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxload.errors import InputError
from jaxload.sampling.noise import draw_noise, shift_sigma
from jaxload.training.config import FlowConfig
from jaxload.training.objective import FlowMatching, Objective, sample_keys

CONFIG = FlowConfig()


def flow_matching_loss(velocity, tokens, text, keys_B, config) -> jax.Array:
    objective = FlowMatching(config)
    assert isinstance(objective, Objective)
    return objective(velocity, {"tokens": tokens, "text": text}, keys_B)[0]


def make_tokens(batch: int) -> jax.Array:
    return jax.random.normal(jax.random.key(9), (batch, 8, 64))


def keys(ids, step: int = 3) -> jax.Array:
    return sample_keys(0, jnp.int32(step), jnp.asarray(ids, jnp.int32))


def test_the_true_velocity_has_no_loss():
    tokens = make_tokens(4)

    def oracle(noisy, timestep, text):
        s = (timestep / 1000)[:, None, None]
        return (noisy - tokens) / s  # noisy = tokens + s * (noise - tokens)

    loss = flow_matching_loss(
        oracle, tokens, jnp.zeros((4, 3, 8)), keys(range(4)), CONFIG
    )
    np.testing.assert_allclose(loss, 0.0, atol=1e-4)


def test_predicting_zero_costs_the_size_of_the_target():
    tokens = make_tokens(64)

    def zero(noisy, timestep, text):
        return jnp.zeros_like(noisy)

    loss = flow_matching_loss(
        zero, tokens, jnp.zeros((64, 3, 8)), keys(range(64)), CONFIG
    )
    expected = 1.0 + np.square(tokens).mean()
    np.testing.assert_allclose(loss.mean(), expected, rtol=0.03)


def test_noise_depends_on_the_sample_not_on_its_index():
    def identity(noisy, timestep, text):
        return noisy + timestep[:, None, None]

    tokens = make_tokens(4)
    text = jnp.ones((4, 3, 8))
    loss = flow_matching_loss(identity, tokens, text, keys([5, 6, 7, 8]), CONFIG)
    order = jnp.array([2, 0, 3, 1])
    shuffled = flow_matching_loss(
        identity, tokens[order], text, keys([7, 5, 8, 6]), CONFIG
    )
    np.testing.assert_array_equal(shuffled, loss[order])


def test_noise_differs_by_step_and_sample():
    drawn = {
        (step, i): np.asarray(draw_noise(keys([i], step)[0], (8,))).tobytes()
        for step in range(3)
        for i in range(3)
    }
    assert len(set(drawn.values())) == 9


def test_the_noise_of_fewer_tokens_is_a_prefix():
    assert jax.config.values["jax_threefry_partitionable"]
    (key,) = keys([5])
    whole = draw_noise(key, (97, 64))
    for num_tokens in (1, 2, 50, 96):
        fewer = draw_noise(key, (num_tokens, 64))
        np.testing.assert_array_equal(fewer, whole[:num_tokens])
    # Control: without this setting of JAX, all bits depend on the number of tokens.
    with jax.threefry_partitionable(False):
        whole, fewer = (draw_noise(key, (n, 64)) for n in (97, 50))
    assert not (fewer == whole[:50]).all()


def test_a_row_has_the_noise_and_the_loss_of_its_sample():
    grids = jnp.array([[1, 1, 1], [2, 1, 3], [2, 2, 2]], jnp.int32)
    lengths, tokens, text = (1, 6, 8), make_tokens(3), jnp.ones((3, 3, 8))
    seen = []

    def curved(noisy, timestep, text):
        seen.append(noisy)
        return jnp.sin(noisy) + timestep[:, None, None] / 1000

    def losses(tokens, text, keys_B, **grid):
        batch = {"tokens": tokens, "text": text, **grid}
        return FlowMatching(CONFIG)(curved, batch, keys_B)[0]

    found = losses(tokens.at[0, 1:].set(jnp.nan), text, keys(range(3)), grid=grids)
    rows = seen.pop()
    assert jnp.isfinite(rows).all()
    for i, length in enumerate(lengths):
        (expected,) = losses(tokens[i : i + 1, :length], text[i : i + 1], keys([i]))
        np.testing.assert_array_equal(rows[i, :length], seen.pop()[0])
        np.testing.assert_allclose(found[i], expected, rtol=1e-6)


def test_values_of_the_model_in_padding_reach_neither_loss_nor_gradients():
    grids, tokens = jnp.array([[1, 1, 1], [2, 2, 2]], jnp.int32), make_tokens(2)

    def loss(scale, at_padding):
        def model(noisy, timestep, text):
            return (scale * noisy).at[0, 1:].add(at_padding)

        batch = {"tokens": tokens, "text": jnp.ones((2, 3, 8)), "grid": grids}
        return FlowMatching(CONFIG)(model, batch, keys(range(2)))[0].sum()

    expected = jax.value_and_grad(loss)(0.5, 0.0)
    for value in (-3e4, math.nan):
        np.testing.assert_array_equal(jax.value_and_grad(loss)(0.5, value), expected)


def test_captions_are_dropped_at_the_rate_asked_for():
    seen = []

    def record(noisy, timestep, text):
        seen.append(text)
        return noisy

    config = dataclasses.replace(CONFIG, caption_dropout=0.25)
    flow_matching_loss(
        record,
        make_tokens(1).repeat(800, axis=0),
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
        make_tokens(1).repeat(4000, axis=0),
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
