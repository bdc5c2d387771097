"""Gated addition to the residual stream, fused with the next layer_norm_modulate.

In a diffusion transformer, the first step ends a branch and the second begins the next
one. Fused, the sum need not be read again to be normalized.
"""

# Shape suffixes: B batch, S tokens, D width.

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxload.ops._arguments import check_arguments, vary_alike
from jaxload.ops._kernel import Kernel
from jaxload.ops.layer_norm_modulate import (
    layer_norm_modulate_reference,
    reference_with_statistics,
)

_FWD = Kernel(
    "jaxload_gated_residual_layer_norm_modulate_fwd",
    operands=("BSD", "BSD", "BD", "BD", "BD"),  # x, h, gate, scale, shift.
    results=("BSD", "BSD", "BS", "BS"),  # residual, y, mean, rstd.
)
_BWD = Kernel(
    "jaxload_gated_residual_layer_norm_modulate_bwd",
    # x, h, gate, scale, mean, rstd, dresidual, dy.
    operands=("BSD", "BSD", "BD", "BD", "BS", "BS", "BSD", "BSD"),
    results=("BSD", "BSD", "BD", "BD", "BD"),  # dx, dh, dgate, dscale, dshift.
)

# Residuals of the backward pass: x, h, gate, scale, mean and 1 / standard deviation.
_Residuals = tuple[Array, Array, Array, Array, Array, Array]


def gated_residual_layer_norm_modulate_reference(
    x_BSD: Float[Array, "b s d"],
    h_BSD: Float[Array, "b s d"],
    gate_BD: Float[Array, "b d"],
    scale_BD: Float[Array, "b d"],
    shift_BD: Float[Array, "b d"],
    *,
    eps: float = 1e-6,
) -> tuple[Float[Array, "b s d"], Float[Array, "b s d"]]:
    """Defines `gated_residual_layer_norm_modulate` in plain JAX."""
    residual_BSD = _gated_residual(x_BSD, h_BSD, gate_BD)
    y_BSD = layer_norm_modulate_reference(residual_BSD, scale_BD, shift_BD, eps=eps)
    return residual_BSD, y_BSD


def _gated_residual(x_BSD: Array, h_BSD: Array, gate_BD: Array) -> Array:
    x_BSD, dtype = x_BSD.astype(jnp.float32), x_BSD.dtype
    branch_BSD = gate_BD.astype(jnp.float32)[:, None] * h_BSD.astype(jnp.float32)
    return (x_BSD + branch_BSD).astype(dtype)


def gated_residual_layer_norm_modulate(
    x_BSD: Float[Array, "b s d"],
    h_BSD: Float[Array, "b s d"],
    gate_BD: Float[Array, "b d"],
    scale_BD: Float[Array, "b d"],
    shift_BD: Float[Array, "b d"],
    *,
    eps: float = 1e-6,
) -> tuple[Float[Array, "b s d"], Float[Array, "b s d"]]:
    """Returns `residual = x + gate * h` and `layer_norm_modulate(residual)`.

    Both have the dtype of x. The residual is rounded to that dtype before it is
    normalized, so that the result equals that of the two steps. Everything else is as
    in `layer_norm_modulate`.

    Args:
        x_BSD: float32, bfloat16 or float16.
        h_BSD: The dtype of x.
        gate_BD: float32, or the dtype of x.
        scale_BD: float32, or the dtype of x.
        shift_BD: float32, or the dtype of x.
        eps: Added to the variance.

    Raises:
        ValueError: A shape, a dtype or eps is not as above.
    """
    check_arguments(
        "gated_residual_layer_norm_modulate",
        x_BSD,
        activations={"h": h_BSD},
        modulations={"gate": gate_BD, "scale": scale_BD, "shift": shift_BD},
        eps=eps,
    )
    # Converted outside of the custom_vjp, so that JAX sums the gradients of all shards
    # in float32 before it converts them back.
    modulations = [m.astype(jnp.float32) for m in (gate_BD, scale_BD, shift_BD)]
    return _gated_residual_layer_norm_modulate(
        *vary_alike(x_BSD, h_BSD, *modulations),
        float(eps),
        (gate_BD.dtype, scale_BD.dtype),
    )


