"""Tests of jaxload.training.optimizer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxload.errors import InputError
from jaxload.training.optimizer import (
    OptimizerConfig,
    learning_rate_schedule,
    make_optimizer,
)

CONFIG = OptimizerConfig(learning_rate=0.1, num_warmup_steps=4, weight_decay=0.5)


def test_warm_up_rises_and_stays():
    rate = learning_rate_schedule(CONFIG)
    rates = [np.asarray(rate(jnp.int32(step))) for step in range(7)]
    np.testing.assert_allclose(
        rates, [0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1], rtol=1e-6
    )


def test_only_matrices_decay():
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones((3, 2))}
    optimizer = make_optimizer(CONFIG)
    zeros = {"kernel": jnp.zeros((2, 2)), "bias": jnp.zeros((3, 2))}
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    leaves = jax.tree.leaves(optax.apply_updates(params, updates))
    np.testing.assert_array_equal(leaves[0], np.ones((3, 2)))  # bias
    np.testing.assert_allclose(leaves[1], np.full((2, 2), 1 - 0.02 * 0.5))  # kernel


def test_large_gradients_are_clipped():
    params = {"kernel": jnp.zeros(4)}
    config = dataclasses.replace(CONFIG, weight_decay=0.0)
    optimizer = make_optimizer(config)
    state = optimizer.init(params)
    large, _ = optimizer.update({"kernel": jnp.full(4, 100.0)}, state, params)
    larger, _ = optimizer.update({"kernel": jnp.full(4, 1e6)}, state, params)
    np.testing.assert_allclose(*map(jax.tree.leaves, (large, larger)), rtol=1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0.0),
        ("max_grad_norm", -1.0),
        ("num_warmup_steps", -1),
        ("beta2", 1.0),
    ],
)
def test_rejects_values_out_of_range(field, value):
    with pytest.raises(InputError, match=f"optimizer.{field}={value}: expected"):
        dataclasses.replace(CONFIG, **{field: value})
