"""Attention, by cuDNN's kernels or in plain JAX by blocks of queries."""

# Shape suffixes: B batch, S queries, T keys, N heads, K head width.

import functools
import math

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from jaxload.ops import _sharded_attention
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
    if key_lengths is not None:
        key_lengths, k_BTNK, v_BTNK = _without_padding(key_lengths, k_BTNK, v_BTNK)
    q32_BSNK, k32_BTNK, v32_BTNK = (
        x.astype(jnp.float32) for x in (q_BSNK, k_BTNK, v_BTNK)
    )
    scores_BNST = jnp.einsum("bsnk,btnk->bnst", q32_BSNK, k32_BTNK)
    scores_BNST /= math.sqrt(q_BSNK.shape[-1])
    if key_lengths is not None:
        valid_BT = _is_key(key_lengths, k_BTNK)
        scores_BNST = jnp.where(valid_BT[:, None, None], scores_BNST, -jnp.inf)
    weights_BNST = jax.nn.softmax(scores_BNST, axis=-1)
    out_BSNK = jnp.einsum("bnst,btnk->bsnk", weights_BNST, v32_BTNK)
    return out_BSNK.astype(q_BSNK.dtype)


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
    lengths = []
    if key_lengths is not None:
        lengths_B, k_BTNK, v_BTNK = _without_padding(key_lengths, k_BTNK, v_BTNK)
        lengths = [lengths_B]
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


def _without_padding(
    lengths_B: Array, k_BTNK: Array, v_BTNK: Array
) -> tuple[Array, Array, Array]:
    """Zeros keys and values beyond the lengths, and raises lengths to at least 1.

    Padding, even NaN, then cannot reach any implementation, and a sample of length 0
    attends to one key whose value is zero.
    """
    mask_BT11 = _is_key(lengths_B, k_BTNK)[:, :, None, None]
    k_BTNK, v_BTNK = (
        jnp.where(mask_BT11, x, jnp.zeros((), x.dtype)) for x in (k_BTNK, v_BTNK)
    )
    lengths_B = jnp.clip(lengths_B, 1, k_BTNK.shape[1])
    return lengths_B.astype(jnp.int32), k_BTNK, v_BTNK


def _is_key(lengths_B: Array, k_BTNK: Array) -> Array:
    return jnp.arange(k_BTNK.shape[1])[None] < lengths_B[:, None]


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
    results = _sharded_attention.forward(q_BSNK, k_BTNK, v_BTNK, *lengths)
    out_BSNK, lse_BNS = checkpoint_name(results, name)
    return out_BSNK, (q_BSNK, k_BTNK, v_BTNK, lengths, out_BSNK, lse_BNS)


def _bwd(
    name: str, residuals: _Residuals, dout_BSNK: Array
) -> tuple[Array, Array, Array, tuple[None, ...]]:
    del name
    q_BSNK, k_BTNK, v_BTNK, lengths, out_BSNK, lse_BNS = residuals
    dq_BSNK, dk_BTNK, dv_BTNK = _sharded_attention.backward(
        q_BSNK, k_BTNK, v_BTNK, out_BSNK, lse_BNS, dout_BSNK, *lengths
    )
    return dq_BSNK, dk_BTNK, dv_BTNK, (None,) * len(lengths)


_attention.defvjp(_fwd, _bwd)
