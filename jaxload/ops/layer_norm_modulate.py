"""Layer norm without parameters, then a scale and a shift per sample (adaLN).

A diffusion transformer applies it before every attention and every MLP.
"""

# Shape suffixes: B batch, S tokens, D width; 1 for an axis kept by a reduction.

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxload.ops._arguments import check_arguments, vary_alike
from jaxload.ops._kernel import Kernel

_FWD = Kernel(
    "jaxload_layer_norm_modulate_fwd",
    operands=("BSD", "BD", "BD"),  # x, scale, shift.
    results=("BSD", "BS", "BS"),  # y, mean, rstd.
)
_BWD = Kernel(
    "jaxload_layer_norm_modulate_bwd",
    operands=("BSD", "BD", "BS", "BS", "BSD"),  # x, scale, mean, rstd, dy.
    results=("BSD", "BD", "BD"),  # dx, dscale, dshift.
)

# Residuals of the backward pass: x, scale, mean and 1 / standard deviation.
_Residuals = tuple[Array, Array, Array, Array]


def layer_norm_modulate_reference(
    x_BSD: Float[Array, "b s d"],
    scale_BD: Float[Array, "b d"],
    shift_BD: Float[Array, "b d"],
    *,
    eps: float = 1e-6,
) -> Float[Array, "b s d"]:
    """Defines `layer_norm_modulate` in plain JAX; every kernel must agree with it."""
    return reference_with_statistics(x_BSD, scale_BD, shift_BD, eps=eps)[0]


def reference_with_statistics(
    x_BSD: Array, scale_BD: Array, shift_BD: Array, *, eps: float
) -> tuple[Array, Array, Array]:
    """Returns y, and the mean and 1 / standard deviation of every token in float32."""
    x_BSD, dtype = x_BSD.astype(jnp.float32), x_BSD.dtype
    gain_B1D = 1 + scale_BD.astype(jnp.float32)[:, None]
    shift_B1D = shift_BD.astype(jnp.float32)[:, None]

    mean_BS1 = x_BSD.mean(axis=-1, keepdims=True)
    centred_BSD = x_BSD - mean_BS1
    variance_BS1 = jnp.square(centred_BSD).mean(axis=-1, keepdims=True)
    rstd_BS1 = jax.lax.rsqrt(variance_BS1 + eps)

    y_BSD = centred_BSD * rstd_BS1 * gain_B1D + shift_B1D
    return y_BSD.astype(dtype), mean_BS1[..., 0], rstd_BS1[..., 0]


def layer_norm_modulate(
    x_BSD: Float[Array, "b s d"],
    scale_BD: Float[Array, "b d"],
    shift_BD: Float[Array, "b d"],
    *,
    eps: float = 1e-6,
) -> Float[Array, "b s d"]:
    """Returns `layer_norm(x) * (1 + scale) + shift` in the dtype of x.

    Statistics are taken over the last axis, and all arithmetic is in float32. On
    platforms for which a kernel was built, the kernel runs; on others, the plain form.
    On a mesh, batch and tokens may be sharded and stay sharded; a sharded width is
    gathered. Differentiable once, in reverse mode.

    Args:
        x_BSD: float32, bfloat16 or float16.
        scale_BD: float32, or the dtype of x.
        shift_BD: float32, or the dtype of x.
        eps: Added to the variance.

    Raises:
        ValueError: A shape, a dtype or eps is not as above.
    """
    check_arguments(
        "layer_norm_modulate",
        x_BSD,
        activations={},
        modulations={"scale": scale_BD, "shift": shift_BD},
        eps=eps,
    )
    # Converted outside of the custom_vjp, so that JAX sums the gradients of all shards
    # in float32 before it converts them back.
    scale32_BD, shift32_BD = (m.astype(jnp.float32) for m in (scale_BD, shift_BD))
    return _layer_norm_modulate(
        *vary_alike(x_BSD, scale32_BD, shift32_BD), float(eps), scale_BD.dtype
    )


# The platform is chosen inside of the custom_vjp, not around it, so that all platforms
# save the same residuals: x, its statistics, and nothing else as large as x. Around it,
# the residuals of every platform would be saved on all platforms.


@functools.partial(jax.custom_vjp, nondiff_argnames=("eps", "scale_dtype"))
def _layer_norm_modulate(
    x_BSD: Array, scale_BD: Array, shift_BD: Array, eps: float, scale_dtype: np.dtype
) -> Array:
    return _fwd(x_BSD, scale_BD, shift_BD, eps, scale_dtype)[0]


def _fwd(
    x_BSD: Array, scale_BD: Array, shift_BD: Array, eps: float, scale_dtype: np.dtype
) -> tuple[Array, _Residuals]:
    plain = functools.partial(reference_with_statistics, eps=eps)
    y_BSD, mean_BS, rstd_BS = _FWD(
        plain, x_BSD, scale_BD, shift_BD, eps=np.float32(eps)
    )
    return y_BSD, (x_BSD, scale_BD.astype(scale_dtype), mean_BS, rstd_BS)


def _bwd(
    eps: float, scale_dtype: np.dtype, residuals: _Residuals, dy_BSD: Array
) -> tuple[Array, ...]:
    del scale_dtype
    x_BSD, scale_BD, mean_BS, rstd_BS = residuals
    plain = functools.partial(_plain_bwd, eps=eps)
    scale_BD = scale_BD.astype(jnp.float32)
    return _BWD(plain, x_BSD, scale_BD, mean_BS, rstd_BS, dy_BSD)


_layer_norm_modulate.defvjp(_fwd, _bwd)


def _plain_bwd(
    x_BSD: Array,
    scale_BD: Array,
    mean_BS: Array,
    rstd_BS: Array,
    dy_BSD: Array,
    *,
    eps: float,
) -> tuple[Array, ...]:
    del mean_BS, rstd_BS  # JAX differentiates the definition instead.
    reference = functools.partial(layer_norm_modulate_reference, eps=eps)
    # The function is affine in shift, so any shift gives the same gradients.
    _, vjp = jax.vjp(reference, x_BSD, scale_BD, jnp.zeros_like(scale_BD))
    return vjp(dy_BSD)
