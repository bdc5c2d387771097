"""Config section `sample`."""

import dataclasses
from dataclasses import field

from jaxload.errors import InputError
from jaxload.fields import RESUMABLE
from jaxload.seed import check_seed
from jaxload.shapes.shape import parse_sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """Clip that is drawn at the end of a run, and by `jaxload.sample`."""

    caption: str = field(default="", metadata=RESUMABLE)
    """Text that the clip should show; empty: a caption of the dataset."""

    shape: str = field(default="", metadata=RESUMABLE)
    """Latent frames x height x width; empty: the most frequent shape of the dataset,
    of several frames if there is one. With the built-in codec, each latent frame after
    the first covers four frames. Larger shapes take more time and memory."""

    num_steps: int = field(default=20, metadata=RESUMABLE)
    """Number of sampling steps from noise to clip. Raising it follows the flow more
    closely and takes proportionally longer."""

    guidance: float = field(default=2.0, metadata=RESUMABLE)
    """Classifier-free guidance scale; 1 is none. Higher values follow the caption more
    closely and vary less."""

    seed: int = field(default=0, metadata=RESUMABLE)
    """Seed of the initial noise."""

    def __post_init__(self):
        try:
            if self.shape:
                parse_sizes(self.shape)
        except InputError as error:
            raise InputError(f"sample.shape: {error}") from error
        # The compiled sampler takes the seed as a signed integer.
        check_seed(self.seed, f"sample.seed={self.seed}", largest=2**31 - 1)
        if self.num_steps < 1:
            raise InputError(f"sample.num_steps={self.num_steps}: expected 1 or more")
