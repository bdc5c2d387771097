"""Layer norm without parameters, then a scale and a shift per sample (adaLN).

A diffusion transformer takes this step before every attention and every MLP.
"""

# Shape suffixes: B batch, S tokens, D width; 1 for an axis kept by a reduction.

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxload.ops import _ffi

_DTYPES = ("float32", "bfloat16", "float16")

# What the backward pass needs: x, scale, mean and 1 / standard deviation.
_Residuals = tuple[Array, Array, Array, Array]


def layer_norm_modulate_reference(
    x_BSD: Float[Array, "b s d"],
    scale_BD: Float[Array, "b d"],
    shift_BD: Float[Array, "b d"],
    *,
    eps: float = 1e-6,
) -> Float[Array, "b s d"]:
    """Defines `layer_norm_modulate` in plain JAX; every kernel must agree with it."""
    return _reference_fwd(x_BSD, scale_BD, shift_BD, eps=eps)[0]


def _reference_fwd(
    x_BSD: Array, scale_BD: Array, shift_BD: Array, *, eps: float
) -> tuple[Array, Array, Array]:
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

    Statistics are taken over the last axis, and all arithmetic is in float32. Where a
    kernel was built for the platform that XLA lowers to, it runs; elsewhere the plain
    form does. Differentiable once, in reverse mode.

    Args:
        x_BSD: float32, bfloat16 or float16.
        scale_BD: float32, or the dtype of x.
        shift_BD: The dtype of scale.
        eps: Added to the variance.

    Raises:
        ValueError: A shape, a dtype or eps is not as above.
    """
    _check_arguments(x_BSD, scale_BD, shift_BD, eps)
    return _layer_norm_modulate(*_vary_alike(x_BSD, scale_BD, shift_BD), float(eps))


def _check_arguments(x_BSD: Array, scale_BD: Array, shift_BD: Array, eps: float):
    if x_BSD.ndim != 3:
        raise ValueError(
            "layer_norm_modulate: expected x of shape [batch, tokens, width], got "
            f"{x_BSD.shape}"
        )
    if x_BSD.dtype not in _DTYPES:
        raise ValueError(
            f"layer_norm_modulate: expected x of dtype {', '.join(_DTYPES)}, got "
            f"{x_BSD.dtype}"
        )
    shape_BD = (x_BSD.shape[0], x_BSD.shape[2])
    for name, array in (("scale", scale_BD), ("shift", shift_BD)):
        if array.shape != shape_BD:  # [1, D] would broadcast without a word.
            raise ValueError(
                f"layer_norm_modulate: expected {name} of shape {shape_BD} for x of "
                f"shape {x_BSD.shape}, got {array.shape}"
            )
    if scale_BD.dtype not in ("float32", x_BSD.dtype):
        raise ValueError(
            "layer_norm_modulate: expected scale of dtype float32 or, as x, "
            f"{x_BSD.dtype}; got {scale_BD.dtype}"
        )
    if shift_BD.dtype != scale_BD.dtype:
        raise ValueError(
            f"layer_norm_modulate: expected shift of dtype {scale_BD.dtype}, as scale, "
            f"got {shift_BD.dtype}"
        )
    if not eps > 0:
        raise ValueError(f"layer_norm_modulate: expected eps > 0, got {eps}")


def _vary_alike(*arrays: Array) -> list[Array]:
    """Within shard_map, marks all arrays as varying over the axes that any varies over.

    When shards of x share a scale, the gradient of this marking adds up what they each
    find for it; the backward pass below sees one shard only.
    """
    varying = [jax.typeof(array).manual_axis_type.varying for array in arrays]
    axes = frozenset().union(*varying)
    return [
        jax.lax.pcast(array, tuple(sorted(axes - own)), to="varying")
        for array, own in zip(arrays, varying, strict=True)
    ]


# The platform is chosen inside of the custom_vjp and not around it, so that each one
# saves the same for the backward pass: x and its statistics, and nothing else that is
# as large as x. Around it, what any one platform saves would be saved for all.


@functools.partial(jax.custom_vjp, nondiff_argnames=("eps",))
def _layer_norm_modulate(
    x_BSD: Array, scale_BD: Array, shift_BD: Array, eps: float
) -> Array:
    return _fwd(x_BSD, scale_BD, shift_BD, eps)[0]


def _fwd(
    x_BSD: Array, scale_BD: Array, shift_BD: Array, eps: float
) -> tuple[Array, _Residuals]:
    y_BSD, mean_BS, rstd_BS = jax.lax.platform_dependent(
        x_BSD,
        scale_BD,
        shift_BD,
        default=functools.partial(_reference_fwd, eps=eps),
        **dict.fromkeys(_ffi.platforms(), functools.partial(_kernel_fwd, eps=eps)),
    )
    return y_BSD, (x_BSD, scale_BD, mean_BS, rstd_BS)


def _bwd(
    eps: float, residuals: _Residuals, dy_BSD: Array
) -> tuple[Array, Array, Array]:
    return jax.lax.platform_dependent(
        *residuals,
        dy_BSD,
        default=functools.partial(_reference_bwd, eps=eps),
        **dict.fromkeys(_ffi.platforms(), _kernel_bwd),
    )


_layer_norm_modulate.defvjp(_fwd, _bwd)


def _reference_bwd(
    x_BSD: Array,
    scale_BD: Array,
    mean_BS: Array,
    rstd_BS: Array,
    dy_BSD: Array,
    *,
    eps: float,
) -> tuple[Array, Array, Array]:
    del mean_BS, rstd_BS  # Computed again: JAX derives this from the one definition.
    reference = functools.partial(layer_norm_modulate_reference, eps=eps)
    # The function is affine in shift, so that any shift gives the same gradients.
    _, vjp = jax.vjp(reference, x_BSD, scale_BD, jnp.zeros_like(scale_BD))
    return vjp(dy_BSD)


# The kernels take leading axes as more batch, which is what "broadcast_all" gives them
# under vmap: one call, and no loop over the mapped axis. Result types are copied rather
# than spelled out, because they also hold shardings, in which the platforms must agree.


def _kernel_fwd(
    x_BSD: Array, scale_BD: Array, shift_BD: Array, *, eps: float
) -> tuple[Array, Array, Array]:
    reference = functools.partial(_reference_fwd, eps=eps)
    y_BSD, mean_BS, rstd_BS = jax.ffi.ffi_call(
        "jaxload_layer_norm_modulate_fwd",
        jax.eval_shape(reference, x_BSD, scale_BD, shift_BD),
        vmap_method="broadcast_all",
    )(x_BSD, scale_BD, shift_BD, eps=np.float32(eps))
    return y_BSD, mean_BS, rstd_BS


def _kernel_bwd(
    x_BSD: Array, scale_BD: Array, mean_BS: Array, rstd_BS: Array, dy_BSD: Array
) -> tuple[Array, Array, Array]:
    dx_BSD, dscale_BD, dshift_BD = jax.ffi.ffi_call(
        "jaxload_layer_norm_modulate_bwd",
        (jax.typeof(x_BSD), jax.typeof(scale_BD), jax.typeof(scale_BD)),
        vmap_method="broadcast_all",
    )(x_BSD, scale_BD, mean_BS, rstd_BS, dy_BSD)
    return dx_BSD, dscale_BD, dshift_BD
