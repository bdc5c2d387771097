"""A bucket: one compiled program."""

import dataclasses

from jaxload.shapes.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bucket:
    """A shape with a batch size."""

    shape: Shape
    batch: int
    """Samples of one micro-batch on one replica."""

    num_samples: int
    """Samples of the data set that have this shape, in whichever bucket they run."""

    cost: float
    """Of one micro-batch, in the unit of the cost model."""

    over_budget: bool = False
    """A single sample is already more than a budget allows."""

    num_bytes: int = 0
    """Memory that the program takes on a device; 0: not known."""

    def __str__(self) -> str:
        return f"{self.shape}@{self.batch}"
