"""Codecs turn pixels into latents and back."""

import functools
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, UInt8

from jaxload.codecs.plugin import make_plugin
from jaxload.errors import InputError
from jaxload.shapes.shape import FRAME_STRIDE, PIXEL_STRIDE

# Shape suffixes: P pixel frames, Y X pixel rows and columns, F H W the latent's.


@runtime_checkable
class Codec(Protocol):
    """Converts pixels to latents and back, with the strides of Wan's VAE.

    The first latent frame covers one frame of the clip and every later one covers four,
    so a clip has 4k + 1 frames. A latent pixel covers 8x8 pixels.
    """

    name: str
    """Name and version of the codec, recorded to compare datasets."""

    channels: int

    def encode(self, video: UInt8[np.ndarray, "p y x 3"]) -> np.ndarray:
        """Returns the latent `[F, H, W, C]` of a clip, in float32."""
        ...

    def decode(self, latent: Float[np.ndarray, "f h w c"]) -> np.ndarray:
        """Returns the clip `[P, Y, X, 3]` of a latent, in uint8."""
        ...


_BLOCK = FRAME_STRIDE * PIXEL_STRIDE * PIXEL_STRIDE * 3

# Standard deviation of each channel over the clips of `jaxload.media.synthetic`,
# rounded, so that latents have about the scale of the noise mixed into them.
_SCALE = np.array(
    [9.5, 1.4, 1.4, 0.4, 1, 0.5, 0.5, 0.2, 4.3, 0.9, 0.9, 0.3, 2.8, 0.6, 0.6, 0.2],
    dtype=np.float32,
)


class HaarCodec:
    """A fixed orthonormal transform of 4x8x8 blocks that keeps 16 coefficients.

    Brightness keeps 2x2 cells in space and two halves in time; each of the two colour
    differences keeps 2x2 cells in space. The codec needs no weights, and its latents
    decode to recognisable clips.
    """

    name = "haar"
    channels = 16

    def encode(self, video: UInt8[np.ndarray, "p y x 3"]) -> np.ndarray:
        """Returns the latent `[F, H, W, C]` of a clip, in float32."""
        frames, height, width, _ = video.shape
        if frames % FRAME_STRIDE != 1 or height % PIXEL_STRIDE or width % PIXEL_STRIDE:
            raise InputError(
                f"clip of {frames}x{height}x{width}: expected 4k+1 frames and sizes in "
                f"multiples of {PIXEL_STRIDE}; cut or resize it first"
            )
        x = video.astype(np.float32) / 127.5 - 1.0
        # The first frame fills four, so that its latent has the scale of the others.
        x = np.concatenate([np.repeat(x[:1], FRAME_STRIDE, axis=0), x[1:]])
        grid = (1 + frames // FRAME_STRIDE, height // PIXEL_STRIDE)
        x = x.reshape(grid[0], FRAME_STRIDE, grid[1], PIXEL_STRIDE, -1, PIXEL_STRIDE, 3)
        blocks = x.transpose(0, 2, 4, 1, 3, 5, 6).reshape(*grid, -1, _BLOCK)
        return blocks @ haar_basis().T / _SCALE

    def decode(self, latent: Float[np.ndarray, "f h w c"]) -> np.ndarray:
        """Returns the clip `[P, Y, X, 3]` of a latent, in uint8."""
        f, h, w, _ = latent.shape
        blocks = (latent.astype(np.float32) * _SCALE) @ haar_basis()
        x = blocks.reshape(f, h, w, FRAME_STRIDE, PIXEL_STRIDE, PIXEL_STRIDE, 3)
        x = x.transpose(0, 3, 1, 4, 2, 5, 6)
        x = x.reshape(f * FRAME_STRIDE, h * PIXEL_STRIDE, w * PIXEL_STRIDE, 3)
        first = x[:FRAME_STRIDE].mean(axis=0, keepdims=True)
        x = np.concatenate([first, x[FRAME_STRIDE:]])
        return np.rint((x.clip(-1.0, 1.0) + 1.0) * 127.5).astype(np.uint8)


@functools.cache
def haar_basis() -> np.ndarray:
    """Returns the 16 orthonormal rows of the transform, each over (t, y, x, colour)."""
    mean_t, half_t = np.ones(4) / 2, np.repeat([1, -1], 2) / 2
    spatial = [np.ones(8) / np.sqrt(8), np.repeat([1, -1], 4) / np.sqrt(8)]
    brightness = np.ones(3) / np.sqrt(3)
    differences = [
        np.array([1, 0, -1]) / np.sqrt(2),
        np.array([1, -2, 1]) / np.sqrt(6),
    ]
    kept = [(t, brightness) for t in (mean_t, half_t)]
    kept += [(mean_t, colour) for colour in differences]
    rows = [
        np.einsum("t,y,x,c->tyxc", t, y, x, colour).ravel()
        for t, colour in kept
        for y in spatial
        for x in spatial
    ]
    return np.array(rows, dtype=np.float32)


_BUILT_IN = {HaarCodec.name: HaarCodec}


@functools.cache
def load_codec(name: str) -> Codec:
    """Makes a built-in codec or a module:attribute, once per process."""
    return make_plugin("codec", name, _BUILT_IN, Codec)
