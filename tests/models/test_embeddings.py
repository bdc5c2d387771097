"""Tests of jaxload.models.embeddings."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxload.models.embeddings import rotary_angles, rotate, timestep_embedding


def test_timestep_embedding_against_the_formula():
    sigma = np.array([0.0, 0.3, 1.0])
    frequencies = 10_000.0 ** (-np.arange(4) / 4)
    angles = 1_000 * sigma[:, None] * frequencies
    expected = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    got = timestep_embedding(jnp.asarray(sigma, jnp.float32), 8)
    np.testing.assert_allclose(got, expected, atol=2e-4)


def test_angles_of_each_axis_grow_along_it_alone():
    angles = rotary_angles((2, 3, 4), 16).reshape(2, 3, 4, 8)
    frames, rows, columns = angles[..., :4], angles[..., 4:6], angles[..., 6:]
    np.testing.assert_array_equal(frames[:, 0, 0, 0], [0, 1])
    np.testing.assert_array_equal(rows[0, :, 0, 0], [0, 1, 2])
    np.testing.assert_array_equal(columns[0, 0, :, 0], [0, 1, 2, 3])
    assert not np.ptp(frames, axis=(1, 2)).any()


def test_rotation_keeps_length_and_depends_on_distance_only():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 16))
    angles = rotary_angles((1, 1, 12), 16)

    def score(i: int, j: int) -> float:
        at_i, at_j = rotate(q, angles[i : i + 1]), rotate(k, angles[j : j + 1])
        np.testing.assert_allclose(np.linalg.norm(at_i), np.linalg.norm(q), rtol=1e-5)
        return float((at_i * at_j).sum())

    np.testing.assert_allclose(score(2, 5), score(8, 11), rtol=1e-4)
    assert abs(score(2, 5) - score(2, 9)) > 1e-3
