"""A bucket: a program and the samples that run through it."""

import dataclasses

from jaxload.balance.program import Program
from jaxload.shapes.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bucket:
    """A program with its samples, its cost and its bytes."""

    program: Program
    num_samples: int
    """Samples of the dataset that have this form, whichever bucket runs them."""

    cost: float
    """Cost of one micro-batch on each device, in the unit of the cost model."""

    over_budget: bool = False
    """Whether one sample per device is already more than a budget allows."""

    num_bytes: int = 0
    """Memory that each device needs while the program runs; 0: not known."""

    @property
    def shape(self) -> Shape:
        """Latent shape of the samples."""
        return self.program.form.shape

    @property
    def batch(self) -> int:
        """Samples of the replica's micro-batch."""
        return self.program.batch

    @property
    def tokens(self) -> int:
        """Tokens of one sample."""
        return self.program.tokens

    def __str__(self) -> str:
        return str(self.program)
