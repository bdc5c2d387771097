"""Tests that assert_trees_close accepts rounding errors and nothing more."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxload.testing import assert_trees_close

DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]


def _tree(dtype):
    return {"a": jnp.ones((2, 3), dtype), "b": [jnp.full((4,), 100, dtype)]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_accepts_the_last_bit(dtype):
    desired = _tree(dtype)
    step = 1 + float(jnp.finfo(dtype).eps)
    actual = {"a": desired["a"] * step, "b": [desired["b"][0] * step]}
    assert_trees_close(actual, desired)


def test_accepts_a_more_precise_reference():
    assert_trees_close(jnp.full((2,), 1 / 3, jnp.bfloat16), np.full((2,), 1 / 3))


def test_accepts_empty_arrays():
    assert_trees_close(jnp.zeros((0, 3)), np.zeros((0, 3)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_names_the_leaf_and_the_difference(dtype):
    desired, actual = _tree(dtype), _tree(dtype)
    actual["b"][0] = actual["b"][0].at[2].multiply(1 + 64 * float(jnp.finfo(dtype).eps))
    with pytest.raises(AssertionError, match=r"leaf \"\['b'\]\[0\]\" of dtype") as info:
        assert_trees_close(actual, desired)
    assert "Max relative difference" in str(info.value)
    assert "Mismatched elements: 1 / 4" in str(info.value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fails_close_to_zero(dtype):
    with pytest.raises(AssertionError, match="Max absolute difference"):
        assert_trees_close(jnp.full((2,), 0.02, dtype), jnp.zeros((2,), dtype))


def test_fails_on_nan():
    with pytest.raises(AssertionError, match="nan"):
        assert_trees_close(jnp.full((2,), jnp.nan), jnp.zeros((2,)))


def test_fails_on_a_shape_that_would_broadcast():
    with pytest.raises(AssertionError, match=r"expected shape \(\), got \(2,\)"):
        assert_trees_close(jnp.zeros((2,)), jnp.zeros(()))


def test_fails_on_another_structure():
    with pytest.raises(AssertionError, match="expected a tree"):
        assert_trees_close([jnp.zeros((2,))], (jnp.zeros((2,)),))


def test_refuses_a_dtype_without_a_tolerance():
    with pytest.raises(ValueError, match=r"expected dtype float32, .*, got int32"):
        assert_trees_close(jnp.zeros((2,), jnp.int32), jnp.zeros((2,), jnp.int32))
