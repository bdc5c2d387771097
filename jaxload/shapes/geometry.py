"""Sizes of latent positions, set by the codec, and of tokens, set by the model."""

import dataclasses
from typing import Any

import numpy as np

from jaxload.errors import InputError

Sizes = tuple[int, int, int]
"""Frames, height and width."""


@dataclasses.dataclass(frozen=True, order=True)
class Geometry:
    """Pixels per latent position, from the codec, and latent positions per token.

    The defaults are those of Wan's VAE and transformer, and of the built-in codec.
    """

    strides: Sizes = (4, 8, 8)
    """Frames, rows and columns of pixels per latent position. The first latent frame
    covers a single frame, so that an image is a clip of one frame."""

    patch: Sizes = (1, 2, 2)
    """Latent frames, rows and columns per token, as set by the model."""

    def __post_init__(self):
        for name in ("strides", "patch"):
            sizes = getattr(self, name)
            if len(sizes) != 3 or min(sizes) < 1:
                raise InputError(
                    f"{name}={sizes}: expected frames, rows and columns, 1 or more each"
                )
        if self.patch[0] != 1:
            raise InputError(
                f"patch={self.patch}: expected 1 latent frame per token, because an "
                "image is one latent frame"
            )

    @property
    def token_pixels(self) -> tuple[int, int]:
        """Height and width of a token, in pixels."""
        _, rows, columns = self.strides
        return rows * self.patch[1], columns * self.patch[2]

    @property
    def frame_rule(self) -> str:
        """Valid numbers of frames, for messages: `4k+1`."""
        return f"{self.strides[0]}k+1"

    def round_frames(self, frames: np.ndarray) -> np.ndarray:
        """Rounds numbers of frames down to valid ones for the codec, such as 4k+1."""
        stride = self.strides[0]
        return (frames - 1) // stride * stride + 1

    def to_latent(self, pixels: Sizes) -> Sizes:
        """Converts frames, height and width in pixels to those of the latent.

        Raises:
            InputError: The strides or the patch do not divide them.
        """
        (frames, height, width), (rows, columns) = pixels, self.token_pixels
        if frames < 1 or (frames - 1) % self.strides[0]:
            problem = f"{self.frame_rule} frames"
        elif min(height, width) < 1 or height % rows or width % columns:
            problem = f"a height and width in multiples of {rows} and {columns}"
        else:
            stride, row, column = self.strides
            return (frames - 1) // stride + 1, height // row, width // column
        raise InputError(f"clip of {frames}x{height}x{width}: expected {problem}")

    def to_pixels(self, latent: Sizes) -> Sizes:
        """Returns the frames, height and width in pixels that a latent stands for."""
        (frames, height, width), (stride, row, column) = latent, self.strides
        return (frames - 1) * stride + 1, height * row, width * column

    def num_tokens(self, latent: Sizes) -> int:
        """Returns the sequence length after the patch embedding."""
        (frames, height, width), (_, rows, columns) = latent, self.patch
        return frames * (height // rows) * (width // columns)

    def __str__(self) -> str:
        strides, patch = ("x".join(map(str, s)) for s in (self.strides, self.patch))
        return f"strides {strides} and patch {patch}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the geometry as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Geometry":
        """Builds a geometry from the result of `to_dict`."""
        return cls(**{name: tuple(sizes) for name, sizes in content.items()})


DEFAULT = Geometry()
"""Geometry of Wan's VAE and transformer, and of the built-in codec."""
