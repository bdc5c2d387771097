"""Tests of jaxload.codecs.decoded."""

import ml_dtypes
import numpy as np
import pytest

from jaxload.codecs.codec import Codec
from jaxload.codecs.decoded import decode_clip
from jaxload.codecs.haar import HaarCodec
from jaxload.errors import InputError
from tests.codecs.faulty_plugins import DecodeRaises, DecodesFloats, DecodesTooMuch
from tests.media.codecs import Fine

LATENT = np.zeros((3, 2, 4, 16), ml_dtypes.bfloat16)


class SeesFloat32(HaarCodec):
    """Refuses latents that are not float32."""

    def decode(self, latent: np.ndarray) -> np.ndarray:
        """Decodes."""
        assert latent.dtype == np.float32
        return super().decode(latent)


@pytest.mark.parametrize(
    ("codec", "shape"), [(SeesFloat32(), (9, 16, 32, 3)), (Fine(), (5, 8, 16, 3))]
)
def test_a_latent_in_bfloat16_becomes_pixels(codec: Codec, shape: tuple[int, ...]):
    video = decode_clip(codec, LATENT)
    assert video.shape == shape
    assert video.dtype == np.uint8


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (
            DecodeRaises(),
            r"codec no decoder: decode raised RuntimeError: no decoder he",
        ),
        (
            DecodesFloats(),
            r"codec floats: decode returned float32 \(9, 16, 32, 3\), expected uint8 "
            r"\(9, 16, 32, 3\)",
        ),
        (
            DecodesTooMuch(),
            r"too much: .* uint8 \(12, 16, 32, 3\), expected uint8 \(9, 16, 32, 3\)",
        ),
    ],
)
def test_a_faulty_decode_is_one_line(codec: Codec, message: str):
    with pytest.raises(InputError, match=message) as error:
        decode_clip(codec, LATENT)
    assert "\n" not in str(error.value)
