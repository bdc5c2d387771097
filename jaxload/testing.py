"""Comparisons for tests, with measured tolerances."""

import jax
import numpy as np
from jaxtyping import PyTree

# Four times the worst error of layer_norm_modulate against a float64 reference, as
# |actual - desired| / (1 + |desired|): plain form and CPU kernel, values and gradients,
# over the shapes in tests/ops/. The worst errors are 8.7e-7 in float32, 3.2e-3 in
# bfloat16 and 4.1e-4 in float16; in the last two, mostly from the final rounding.
_TOLERANCES = {"float32": 3.5e-6, "bfloat16": 1.3e-2, "float16": 1.6e-3}


def assert_trees_close(actual: PyTree, desired: PyTree):
    """Checks that two pytrees of float arrays are equal up to rounding, leaf by leaf.

    The dtype of each leaf of `actual` sets the tolerance, which is t * (1 + |desired|).
    `desired` may be more precise, such as a float64 reference.

    Raises:
        AssertionError: The structures, a shape or a value differ; the message names
            the leaf.
        ValueError: A leaf of `actual` has a dtype without a tolerance.
    """
    actual_leaves, actual_structure = jax.tree.flatten_with_path(actual)
    desired_leaves, desired_structure = jax.tree.flatten(desired)
    if actual_structure != desired_structure:
        raise AssertionError(
            f"expected a tree {desired_structure}, got {actual_structure}"
        )
    for (path, leaf), desired_leaf in zip(actual_leaves, desired_leaves, strict=True):
        _assert_leaf_close(
            jax.tree_util.keystr(path), np.asarray(leaf), np.asarray(desired_leaf)
        )


def _assert_leaf_close(path: str, actual: np.ndarray, desired: np.ndarray):
    dtype = str(actual.dtype)
    if dtype not in _TOLERANCES:
        raise ValueError(
            f"leaf {path!r}: expected dtype {', '.join(_TOLERANCES)}, got {dtype}"
        )
    if actual.shape != desired.shape:  # assert_allclose would broadcast a scalar.
        raise AssertionError(
            f"leaf {path!r}: expected shape {desired.shape}, got {actual.shape}"
        )
    np.testing.assert_allclose(
        actual.astype(np.float64),
        desired.astype(np.float64),
        rtol=_TOLERANCES[dtype],
        atol=_TOLERANCES[dtype],
        err_msg=f"leaf {path!r} of dtype {dtype}",
    )
