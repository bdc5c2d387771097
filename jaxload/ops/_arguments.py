"""Argument checks shared by the layer_norm_modulate family of operations."""

from collections.abc import Mapping

import jax
import numpy as np
from jaxtyping import Array

_DTYPES = ("float32", "bfloat16", "float16")


def check_arguments(
    op: str,
    x_BSD: Array,
    *,
    activations: Mapping[str, Array],
    modulations: Mapping[str, Array],
    eps: float,
):
    """Checks the shapes and dtypes of an operation's arguments against those of x.

    Args:
        op: Name of the operation, for error messages.
        x_BSD: float32, bfloat16 or float16.
        activations: Arrays by name, which must have the shape and dtype of x.
        modulations: Vectors [B, D] by name, which must be float32 or the dtype of x.
        eps: Added to the variance; must be positive and finite in float32.

    Raises:
        ValueError: An argument is not as above; the message names it.
    """
    if x_BSD.ndim != 3:
        raise ValueError(
            f"{op}: expected x of shape [batch, tokens, width], got {x_BSD.shape}"
        )
    if x_BSD.dtype not in _DTYPES:
        raise ValueError(
            f"{op}: expected x of dtype {', '.join(_DTYPES)}, got {x_BSD.dtype}"
        )
    for name, array in activations.items():
        _check_shape(op, x_BSD, name, array, x_BSD.shape)
        if array.dtype != x_BSD.dtype:
            raise ValueError(
                f"{op}: expected {name} of dtype {x_BSD.dtype}, as x, got {array.dtype}"
            )
    for name, array in modulations.items():
        _check_shape(op, x_BSD, name, array, (x_BSD.shape[0], x_BSD.shape[2]))
        if array.dtype not in ("float32", x_BSD.dtype):
            raise ValueError(
                f"{op}: expected {name} of dtype float32 or, as x, {x_BSD.dtype}; got "
                f"{array.dtype}"
            )
    if not 0 < np.float32(eps) < np.inf:  # Kernels take a float32: 1e-50 is 0.
        raise ValueError(f"{op}: expected eps > 0 in float32, and finite; got {eps}")


def _check_shape(
    op: str, x_BSD: Array, name: str, array: Array, expected: tuple[int, ...]
):
    if array.shape != expected:  # [1, D] would broadcast silently.
        raise ValueError(
            f"{op}: expected {name} of shape {expected} for x of shape {x_BSD.shape}, "
            f"got {array.shape}"
        )


def vary_alike(*arrays: Array) -> list[Array]:
    """Within shard_map, marks all arrays as varying over the axes that any varies over.

    If shards of x share a scale, each shard's backward pass computes only its part of
    the scale's gradient. The transpose of this marking sums those parts.
    """
    varying = [jax.typeof(array).manual_axis_type.varying for array in arrays]
    axes = frozenset().union(*varying)
    return [
        jax.lax.pcast(array, tuple(sorted(axes - own)), to="varying")
        for array, own in zip(arrays, varying, strict=True)
    ]
