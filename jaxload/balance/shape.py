"""The shape of a latent, the unit in which everything here is counted."""

import dataclasses
import re

from jaxload.errors import InputError

_TEXT = re.compile(r"(\d+)x(\d+)x(\d+)")


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
        """Reads what `str` writes."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InputError(f"shape {text!r}: expected FxHxW in whole numbers")
        return cls(*map(int, match.groups()))

    @property
    def tokens(self) -> int:
        """Sequence length after the patch embedding."""
        return self.frames * (self.height // 2) * (self.width // 2)

    def __str__(self) -> str:
        return f"{self.frames}x{self.height}x{self.width}"
