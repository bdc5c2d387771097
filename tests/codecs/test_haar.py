"""Tests of jaxload.codecs.haar."""

import numpy as np
import pytest

from jaxload.codecs.haar import HaarCodec, haar_basis
from jaxload.errors import InputError
from jaxload.media.synthetic import random_scene

CODEC = HaarCodec()


def test_rows_of_the_transform_are_orthonormal():
    basis = haar_basis().astype(np.float64)
    assert basis.shape == (16, 4 * 8 * 8 * 3)
    np.testing.assert_allclose(basis @ basis.T, np.eye(16), atol=1e-6)


@pytest.mark.parametrize("frames", [1, 5, 17])
def test_strides_are_those_of_wan(frames):
    video = np.zeros((frames, 32, 48, 3), np.uint8)
    assert CODEC.encode(video).shape == (1 + frames // 4, 4, 6, 16)


def test_decoding_and_encoding_again_gives_the_same_latent():
    video = random_scene(np.random.default_rng(0), moving=True).draw(17, 64, 64)
    latent = CODEC.encode(video)
    # Up to the rounding to 8 bits and the clipping in between.
    again = CODEC.encode(CODEC.decode(latent))
    assert np.abs(again - latent).max() < 0.2
    assert np.abs(again - latent).mean() < 0.01


def test_a_decoded_clip_looks_like_the_clip():
    video = random_scene(np.random.default_rng(1), moving=True).draw(9, 64, 64)
    decoded = CODEC.decode(CODEC.encode(video))
    assert decoded.shape == video.shape
    error = np.abs(decoded.astype(float) - video).mean()
    spread = np.abs(video - video.mean(axis=(0, 1, 2))).mean()
    assert error < 0.35 * spread


def test_a_plain_clip_is_exact():
    video = np.full((5, 16, 16, 3), (10, 120, 230), np.uint8)
    np.testing.assert_array_equal(CODEC.decode(CODEC.encode(video)), video)


def test_a_still_clip_has_the_same_latent_in_every_frame():
    image = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3), np.uint8)
    latent = CODEC.encode(image.repeat(9, axis=0))
    np.testing.assert_allclose(latent, latent[:1].repeat(3, axis=0), atol=1e-4)


def test_latents_have_about_unit_scale():
    latents = []
    for i in range(200):
        scene = random_scene(np.random.default_rng(i), moving=i % 2 == 1)
        latents.append(CODEC.encode(scene.draw(1 + i % 2 * 16, 64, 64)))
    spread = np.concatenate(latents).reshape(-1, 16).std(axis=0)
    assert spread.min() > 0.6
    assert spread.max() < 1.6


@pytest.mark.parametrize("shape", [(4, 16, 16, 3), (5, 20, 16, 3), (5, 16, 12, 3)])
def test_sizes_that_would_be_cut_are_an_error(shape):
    with pytest.raises(InputError, match=r"expected 4k\+1 frames and sizes in"):
        CODEC.encode(np.zeros(shape, np.uint8))
