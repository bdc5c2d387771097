"""Config section `synthetic`."""

import dataclasses
import re

from jaxload.errors import InputError
from jaxload.shapes.shape import Shape

_CLIP = re.compile(r"(\d+)x(\d+)x(\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticConfig:
    """Media to draw when the dataset does not exist yet."""

    num_samples: int
    """Images and clips to draw; more vary more and take longer to draw and encode."""

    clips: tuple[str, ...]
    """Frames x height x width in pixels, from the most frequent to the rarest. Larger
    clips show more detail and cost more compute; more sizes need more programs."""

    seed: int = 0
    """Random seed; each value draws another dataset."""

    def __post_init__(self):
        if self.num_samples < len(self.clips):
            raise InputError(
                f"synthetic.num_samples={self.num_samples}: expected at least one for "
                f"each of {len(self.clips)} sizes"
            )
        if self.seed < 0:
            raise InputError(f"synthetic.seed={self.seed}: expected 0 or more")
        if not self.clips:
            raise InputError(
                "synthetic.clips is empty: expected sizes such as 17x64x64"
            )
        for clip in self.clips:
            match = _CLIP.fullmatch(clip)
            frames, *sizes = map(int, match.groups()) if match else (0, 0, 0)
            if frames % 4 != 1 or any(size % 16 or not size for size in sizes):
                raise InputError(
                    f"synthetic.clips: {clip!r}: expected FRAMESxHEIGHTxWIDTH with "
                    "4k+1 frames and sizes in multiples of 16, such as 17x64x96"
                )

    @property
    def shapes(self) -> tuple[str, ...]:
        """Distinct latent shapes of the clips."""
        pixels = (map(int, clip.split("x")) for clip in self.clips)
        return tuple(dict.fromkeys(str(Shape.of_pixels(*sizes)) for sizes in pixels))

    def origin(self) -> str:
        """Describes everything that the drawn media depend on."""
        fields = dataclasses.asdict(self)
        return "drawn, version 2: " + ", ".join(f"{k}={v}" for k, v in fields.items())
