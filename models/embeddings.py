"""Position and time as the model sees them."""

import jax.numpy as jnp
from jaxtyping import Array, Float

_MAX_PERIOD = 10_000.0
_MAX_TIMESTEP = 1_000.0  # The network sees noise levels as 0..1000, as is customary.


def timestep_embedding(
    sigma_B: Float[Array, " b"], width: int
) -> Float[Array, "b width"]:
    """Embeds noise levels in [0, 1] as cosines and sines, in float32."""
    half = width // 2
    frequencies = _MAX_PERIOD ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = (_MAX_TIMESTEP * sigma_B.astype(jnp.float32))[:, None] * frequencies[None]
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


def rotary_angles(grid: tuple[int, int, int], head_width: int) -> Float[Array, "s r"]:
    """Rotation angles of every token of a (frames, rows, columns) grid.

    Each head spends about a third of its pairs of channels on each axis, with frames
    taking what is left over.
    """
    pairs = head_width // 2
    spatial = pairs // 3
    axes = []
    for axis, count in enumerate((pairs - 2 * spatial, spatial, spatial)):
        frequencies = _MAX_PERIOD ** (
            -jnp.arange(count, dtype=jnp.float32) / max(count, 1)
        )
        positions = jnp.arange(grid[axis], dtype=jnp.float32)
        angles = positions[:, None] * frequencies[None]
        shape = [1, 1, 1, count]
        shape[axis] = grid[axis]
        axes.append(jnp.broadcast_to(angles.reshape(shape), (*grid, count)))
    return jnp.concatenate(axes, axis=-1).reshape(-1, pairs)


def rotate(
    x_BSNK: Float[Array, "b s n k"], angles_SR: Float[Array, "s r"]
) -> Float[Array, "b s n k"]:
    """Rotates neighbouring pairs of channels by the tokens' angles."""
    cos = jnp.cos(angles_SR)[None, :, None].astype(x_BSNK.dtype)
    sin = jnp.sin(angles_SR)[None, :, None].astype(x_BSNK.dtype)
    even, odd = x_BSNK[..., 0::2], x_BSNK[..., 1::2]
    rotated = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return rotated.reshape(x_BSNK.shape)
