"""Attention in plain JAX by blocks of queries, with memory linear in tokens."""

# Shape suffixes: B batch, S queries, T keys, N heads, K head width, Q the queries of a
# block; 1 for an axis kept by a reduction.

import contextlib
import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array

# Maximum queries per block: the fastest values in measurements with XLA on CPU. With
# fewer rows, matmuls are slower; with more, the scores overflow the CPU's caches.
_FORWARD_BLOCK = 512
_BACKWARD_BLOCK = 256

# Rows per block are a multiple of this number, so that matmuls vectorize fully.
_BLOCK_MULTIPLE = 16


def forward(
    q_BSNK: Array, k_BTNK: Array, v_BTNK: Array, lengths_B: Array | None = None
) -> tuple[Array, Array]:
    """Returns the attention output, and the scores' logsumexp [B, N, S] in float32."""
    num_queries = q_BSNK.shape[1]
    k_BNTK, v_BNTK = _heads_first(k_BTNK), _heads_first(v_BTNK)
    bias_BT = _bias(lengths_B, k_BTNK)

    def of_sample(sample):
        q_NxQK, k_NTK, v_NTK, bias_T = sample

        def of_head(head):
            q_xQK, k_TK, v_TK = head
            block = functools.partial(_forward_block, k_TK, v_TK, bias_T)
            return jax.lax.map(block, q_xQK)

        return jax.lax.map(of_head, (q_NxQK, k_NTK, v_NTK))

    q_BNxQK = _blocks(_heads_first(q_BSNK) * _scale(q_BSNK), _FORWARD_BLOCK)
    with _precision(q_BSNK):
        out_BNxQK, lse_BNxQ = jax.lax.map(of_sample, (q_BNxQK, k_BNTK, v_BNTK, bias_BT))
    out_BNSK, lse_BNS = (_join(x, num_queries) for x in (out_BNxQK, lse_BNxQ))
    return jnp.swapaxes(out_BNSK, 1, 2).astype(q_BSNK.dtype), lse_BNS


def _forward_block(
    k_TK: Array, v_TK: Array, bias_T: Array | None, q_QK: Array
) -> tuple[Array, Array]:
    scores_QT = q_QK @ k_TK.T
    if bias_T is not None:
        scores_QT += bias_T[None]
    max_Q1 = scores_QT.max(axis=1, keepdims=True)
    weights_QT = jnp.exp(scores_QT - max_Q1)
    sum_Q1 = weights_QT.sum(axis=1, keepdims=True)
    out_QK = (weights_QT @ v_TK) / sum_Q1
    return out_QK, (max_Q1 + jnp.log(sum_Q1))[:, 0]


def backward(
    q_BSNK: Array,
    k_BTNK: Array,
    v_BTNK: Array,
    out_BSNK: Array,
    lse_BNS: Array,
    dout_BSNK: Array,
    lengths_B: Array | None = None,
) -> tuple[Array, ...]:
    """Returns the gradients of queries, keys and values."""
    num_queries, scale = q_BSNK.shape[1], _scale(q_BSNK)
    # sum(out * dout): the term of the scores' gradient that is the same for all keys.
    # Samples and queries are merged, as XLA multiplies and sums a batch of 1 slowly.
    out_xNK, dout_xNK = (
        x.astype(jnp.float32).reshape(-1, *x.shape[2:]) for x in (out_BSNK, dout_BSNK)
    )
    common_BSN = (out_xNK * dout_xNK).sum(-1).reshape(q_BSNK.shape[:3])
    rows = tuple(
        _blocks(x, _BACKWARD_BLOCK)
        for x in (
            _heads_first(q_BSNK) * scale,
            lse_BNS,
            _heads_first(dout_BSNK),
            jnp.swapaxes(common_BSN, 1, 2),
        )
    )
    bias_BT = _bias(lengths_B, k_BTNK)

    def of_sample(sample):
        rows_Nx, k_NTK, v_NTK, bias_T = sample

        def of_head(head):
            rows_x, k_TK, v_TK = head
            block = functools.partial(_backward_block, k_TK, v_TK, bias_T)
            zeros = jnp.zeros_like(k_TK), jnp.zeros_like(v_TK)
            return jax.lax.scan(block, zeros, rows_x)

        return jax.lax.map(of_head, (rows_Nx, k_NTK, v_NTK))

    samples = rows, _heads_first(k_BTNK), _heads_first(v_BTNK), bias_BT
    with _precision(q_BSNK):
        (dk_BNTK, dv_BNTK), dq_BNxKQ = jax.lax.map(of_sample, samples)
    dq_BNxQK = jnp.swapaxes(dq_BNxKQ, -1, -2)
    dq_BNSK = _join(dq_BNxQK, num_queries) * scale
    return tuple(
        jnp.swapaxes(gradient, 1, 2).astype(q_BSNK.dtype)
        for gradient in (dq_BNSK, dk_BNTK, dv_BNTK)
    )


