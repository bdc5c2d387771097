"""Patches, rotary position embeddings and timestep embeddings."""

# Shape suffixes: B batch, F H W latent frames, height and width, C channels, S tokens,
# N heads, K head width, P channels of a patch, R rotations: half of K.

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxload.models.transformer_config import TIME_WIDTH

_MAX_PERIOD = 10_000.0

Patch = tuple[int, int, int]
"""Latent frames, rows and columns per token."""

Rotary = tuple[Float[Array, "s r"], Float[Array, "s r"]]
"""Cosines and sines of each token's rotation angles."""


def timestep_embedding(timestep_B: Float[Array, " b"]) -> Float[Array, "b width"]:
    """Embeds timesteps in [0, 1000] as cosines and sines, in float32."""
    half = TIME_WIDTH // 2
    # The exponents are rounded to float32 as in the reference: a frequency that differs
    # in its last bit changes the angle by 6e-5 over a thousand timesteps.
    exponents = np.float32(-math.log(_MAX_PERIOD)) * np.arange(half, dtype=np.float32)
    frequencies = np.exp((exponents / np.float32(half)).astype(np.float64))
    frequencies = frequencies.astype(np.float32)
    angles = timestep_B.astype(jnp.float32)[:, None] * frequencies[None]
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


def rope_widths(head_width: int) -> tuple[int, int, int]:
    """Splits a head's channels among frames, rows and columns, about a third each."""
    spatial = 2 * (head_width // 6)
    return head_width - 2 * spatial, spatial, spatial


def rotary_table(grid: Sequence[int], widths: Sequence[int], *, theta: float) -> Rotary:
    """Computes the rotary table of all tokens of a (frames, rows, columns) grid.

    Args:
        grid: Number of tokens along each axis.
        widths: Channels of a head that rotate with each axis; even numbers.
        theta: Base of the frequencies; periods range from 2 pi to 2 pi theta tokens.
    """
    cosines, sines = [], []
    for axis, (count, width) in enumerate(zip(grid, widths, strict=True)):
        # Computed in float64 and rounded once. Cheap: the tables are one per axis.
        frequencies = theta ** -(np.arange(0, width, 2) / width)
        angles = np.arange(count)[:, None] * frequencies[None]
        shape = [1, 1, 1, width // 2]
        shape[axis] = count
        for tables, function in ((cosines, np.cos), (sines, np.sin)):
            table = jnp.asarray(function(angles), jnp.float32).reshape(shape)
            tables.append(jnp.broadcast_to(table, (*grid, width // 2)))
    num_tokens, num_rotations = math.prod(grid), sum(widths) // 2
    cos, sin = (
        jnp.concatenate(tables, axis=-1).reshape(num_tokens, num_rotations)
        for tables in (cosines, sines)
    )
    return cos, sin


def rotate(x_BSNK: Float[Array, "b s n k"], rotary: Rotary) -> Float[Array, "b s n k"]:
    """Rotates each pair of neighbouring channels by its token's angles, in float32."""
    cos, sin = (table[None, :, None] for table in rotary)
    pairs = x_BSNK.astype(jnp.float32).reshape(*x_BSNK.shape[:-1], -1, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    rotated = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return rotated.reshape(x_BSNK.shape).astype(x_BSNK.dtype)


def token_grid(latent_shape: Sequence[int], patch: Patch) -> tuple[int, int, int]:
    """Counts tokens along frames, rows and columns of a latent `[B, F, H, W, C]`."""
    frames, height, width = (
        size // step for size, step in zip(latent_shape[1:4], patch, strict=True)
    )
    return frames, height, width


def to_patches(
    latent_BFHWC: Float[Array, "b f h w c"], patch: Patch
) -> Float[Array, "b s p"]:
    """Cuts a latent into tokens; the order is frame-major, columns vary fastest."""
    b, _, _, _, c = latent_BFHWC.shape
    (f, h, w), (pf, ph, pw) = token_grid(latent_BFHWC.shape, patch), patch
    x = latent_BFHWC.reshape(b, f, pf, h, ph, w, pw, c)
    return x.transpose(0, 1, 3, 5, 2, 4, 6, 7).reshape(b, f * h * w, pf * ph * pw * c)


def from_patches(
    x_BSP: Float[Array, "b s p"], grid: tuple[int, int, int], patch: Patch
) -> Float[Array, "b f h w c"]:
    """Reassembles the tokens of a grid into a latent; inverts `to_patches`."""
    (f, h, w), (pf, ph, pw) = grid, patch
    x = x_BSP.reshape(x_BSP.shape[0], f, h, w, pf, ph, pw, -1)
    x = x.transpose(0, 1, 4, 2, 5, 3, 6, 7)
    return x.reshape(x.shape[0], f * pf, h * ph, w * pw, x.shape[-1])
