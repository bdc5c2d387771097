"""Config section `synthetic`."""

import dataclasses

from jaxload.errors import InputError
from jaxload.seed import check_seed
from jaxload.shapes.geometry import Geometry, Sizes
from jaxload.shapes.shape import Shape, parse_sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticConfig:
    """Media to draw when the dataset does not exist yet."""

    num_samples: int
    """Images and clips to draw; more add variety and take longer to draw and encode."""

    clips: tuple[str, ...]
    """Frames x height x width in pixels, from the most frequent to the rarest. Larger
    clips show more detail and cost more compute; each further size costs a compilation.
    """

    seed: int = 0
    """Random seed, 0 to 2^32 - 1; each value draws a different dataset."""

    def __post_init__(self):
        if self.num_samples < len(self.clips):
            raise InputError(
                f"synthetic.num_samples={self.num_samples}: expected at least one for "
                f"each of {len(self.clips)} sizes"
            )
        check_seed(self.seed, f"synthetic.seed={self.seed}")
        if not self.clips:
            raise InputError(
                "synthetic.clips is empty: expected sizes such as 17x64x64"
            )
        try:
            self.pixels()
        except InputError as error:
            raise InputError(f"synthetic.clips: {error}") from error

    def pixels(self) -> tuple[Sizes, ...]:
        """Returns the frames, height and width of the clips, in pixels."""
        return tuple(map(parse_sizes, self.clips))

    def shapes(self, geometry: Geometry) -> tuple[Shape, ...]:
        """Returns the distinct latent shapes of the clips.

        Raises:
            InputError: The codec or the model cannot take the sizes of a clip.
        """
        try:
            found = [Shape.of_pixels(pixels, geometry) for pixels in self.pixels()]
        except InputError as error:
            raise InputError(
                f"synthetic.clips: {error}; expected sizes such as 17x64x96 for the "
                "built-in codec"
            ) from error
        return tuple(dict.fromkeys(found))

    def origin(self) -> str:
        """Describes everything that the drawn media depend on."""
        fields = dataclasses.asdict(self)
        return "drawn, version 2: " + ", ".join(f"{k}={v}" for k, v in fields.items())
