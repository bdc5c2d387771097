"""Buckets: programs with the samples that are assigned to them."""

import dataclasses

from jaxload.balance.form import Form, Grid
from jaxload.balance.program import Program
from jaxload.shapes.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bucket:
    """A program with its samples, its cost and its bytes."""

    program: Program
    num_samples: int
    """Number of samples in the dataset with this form, whichever bucket runs them."""

    cost: float
    """Cost of one micro-batch on each device, in the unit of the cost model."""

    over_budget: bool = False
    """True if not even the smallest batch is within the budgets."""

    num_bytes: int = 0
    """Memory per device while the program runs, in bytes; 0: unknown."""

    @property
    def form(self) -> Form:
        """Form of the micro-batches."""
        return self.program.form

    @property
    def shape(self) -> Shape:
        """Latent shape of the samples."""
        assert isinstance(self.form, Grid)
        return self.form.shape

    @property
    def batch(self) -> int:
        """Number of samples in a replica's micro-batch."""
        return self.program.batch

    @property
    def tokens(self) -> int:
        """Tokens of one sample."""
        return self.program.tokens

    def __str__(self) -> str:
        return str(self.program)
