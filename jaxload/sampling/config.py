"""Config section `sample`."""

import dataclasses
from dataclasses import field

from jaxload.errors import InputError
from jaxload.fields import RESUMABLE
from jaxload.shapes.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """The clip that is drawn at the end of a run, and by `jaxload.sample`."""

    caption: str = field(metadata=RESUMABLE)
    """Text that the sample should show."""

    shape: str = field(metadata=RESUMABLE)
    """Latent frames x height x width; a latent frame after the first covers four."""

    num_steps: int = field(default=20, metadata=RESUMABLE)
    """Steps from noise to sample; more cost time and follow the flow more closely."""

    guidance: float = field(default=2.0, metadata=RESUMABLE)
    """Classifier-free guidance scale; 1 is none, more follows the caption more closely
    and varies less."""

    seed: int = field(default=0, metadata=RESUMABLE)
    """Seed of the noise that the sample starts from."""

    def __post_init__(self):
        try:
            Shape.parse(self.shape)
        except InputError as error:
            raise InputError(f"sample.shape: {error}") from error
        if not 0 <= self.seed < 2**31:
            raise InputError(f"sample.seed={self.seed}: expected 0 to 2^31 - 1")
        if self.num_steps < 1:
            raise InputError(f"sample.num_steps={self.num_steps}: expected 1 or more")
