"""Buckets: programs with the samples that are assigned to them."""

import dataclasses

from jaxload.balance.form import Form
from jaxload.balance.program import Program
from jaxload.balance.sample_class import Lengths


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bucket:
    """A program with its samples, its cost and its bytes."""

    program: Program
    num_samples: int
    """Number of samples in the dataset with this form, whichever bucket runs them."""

    lengths: Lengths
    """Tokens of the samples, without padding."""

    cost: float
    """Mean cost of one micro-batch on each device, in the unit of the cost model."""

    over_budget: bool = False
    """True if not even the smallest batch is within the budgets."""

    num_bytes: int = 0
    """Memory per device while the program runs, in bytes; 0: unknown."""

    @property
    def form(self) -> Form:
        """Form of the micro-batches."""
        return self.program.form

    @property
    def batch(self) -> int:
        """Number of samples in a replica's micro-batch."""
        return self.program.batch

    @property
    def tokens(self) -> int:
        """Tokens of one row, with padding."""
        return self.program.tokens

    @property
    def padding(self) -> float:
        """Mean share of a row that is padding."""
        return 1 - self.lengths.mean / self.tokens

    def __str__(self) -> str:
        return str(self.program)
