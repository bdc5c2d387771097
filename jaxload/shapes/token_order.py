"""Order of a sample's tokens, the same in records, in noise and in the models.

A token holds the channels of one patch of the latent. Tokens are ordered by frame, then
row, then column, so that the first frames of a clip are a prefix of its tokens.
"""

from collections.abc import Sequence
from typing import Any

from jaxload.shapes.geometry import Sizes


def to_tokens(latent: Any, patch: Sizes) -> Any:
    """Cuts a latent `[F, H, W, C]` into tokens `[L, P]`; takes any type of array."""
    (f, h, w), (pf, ph, pw) = split_patches(latent.shape, patch), patch
    channels = latent.shape[-1]
    x = latent.reshape(f, pf, h, ph, w, pw, channels).transpose(0, 2, 4, 1, 3, 5, 6)
    return x.reshape(f * h * w, pf * ph * pw * channels)


def to_latent(tokens: Any, grid: Sizes, patch: Sizes) -> Any:
    """Reassembles the tokens of a grid into a latent; inverts `to_tokens`."""
    (f, h, w), (pf, ph, pw) = grid, patch
    x = tokens.reshape(f, h, w, pf, ph, pw, -1).transpose(0, 3, 1, 4, 2, 5, 6)
    return x.reshape(f * pf, h * ph, w * pw, -1)


def split_patches(latent_shape: Sequence[int], patch: Sizes) -> Sizes:
    """Counts the patches along frames, rows and columns of a latent."""
    frames, height, width = (
        size // step for size, step in zip(latent_shape[:3], patch, strict=True)
    )
    return frames, height, width
