"""Patches, rotary position embeddings and timestep embeddings."""

# Shape suffixes: B batch, F H W latent frames, height and width, C channels, S tokens,
# N heads, K head width, P channels of a patch, R rotations: half of K, A: B, or 1 for
# all samples.

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxload.models.transformer_config import TIME_WIDTH

_MAX_PERIOD = 10_000.0

Patch = tuple[int, int, int]
"""Latent frames, rows and columns per token."""

Grid = tuple[int, int, int] | Int[Array, "b 3"]
"""Tokens along frames, rows and columns: of all samples alike, or of each sample.

If each sample has a grid of its own, its tokens come first, and padding follows.
"""

Rotary = tuple[Float[Array, "a s r"], Float[Array, "a s r"]]
"""Cosines and sines of each token's rotation angles."""

MAX_POSITION = 1_024
"""Upper bound on the tokens along each axis, if each sample has a grid of its own."""


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


def row_lengths(grid: Grid) -> Int[Array, " b"] | None:
    """Returns the number of tokens of each sample; None if all samples are alike."""
    return None if isinstance(grid, tuple) else grid.prod(axis=1)


def without_padding(
    x_BSP: Float[Array, "b s p"], lengths_B: Int[Array, " b"] | None
) -> Float[Array, "b s p"]:
    """Zeros the tokens beyond the lengths; multiplication would keep NaNs."""
    if lengths_B is None:
        return x_BSP
    is_token_BS = jnp.arange(x_BSP.shape[1])[None] < lengths_B[:, None]
    return jnp.where(is_token_BS[..., None], x_BSP, jnp.zeros((), x_BSP.dtype))


def rotary_table(
    grid: Grid, num_tokens: int, widths: Sequence[int], *, theta: float
) -> Rotary:
    """Computes the rotary table of all tokens.

    Args:
        grid: Tokens along each axis. Padding after a sample's own tokens gets angles of
            no meaning.
        num_tokens: Tokens of a sample, with padding.
        widths: Channels of a head that rotate with each axis; even numbers.
        theta: Base of the frequencies; periods range from 2 pi to 2 pi theta tokens.
    """
    cosines, sines = [], []
    for axis, width in enumerate(widths):
        count = grid[axis] if isinstance(grid, tuple) else MAX_POSITION
        # Computed in float64 and rounded once. Cheap: the tables are one per axis.
        frequencies = theta ** -(np.arange(0, width, 2) / width)
        angles = np.arange(count)[:, None] * frequencies[None]
        for tables, function in ((cosines, np.cos), (sines, np.sin)):
            table = jnp.asarray(function(angles), jnp.float32)
            tables.append(_at_positions(table, axis, grid, num_tokens))
    cos, sin = (jnp.concatenate(tables, axis=-1) for tables in (cosines, sines))
    return cos, sin


def _at_positions(table: Array, axis: int, grid: Grid, num_tokens: int) -> Array:
    """Returns the rows of an axis's table for all tokens, `[A, S, width]`."""
    width = table.shape[1]
    if isinstance(grid, tuple):
        shape = [1, 1, 1, width]
        shape[axis] = len(table)
        table = jnp.broadcast_to(table.reshape(shape), (*grid, width))
        return table.reshape(1, num_tokens, width)
    index_1S = jnp.arange(num_tokens, dtype=jnp.int32)[None]
    # At least 1, because a row without a sample has a grid of zeros.
    _, rows_B1, columns_B1 = jnp.split(jnp.maximum(grid, 1), 3, axis=1)
    position_BS = (
        index_1S // (rows_B1 * columns_B1),
        index_1S // columns_B1 % rows_B1,
        index_1S % columns_B1,
    )[axis]
    # Padding would continue with further frames.
    return table[jnp.minimum(position_BS, MAX_POSITION - 1)]


def rotate(x_BSNK: Float[Array, "b s n k"], rotary: Rotary) -> Float[Array, "b s n k"]:
    """Rotates each pair of neighbouring channels by its token's angles, in float32."""
    cos, sin = (table[:, :, None] for table in rotary)
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
