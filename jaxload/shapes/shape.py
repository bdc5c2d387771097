"""Shapes of latents, and their conversion from and to sizes in pixels."""

import dataclasses
import re

from jaxload.errors import InputError

_TEXT = re.compile(r"(\d+)x(\d+)x(\d+)")

FRAME_STRIDE = 4
"""Frames per latent frame, except for the first latent frame, which covers one."""

PIXEL_STRIDE = 8
"""Pixels per row and per column of a latent."""

TOKEN_PIXELS = 2 * PIXEL_STRIDE
"""Height and width of a token, in pixels."""


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """Frames, height and width of a latent; written `FxHxW`."""

    frames: int
    height: int
    width: int

    def __post_init__(self):
        if self.frames < 1 or self.height < 2 or self.width < 2:
            raise InputError(
                f"shape {self}: expected at least 1x2x2 in latent frames, height, width"
            )
        if self.height % 2 or self.width % 2:
            raise InputError(
                f"shape {self}: expected an even height and width, since a token "
                "covers 2x2; sizes in pixels are multiples of 16"
            )

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Parses a shape written as `FxHxW`."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InputError(f"shape {text!r}: expected FxHxW in whole numbers")
        return cls(*map(int, match.groups()))

    @classmethod
    def of_pixels(cls, num_frames: int, height: int, width: int) -> "Shape":
        """Returns the latent shape of a clip: 4k+1 frames, sizes in multiples of 16."""
        if (num_frames - 1) % FRAME_STRIDE or (
            height % TOKEN_PIXELS or width % TOKEN_PIXELS
        ):
            raise InputError(
                f"clip of {num_frames}x{height}x{width}: expected 4k+1 frames of sizes "
                f"that are multiples of {TOKEN_PIXELS}"
            )
        return cls(
            (num_frames - 1) // FRAME_STRIDE + 1,
            height // PIXEL_STRIDE,
            width // PIXEL_STRIDE,
        )

    @property
    def pixels(self) -> tuple[int, int, int]:
        """Frames, height and width in pixels of a clip with this latent shape."""
        frames = (self.frames - 1) * FRAME_STRIDE + 1
        return frames, self.height * PIXEL_STRIDE, self.width * PIXEL_STRIDE

    @property
    def tokens(self) -> int:
        """Sequence length after the patch embedding."""
        return self.frames * (self.height // 2) * (self.width // 2)

    def __str__(self) -> str:
        return f"{self.frames}x{self.height}x{self.width}"