_Dtypes = tuple[np.dtype, np.dtype]  # Dtypes in which gate and scale are saved.


@functools.partial(jax.custom_vjp, nondiff_argnames=("eps", "dtypes"))
def _gated_residual_layer_norm_modulate(
    x_BSD: Array,
    h_BSD: Array,
    gate_BD: Array,
    scale_BD: Array,
    shift_BD: Array,
    eps: float,
    dtypes: _Dtypes,
) -> tuple[Array, Array]:
    return _fwd(x_BSD, h_BSD, gate_BD, scale_BD, shift_BD, eps, dtypes)[0]


def _fwd(
    x_BSD: Array,
    h_BSD: Array,
    gate_BD: Array,
    scale_BD: Array,
    shift_BD: Array,
    eps: float,
    dtypes: _Dtypes,
) -> tuple[tuple[Array, Array], _Residuals]:
    residual_BSD, y_BSD, mean_BS, rstd_BS = _FWD(
        functools.partial(_plain_fwd, eps=eps),
        x_BSD,
        h_BSD,
        gate_BD,
        scale_BD,
        shift_BD,
        eps=np.float32(eps),
    )
    gate_BD, scale_BD = gate_BD.astype(dtypes[0]), scale_BD.astype(dtypes[1])
    # The normalized residual is not saved: the backward pass needs x and h anyway, and
    # recomputes the residual while it reads them.
    saved = (x_BSD, h_BSD, gate_BD, scale_BD, mean_BS, rstd_BS)
    return (residual_BSD, y_BSD), saved


def _bwd(
    eps: float,
    dtypes: _Dtypes,
    residuals: _Residuals,
    cotangents: tuple[Array, Array],
) -> tuple[Array, ...]:
    del dtypes
    x_BSD, h_BSD, gate_BD, scale_BD, mean_BS, rstd_BS = residuals
    return _BWD(
        functools.partial(_plain_bwd, eps=eps),
        x_BSD,
        h_BSD,
        gate_BD.astype(jnp.float32),
        scale_BD.astype(jnp.float32),
        mean_BS,
        rstd_BS,
        *cotangents,
    )


_gated_residual_layer_norm_modulate.defvjp(_fwd, _bwd)


def _plain_fwd(
    x_BSD: Array,
    h_BSD: Array,
    gate_BD: Array,
    scale_BD: Array,
    shift_BD: Array,
    *,
    eps: float,
) -> tuple[Array, Array, Array, Array]:
    residual_BSD = _gated_residual(x_BSD, h_BSD, gate_BD)
    normalized = reference_with_statistics(residual_BSD, scale_BD, shift_BD, eps=eps)
    return residual_BSD, *normalized


def _plain_bwd(
    x_BSD: Array,
    h_BSD: Array,
    gate_BD: Array,
    scale_BD: Array,
    mean_BS: Array,
    rstd_BS: Array,
    dresidual_BSD: Array,
    dy_BSD: Array,
    *,
    eps: float,
) -> tuple[Array, ...]:
    del mean_BS, rstd_BS  # JAX differentiates the definitions instead.
    dtype = x_BSD.dtype
    residual_BSD = _gated_residual(x_BSD, h_BSD, gate_BD)
    residual_BSD, h_BSD, dresidual_BSD, dy_BSD = (
        array.astype(jnp.float32)
        for array in (residual_BSD, h_BSD, dresidual_BSD, dy_BSD)
    )
    reference = functools.partial(layer_norm_modulate_reference, eps=eps)
    # The first function is affine in shift and the second in x, so that any value of
    # these gives the same gradients.
    _, vjp = jax.vjp(reference, residual_BSD, scale_BD, jnp.zeros_like(scale_BD))
    through_norm_BSD, dscale_BD, dshift_BD = vjp(dy_BSD)
    _, vjp = jax.vjp(_gated_residual, residual_BSD, h_BSD, gate_BD)
    dx_BSD, dh_BSD, dgate_BD = vjp(dresidual_BSD + through_norm_BSD)
    return dx_BSD.astype(dtype), dh_BSD.astype(dtype), dgate_BD, dscale_BD, dshift_BD
