"""Decodes latents with any codec, and checks the pixels that it returns."""

import numpy as np
from jaxtyping import UInt8

from jaxload.codecs.codec import Codec
from jaxload.codecs.plugin import described
from jaxload.errors import InputError


def decode_clip(codec: Codec, latent: np.ndarray) -> UInt8[np.ndarray, "p y x 3"]:
    """Returns the clip of a latent `[F, H, W, C]` of any float type.

    Raises:
        InputError: The codec raised an exception, or returned anything but the clip.
    """
    who = f"codec {codec.name}: decode"
    try:
        video = np.asarray(codec.decode(latent.astype(np.float32)))
    except Exception as error:  # A codec may raise anything.
        raise InputError(
            f"{who} raised {described(error)}; correct the codec"
        ) from error
    frames, height, width, _ = latent.shape
    stride, row, column = codec.strides
    expected = ((frames - 1) * stride + 1, height * row, width * column, 3)
    if video.dtype != np.uint8 or video.shape != expected:
        raise InputError(
            f"{who} returned {video.dtype} {video.shape}, expected uint8 {expected}; "
            "correct the codec"
        )
    return video