def _backward_block(
    k_TK: Array,
    v_TK: Array,
    bias_T: Array | None,
    sums: tuple[Array, Array],
    rows: tuple[Array, Array, Array, Array],
) -> tuple[tuple[Array, Array], Array]:
    """Accumulates the gradients of keys and values; returns the queries' as [K, Q]."""
    dk_TK, dv_TK = sums
    q_QK, lse_Q, dout_QK, common_Q = rows
    # With keys as the first axis, no matmul has to transpose a large array.
    scores_TQ = k_TK @ q_QK.T
    if bias_T is not None:
        scores_TQ += bias_T[:, None]
    weights_TQ = jnp.exp(scores_TQ - lse_Q[None])
    dweights_TQ = v_TK @ dout_QK.T
    dscores_TQ = weights_TQ * (dweights_TQ - common_Q[None])
    dk_TK += dscores_TQ @ q_QK
    dv_TK += weights_TQ @ dout_QK
    return (dk_TK, dv_TK), k_TK.T @ dscores_TQ


def _precision(q_BSNK: Array) -> contextlib.AbstractContextManager:
    """Sets full matmul precision for float32; a GPU's default, TF32, has 10 bits."""
    exact = q_BSNK.dtype == jnp.float32
    return jax.default_matmul_precision("highest" if exact else None)


def _scale(q_BSNK: Array) -> float:
    return 1 / math.sqrt(q_BSNK.shape[-1])


def _bias(lengths_B: Array | None, k_BTNK: Array) -> Array | None:
    """Returns 0 for keys within the lengths, minus infinity for others; or None."""
    if lengths_B is None:
        return None
    valid_BT = jnp.arange(k_BTNK.shape[1])[None] < lengths_B[:, None]
    return jnp.where(valid_BT, 0.0, -jnp.inf).astype(jnp.float32)


def _heads_first(x_BSNK: Array) -> Array:
    return jnp.swapaxes(x_BSNK.astype(jnp.float32), 1, 2)


def _blocks(x_BNS: Array, max_block: int) -> Array:
    """Splits queries into blocks of nearly equal size, to minimize padding."""
    num_queries = x_BNS.shape[2]
    num_blocks = math.ceil(num_queries / max_block)
    block = math.ceil(num_queries / num_blocks)
    if num_blocks > 1:
        block = _BLOCK_MULTIPLE * math.ceil(block / _BLOCK_MULTIPLE)
    padding = [(0, 0)] * x_BNS.ndim
    padding[2] = (0, num_blocks * block - num_queries)
    x_BNS = jnp.pad(x_BNS, padding)
    return x_BNS.reshape(*x_BNS.shape[:2], num_blocks, block, *x_BNS.shape[3:])


def _join(x_BNxQ: Array, num_queries: int) -> Array:
    """Inverts `_blocks` and drops the padding."""
    shape = x_BNxQ.shape
    x_BNS = x_BNxQ.reshape(*shape[:2], shape[2] * shape[3], *shape[4:])
    return x_BNS[:, :, :num_queries]
