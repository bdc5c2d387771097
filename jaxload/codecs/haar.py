"""Built-in codec: a fixed space-time Haar transform that needs no weights."""

import functools

import numpy as np
from jaxtyping import Float, UInt8

from jaxload.errors import InputError

# Shape suffixes: P pixel frames, Y X pixel rows and columns, F H W the latent's.

_FRAMES, _PIXELS = 4, 8  # A block has 4 frames of 8x8 pixels.
_BLOCK = _FRAMES * _PIXELS * _PIXELS * 3

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
    is_causal = True
    strides: tuple[int, int, int] = (_FRAMES, _PIXELS, _PIXELS)

    def encode(self, video: UInt8[np.ndarray, "p y x 3"]) -> np.ndarray:
        """Returns the latent `[F, H, W, C]` of a clip, in float32."""
        frames, height, width, _ = video.shape
        if frames % _FRAMES != 1 or height % _PIXELS or width % _PIXELS:
            raise InputError(
                f"clip of {frames}x{height}x{width}: expected 4k+1 frames and sizes in "
                f"multiples of {_PIXELS}; cut or resize it first"
            )
        x = video.astype(np.float32) / 127.5 - 1.0
        # The first frame is repeated to fill a block, so that its latent has the same
        # scale as the others.
        x = np.concatenate([np.repeat(x[:1], _FRAMES, axis=0), x[1:]])
        grid = (1 + frames // _FRAMES, height // _PIXELS)
        x = x.reshape(grid[0], _FRAMES, grid[1], _PIXELS, -1, _PIXELS, 3)
        blocks = x.transpose(0, 2, 4, 1, 3, 5, 6).reshape(*grid, -1, _BLOCK)
        return blocks @ haar_basis().T / _SCALE

    def decode(self, latent: Float[np.ndarray, "f h w c"]) -> np.ndarray:
        """Returns the clip `[P, Y, X, 3]` of a latent, in uint8."""
        f, h, w, _ = latent.shape
        blocks = (latent.astype(np.float32) * _SCALE) @ haar_basis()
        x = blocks.reshape(f, h, w, _FRAMES, _PIXELS, _PIXELS, 3)
        x = x.transpose(0, 3, 1, 4, 2, 5, 6)
        x = x.reshape(f * _FRAMES, h * _PIXELS, w * _PIXELS, 3)
        first = x[:_FRAMES].mean(axis=0, keepdims=True)
        x = np.concatenate([first, x[_FRAMES:]])
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
