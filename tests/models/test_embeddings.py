"""Tests of jaxload.models.embeddings."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxload.models.embeddings import (
    from_patches,
    rope_widths,
    rotary_table,
    rotate,
    row_lengths,
    timestep_embedding,
    to_patches,
    token_grid,
    without_padding,
)


def test_timestep_embedding_against_the_formula():
    timesteps = np.array([0.0, 12.25, 937.5, 1000.0])
    frequencies = 10_000.0 ** (-np.arange(128) / 128)
    angles = timesteps[:, None] * frequencies
    expected = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    got = timestep_embedding(jnp.asarray(timesteps, jnp.float32))
    np.testing.assert_allclose(got, expected, atol=2e-4)
    np.testing.assert_allclose(got[:2], expected[:2], atol=2e-6)


def test_a_head_of_wan_turns_as_released():
    assert rope_widths(128) == (44, 42, 42)
    assert rope_widths(16) == (8, 4, 4)


def test_angles_of_each_axis_against_the_formula():
    grid, widths = (2, 3, 4), (8, 4, 6)
    cos, sin = (x[0] for x in rotary_table(grid, 24, widths, theta=256.0))
    places = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"))
    angles = np.concatenate(
        [
            place.reshape(-1, 1) * 256.0 ** (-np.arange(0, width, 2) / width)
            for place, width in zip(places, widths, strict=True)
        ],
        axis=1,
    )
    np.testing.assert_allclose(cos, np.cos(angles), atol=1e-7)
    np.testing.assert_allclose(sin, np.sin(angles), atol=1e-7)


def test_each_sample_turns_as_its_own_grid():
    grids, widths = [(2, 3, 4), (1, 5, 2), (7, 1, 1), (0, 0, 0)], (8, 4, 6)
    tables = rotary_table(jnp.asarray(grids, jnp.int32), 24, widths, theta=256.0)
    for i, grid in enumerate(grids):
        length = math.prod(grid)
        for table, alone in zip(
            tables, rotary_table(grid, length, widths, theta=256.0), strict=True
        ):
            assert np.isfinite(table[i]).all()
            np.testing.assert_array_equal(table[i, :length], alone[0])


def test_lengths_and_padding():
    grid = jnp.array([[1, 2, 3], [0, 0, 0]], jnp.int32)
    lengths_B = row_lengths(grid)
    np.testing.assert_array_equal(lengths_B, [6, 0])
    assert row_lengths((1, 2, 3)) is None
    x = without_padding(jnp.full((2, 8, 1), jnp.nan), lengths_B)
    np.testing.assert_array_equal(np.isnan(x[..., 0]).sum(axis=1), [6, 0])
    assert without_padding(x, None) is x


def test_rotation_is_that_of_complex_numbers():
    x = jax.random.normal(jax.random.key(0), (2, 24, 3, 16))
    cos, sin = rotary_table((2, 3, 4), 24, (8, 4, 4), theta=10.0)
    pairs = np.asarray(x).view(np.complex64)
    turned = pairs * (np.asarray(cos) + 1j * np.asarray(sin))[:, :, None]
    np.testing.assert_allclose(
        rotate(x, (cos, sin)), turned.view(np.float32), atol=1e-6
    )


def test_rotation_depends_on_distance_only():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 16))
    cos, sin = rotary_table((1, 1, 12), 12, rope_widths(16), theta=10_000.0)

    def score(i: int, j: int) -> float:
        at_i, at_j = (
            rotate(x, (cos[:, n : n + 1], sin[:, n : n + 1]))
            for x, n in ((q, i), (k, j))
        )
        return float((at_i * at_j).sum())

    np.testing.assert_allclose(score(2, 5), score(8, 11), rtol=1e-4)
    assert abs(score(2, 5) - score(2, 9)) > 1e-3


def test_rotation_of_bfloat16_is_rounded_once():
    x = jax.random.normal(jax.random.key(0), (1, 12, 1, 16)).astype(jnp.bfloat16)
    table = rotary_table((1, 1, 12), 12, rope_widths(16), theta=10_000.0)
    exact = rotate(x.astype(jnp.float32), table).astype(jnp.bfloat16)
    np.testing.assert_array_equal(rotate(x, table), exact)


@pytest.mark.parametrize("patch", [(1, 1, 1), (3, 2, 1), (1, 4, 6)])
def test_patches_of_any_size_round_trip(patch: tuple[int, int, int]):
    latent = jax.random.normal(jax.random.key(0), (2, 3, 4, 6, 16))
    grid = token_grid(latent.shape, patch)
    patches = to_patches(latent, patch)
    assert patches.shape == (2, math.prod(grid), 16 * math.prod(patch))
    np.testing.assert_array_equal(from_patches(patches, grid, patch), latent)
    # The last token ends with the last pixel.
    np.testing.assert_array_equal(patches[:, -1, -16:], latent[:, -1, -1, -1])


def test_patches_round_trip():
    latent = jax.random.normal(jax.random.key(0), (2, 3, 4, 6, 16))
    patches = to_patches(latent, (1, 2, 2))
    assert patches.shape == (2, 3 * 2 * 3, 64)
    np.testing.assert_array_equal(from_patches(patches, (3, 2, 3), (1, 2, 2)), latent)
    # A token holds one 2x2 square: the second is the next along the width.
    np.testing.assert_array_equal(
        patches[0, 1].reshape(2, 2, 16), latent[0, 0, :2, 2:4]
    )
