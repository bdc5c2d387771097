"""Attention, by cuDNN's kernels or in plain JAX by blocks of queries."""

# Shape suffixes: B batch, S queries, T keys, N heads, K head width.

import functools
import math

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from jaxload.ops import _cudnn_attention, _sharded_attention
from jaxload.ops._arguments import vary_alike

_DTYPES = ("float32", "bfloat16", "float16")

SAVED = "attention"
"""Default name of the output and its logsumexp in `jax.checkpoint` policies."""

# Residuals of the backward pass: q, k, v, key lengths if any, output and logsumexp.
_Residuals = tuple[Array, Array, Array, tuple[Array, ...], Array, Array]


def attention_reference(
    q_BSNK: Float[Array, "b s n k"],
    k_BTNK: Float[Array, "b t n k"],
    v_BTNK: Float[Array, "b t n k"],
    *,
    key_lengths: Int[Array, " b"] | None = None,
) -> Float[Array, "b s n k"]:
    """Defines `attention` in plain JAX, materializing the scores of all pairs."""
    lengths = () if key_lengths is None else (key_lengths,)
    k_BTNK, v_BTNK = (_without_padding(x, lengths) for x in (k_BTNK, v_BTNK))
    q32_BSNK, k32_BTNK, v32_BTNK = (
        x.astype(jnp.float32) for x in (q_BSNK, k_BTNK, v_BTNK)
    )
    scores_BNST = jnp.einsum("bsnk,btnk->bnst", q32_BSNK, k32_BTNK)
    scores_BNST /= math.sqrt(q_BSNK.shape[-1])
    for lengths_B in _at_least_one(lengths, k_BTNK.shape[1]):
        valid_BT = _is_key(lengths_B, k_BTNK)
        scores_BNST = jnp.where(valid_BT[:, None, None], scores_BNST, -jnp.inf)
    weights_BNST = jax.nn.softmax(scores_BNST, axis=-1)
    out_BSNK = jnp.einsum("bnst,btnk->bsnk", weights_BNST, v32_BTNK)
    return out_BSNK.astype(q_BSNK.dtype)


def skips_padding_on_gpus(dtype: str, head_width: int) -> bool:
    """Returns whether attention on GPUs takes no time for keys beyond the lengths."""
    return _cudnn_attention.supports(dtype, head_width)


def attention(
    q_BSNK: Float[Array, "b s n k"],
    k_BTNK: Float[Array, "b t n k"],
    v_BTNK: Float[Array, "b t n k"],
    *,
    key_lengths: Int[Array, " b"] | None = None,
    name: str = SAVED,
) -> Float[Array, "b s n k"]:
    """Returns `softmax(q k^T / sqrt(K)) v` in the dtype of q.

    Scores and softmax are in float32. Memory is linear in S and in T, forward and
    backward. The implementation is cuDNN's flash attention on CUDA in bfloat16 and
    float16, for head widths that cuDNN supports, and blocks of queries in plain JAX
    otherwise. On a mesh, batch and heads may be sharded and stay sharded; sharded
    tokens or head widths are gathered. Differentiable once, in reverse mode.

    Under `jax.checkpoint`, a policy that saves `name` keeps the output and its
    logsumexp, so that the backward pass does not recompute attention.

    Args:
        q_BSNK: float32, bfloat16 or float16.
        k_BTNK: The dtype of q.
        v_BTNK: The dtype of q.
        key_lengths: Number of keys that each sample attends to, from the first; the
            keys and values after them have no effect. A sample of length 0 gets zeros.
        name: Name of the output and its logsumexp in `jax.checkpoint` policies.

    Raises:
        ValueError: A shape or a dtype is not as above.
    """
    _check_arguments(q_BSNK, k_BTNK, v_BTNK, key_lengths)
    lengths = [] if key_lengths is None else [key_lengths.astype(jnp.int32)]
    q_BSNK, k_BTNK, v_BTNK, *lengths = vary_alike(q_BSNK, k_BTNK, v_BTNK, *lengths)
    return _attention(q_BSNK, k_BTNK, v_BTNK, tuple(lengths), name)


