"""What the operations of the layer_norm_modulate family ask of their arguments."""

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
    """Raises a ValueError that says which argument is not what `op` expects, and why.

    Args:
        op: The name of the operation.
        x_BSD: Decides what the others must be.
        activations: By name, arrays of the shape and the dtype of x.
        modulations: By name, one vector for each sample: float32, or as x.
        eps: What is added to the variance.
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
    if not 0 < np.float32(eps) < np.inf:  # As kernels get it: 1e-50 would be 0.
        raise ValueError(f"{op}: expected eps > 0 in float32, and finite; got {eps}")


def _check_shape(
    op: str, x_BSD: Array, name: str, array: Array, expected: tuple[int, ...]
):
    if array.shape != expected:  # One of [1, D] would broadcast without a word.
        raise ValueError(
            f"{op}: expected {name} of shape {expected} for x of shape {x_BSD.shape}, "
            f"got {array.shape}"
        )


def vary_alike(*arrays: Array) -> list[Array]:
    """Within shard_map, marks all arrays as varying over the axes that any varies over.

    When shards of x share a scale, the gradient of this marking adds up what they each
    find for it; a backward pass sees one shard only.
    """
    varying = [jax.typeof(array).manual_axis_type.varying for array in arrays]
    axes = frozenset().union(*varying)
    return [
        jax.lax.pcast(array, tuple(sorted(axes - own)), to="varying")
        for array, own in zip(arrays, varying, strict=True)
    ]
