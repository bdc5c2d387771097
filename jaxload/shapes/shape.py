"""Shapes of latents, and their conversion from and to sizes in pixels."""

import dataclasses
import re

from jaxload.errors import InputError
from jaxload.shapes.geometry import DEFAULT, Geometry, Sizes

_TEXT = re.compile(r"([0-9]{1,9})x([0-9]{1,9})x([0-9]{1,9})")


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """Frames, height and width of a latent; written `FxHxW`."""

    frames: int
    height: int
    width: int
    geometry: Geometry = DEFAULT
    """Sizes of latent positions in pixels, and of tokens."""

    def __post_init__(self):
        frames, rows, columns = self.geometry.patch
        if self.frames < frames or self.height < rows or self.width < columns:
            raise InputError(
                f"shape {self}: expected at least {frames}x{rows}x{columns} in latent "
                "frames, height, width"
            )
        if self.height % rows or self.width % columns:
            in_pixels = " and ".join(map(str, self.geometry.token_pixels))
            raise InputError(
                f"shape {self}: expected a height and width in multiples of {rows} and "
                f"{columns}, the size of a token; in pixels, of {in_pixels}"
            )

    @classmethod
    def parse(cls, text: str, geometry: Geometry) -> "Shape":
        """Parses a shape written as `FxHxW`."""
        return cls(*parse_sizes(text), geometry)

    @classmethod
    def of_pixels(cls, pixels: Sizes, geometry: Geometry) -> "Shape":
        """Returns the latent shape of a clip, given its frames, height and width."""
        return cls(*geometry.to_latent(pixels), geometry)

    @property
    def pixels(self) -> Sizes:
        """Frames, height and width in pixels of a clip with this latent shape."""
        return self.geometry.to_pixels((self.frames, self.height, self.width))

    @property
    def tokens(self) -> int:
        """Sequence length after the patch embedding."""
        return self.geometry.num_tokens((self.frames, self.height, self.width))

    @property
    def token_grid(self) -> Sizes:
        """Tokens along frames, rows and columns."""
        frames, rows, columns = self.geometry.patch
        return self.frames // frames, self.height // rows, self.width // columns

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.height, self.width

    def first_frames(self, frames: int) -> "Shape":
        """Returns the shape of this many latent frames of the same size."""
        return dataclasses.replace(self, frames=frames)

    def __str__(self) -> str:
        return f"{self.frames}x{self.height}x{self.width}"


def parse_sizes(text: str) -> Sizes:
    """Parses frames, height and width written as `FxHxW`."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InputError(f"shape {text[:80]!r}: expected FxHxW in whole numbers")
    frames, height, width = map(int, match.groups())
    return frames, height, width