def _check_arguments(
    q_BSNK: Array, k_BTNK: Array, v_BTNK: Array, lengths_B: Array | None
):
    if q_BSNK.ndim != 4 or 0 in q_BSNK.shape:
        raise ValueError(
            "attention: expected q of shape [batch, queries, heads, head width], none "
            f"of them 0, got {q_BSNK.shape}"
        )
    if q_BSNK.dtype not in _DTYPES:
        raise ValueError(
            f"attention: expected q of dtype {', '.join(_DTYPES)}, got {q_BSNK.dtype}"
        )
    batch, _, num_heads, head_width = q_BSNK.shape
    if (
        k_BTNK.ndim != 4
        or k_BTNK.shape != (batch, k_BTNK.shape[1], num_heads, head_width)
        or k_BTNK.shape[1] == 0
    ):
        raise ValueError(
            f"attention: expected k of shape ({batch}, keys, {num_heads}, "
            f"{head_width}) for q of shape {q_BSNK.shape}, with 1 key or more; got "
            f"{k_BTNK.shape}"
        )
    if v_BTNK.shape != k_BTNK.shape:
        raise ValueError(
            f"attention: expected v of shape {k_BTNK.shape}, as k, got {v_BTNK.shape}"
        )
    for name, array in (("k", k_BTNK), ("v", v_BTNK)):
        if array.dtype != q_BSNK.dtype:
            raise ValueError(
                f"attention: expected {name} of dtype {q_BSNK.dtype}, as q, got "
                f"{array.dtype}"
            )
    if lengths_B is not None and (
        lengths_B.shape != (batch,) or not jnp.issubdtype(lengths_B.dtype, jnp.integer)
    ):
        raise ValueError(
            f"attention: expected key_lengths of shape ({batch},) and of integers, got "
            f"{lengths_B.dtype} {lengths_B.shape}"
        )


def _without_padding(x_BTNK: Array, lengths: tuple[Array, ...]) -> Array:
    """Zeros what is beyond the lengths, if there are any.

    Padding, even NaN, then cannot reach any implementation, nor can what cuDNN leaves
    in gradients beyond the lengths reach those of the weights. Masked inside of the
    custom_vjp, because JAX would otherwise keep a mask of the shape of x for the
    backward pass.
    """
    if not lengths:
        return x_BTNK
    (lengths_B,) = lengths
    mask_BT11 = _is_key(lengths_B, x_BTNK)[:, :, None, None]
    # A constant would be computed before a loop over blocks, in the shape of x.
    zero_B111 = (0 * lengths_B).astype(x_BTNK.dtype)[:, None, None, None]
    return jnp.where(mask_BT11, x_BTNK, zero_B111)


def _is_key(lengths_B: Array, x_BTNK: Array) -> Array:
    return jnp.arange(x_BTNK.shape[1])[None] < lengths_B[:, None]


def _at_least_one(lengths: tuple[Array, ...], num_keys: int) -> tuple[Array, ...]:
    """Raises lengths of 0 to 1: such a sample attends to one key of value zero."""
    return tuple(jnp.clip(lengths_B, 1, num_keys) for lengths_B in lengths)


# The platform is chosen inside of the custom_vjp, not around it, so that all platforms
# save the same residuals, none of them quadratic in tokens.


@functools.partial(jax.custom_vjp, nondiff_argnames=("name",))
def _attention(
    q_BSNK: Array, k_BTNK: Array, v_BTNK: Array, lengths: tuple[Array, ...], name: str
) -> Array:
    return _fwd(q_BSNK, k_BTNK, v_BTNK, lengths, name)[0]


def _fwd(
    q_BSNK: Array, k_BTNK: Array, v_BTNK: Array, lengths: tuple[Array, ...], name: str
) -> tuple[Array, _Residuals]:
    k_BTNK, v_BTNK = (_without_padding(x, lengths) for x in (k_BTNK, v_BTNK))
    num_keys = _at_least_one(lengths, k_BTNK.shape[1])
    results = _sharded_attention.forward(q_BSNK, k_BTNK, v_BTNK, *num_keys)
    out_BSNK, lse_BNS = checkpoint_name(results, name)
    return out_BSNK, (q_BSNK, k_BTNK, v_BTNK, lengths, out_BSNK, lse_BNS)


def _bwd(
    name: str, residuals: _Residuals, dout_BSNK: Array
) -> tuple[Array, Array, Array, tuple[None, ...]]:
    del name
    q_BSNK, k_BTNK, v_BTNK, lengths, out_BSNK, lse_BNS = residuals
    num_keys = _at_least_one(lengths, k_BTNK.shape[1])
    dq_BSNK, dk_BTNK, dv_BTNK = _sharded_attention.backward(
        q_BSNK, k_BTNK, v_BTNK, out_BSNK, lse_BNS, dout_BSNK, *num_keys
    )
    dk_BTNK, dv_BTNK = (_without_padding(x, lengths) for x in (dk_BTNK, dv_BTNK))
    return dq_BSNK, dk_BTNK, dv_BTNK, (None,) * len(lengths)


_attention.defvjp(_fwd, _bwd)
