"""Forms: the shapes that the rows of a micro-batch may have."""

import dataclasses
import re

from jaxload.errors import InputError
from jaxload.shapes.geometry import DEFAULT, Geometry, Sizes
from jaxload.shapes.shape import Shape

_LENGTH = re.compile(r"len([0-9]{1,9})")


@dataclasses.dataclass(frozen=True, order=True)
class Grid:
    """Form of a micro-batch whose samples all have one latent shape."""

    frames: int
    height: int
    width: int
    geometry: Geometry = DEFAULT

    @classmethod
    def of(cls, shape: Shape) -> "Grid":
        """Returns the form of micro-batches with this latent shape."""
        return cls(shape.frames, shape.height, shape.width, shape.geometry)

    @property
    def shape(self) -> Shape:
        """Latent shape of every sample."""
        return Shape(self.frames, self.height, self.width, self.geometry)

    @property
    def tokens(self) -> int:
        """Tokens of every sample."""
        return self.shape.tokens

    @property
    def token_grid(self) -> Sizes | None:
        """Tokens along frames, rows and columns, the same for every sample."""
        return self.shape.token_grid

    def __str__(self) -> str:
        return str(self.shape)


@dataclasses.dataclass(frozen=True, order=True)
class Length:
    """Form of a micro-batch whose rows are padded to one number of tokens.

    Each row is one sample of at most `tokens` tokens, with a grid of its own.
    """

    tokens: int
    """Tokens of every row, with padding."""

    geometry: Geometry = DEFAULT

    def __post_init__(self):
        if self.tokens < 1:
            raise InputError(f"form {self}: expected 1 token or more")

    @property
    def token_grid(self) -> Sizes | None:
        """None, because each sample has a grid of its own."""
        return None

    def __str__(self) -> str:
        return f"len{self.tokens}"


Form = Grid | Length


def parse_form(text: str, geometry: Geometry) -> Form:
    """Parses a form written as `FxHxW` or `len` and the tokens of a row."""
    match = _LENGTH.fullmatch(text)
    if match:
        return Length(int(match[1]), geometry)
    return Grid.of(Shape.parse(text, geometry))
