"""Tests that operations compute without a batch axis of size 1, and return it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from jaxload.ops import Adapter, gate_tokens, linear, rms_norm


def _linear(x):
    rng = np.random.default_rng(0)
    kernel, down, up = (
        jnp.asarray(rng.standard_normal(shape), jnp.float32)
        for shape in ((8, 6), (8, 2), (2, 6))
    )
    return linear(
        x,
        kernel,
        jnp.ones(6),
        adapter=Adapter(down, up, scale=0.5),
        dtype=jnp.float32,
        out_dtype=jnp.float32,
        name="linear",
    )


def _rms_norm(x):
    return rms_norm(x, jnp.arange(1.0, 9.0), eps=1e-6)


def _gate_tokens(x):
    return gate_tokens(x, jnp.arange(8.0 * len(x)).reshape(-1, 8))


OPERATIONS = [_linear, _rms_norm, _gate_tokens]


def _x(*shape):
    return jnp.asarray(np.random.default_rng(1).standard_normal(shape), jnp.float32)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_batch_of_one_gives_what_a_larger_batch_gives(operation):
    x = _x(2, 5, 8)
    one = operation(x[:1])
    assert one.shape[0] == 1
    np.testing.assert_allclose(one, operation(x)[:1], rtol=1e-6, atol=1e-6)


def _ranks(jaxpr, primitives):
    return [
        operand.aval.ndim
        for equation in jaxpr.eqns
        for operand in equation.invars
        if equation.primitive.name in primitives
    ] + [
        rank
        for equation in jaxpr.eqns
        for inner in core.jaxprs_in_params(equation.params)
        for rank in _ranks(inner, primitives)
    ]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_computes_without_a_batch_of_one(operation):
    ranks = functools.partial(_ranks, primitives=("dot_general", "mul", "reduce_sum"))
    assert max(ranks(jax.make_jaxpr(operation)(_x(1, 5, 8)).jaxpr)) == 2
    assert max(ranks(jax.make_jaxpr(operation)(_x(2, 5, 8)).jaxpr)) == 3


@pytest.mark.parametrize("operation", [_linear, _rms_norm])
def test_keeps_an_axis_of_rows(operation):
    assert operation(_x(1, 8)).shape[0] == 1
    assert operation(_x(1, 1, 3, 8)).shape[:3] == (1, 1, 3)
