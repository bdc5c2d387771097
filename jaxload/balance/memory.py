"""What a micro-batch takes in memory, as the compiler counted it."""

import dataclasses
from collections.abc import Mapping

from jaxload.errors import InputError
from jaxload.shapes.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryLine:
    """`fixed + B * per_sample`: bytes of one device, for one shape."""

    fixed: float
    """Whatever the batch size: parameters, optimizer state, gradients."""

    per_sample: float
    source: str
    """Where the numbers come from."""

    def __post_init__(self):
        if self.per_sample <= 0:
            raise InputError(
                f"memory of {self.per_sample:,.0f} bytes a sample ({self.source}): "
                "expected more than 0; compile two batch sizes that lie further apart"
            )

    def bytes(self, batch: int) -> float:
        """What a micro-batch of this size takes."""
        return self.fixed + batch * self.per_sample

    def max_batch(self, budget_bytes: int | float) -> int:
        """The largest micro-batch within a budget; 0 if one sample does not fit."""
        return max(0, int((budget_bytes - self.fixed) // self.per_sample))


def line_through(
    first: tuple[int, int | float], second: tuple[int, int | float], *, source: str
) -> MemoryLine:
    """The line through the bytes of two batch sizes, each a pair (batch, bytes)."""
    (batch1, bytes1), (batch2, bytes2) = first, second
    if batch1 == batch2:
        raise InputError(
            f"two programs of batch size {batch1}: expected two sizes, to draw a line"
        )
    per_sample = (bytes2 - bytes1) / (batch2 - batch1)
    return MemoryLine(
        fixed=bytes1 - batch1 * per_sample, per_sample=per_sample, source=source
    )


@dataclasses.dataclass(frozen=True)
class MemoryModel:
    """The memory of every shape that was compiled."""

    lines: Mapping[Shape, MemoryLine]

    def line(self, shape: Shape) -> MemoryLine:
        """The line of a shape."""
        if shape not in self.lines:
            known = ", ".join(map(str, sorted(self.lines)))
            raise InputError(
                f"memory of shape {shape}: not compiled, only {known or 'nothing'}; "
                "measure it too"
            )
        return self.lines[shape]

    def bytes(self, shape: Shape, batch: int) -> float:
        """What a micro-batch of a shape takes on one device."""
        return self.line(shape).bytes(batch)

    def max_batch(self, shape: Shape, budget_bytes: int | float) -> int:
        """The largest micro-batch of a shape; 0 if one sample does not fit."""
        return self.line(shape).max_batch(budget_bytes)
