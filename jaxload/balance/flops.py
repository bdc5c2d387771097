"""FLOPs as a function of tokens, and those of a matrix in training."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flops:
    """`per_sample + per_token * S + per_token_squared * S^2`."""

    per_sample: int | float = 0
    per_token: int | float = 0
    per_token_squared: int | float = 0

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(
            per_sample=self.per_sample + other.per_sample,
            per_token=self.per_token + other.per_token,
            per_token_squared=self.per_token_squared + other.per_token_squared,
        )

    def __rmul__(self, factor: int | float) -> "Flops":
        return Flops(
            per_sample=factor * self.per_sample,
            per_token=factor * self.per_token,
            per_token_squared=factor * self.per_token_squared,
        )


@dataclasses.dataclass(frozen=True)
class Adapters:
    """What is trained in place of the model: low ranks beside some of its matrices."""

    rank: int
    targets: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matrix:
    """A matrix in blocks, and how many vectors of a sample it is multiplied with."""

    rows: int
    columns: int
    per_token: int = 0
    per_sample: int = 0
    target: str | None = None
    """What adapters know it by, if they may be put on it."""

    behind_adapters: bool = True
    """Whether what is multiplied depends on adapters of earlier blocks."""

    ends_block: bool = False
    """Whether only a gate stands between its result and the block's."""

    def flops(self, *, again: bool, adapters: Adapters | None) -> Flops:
        """Forward and backward; `again` if remat has it computed twice."""
        if adapters is None:
            return (4.0 if again else 3.0) * self._forward(self.rows * self.columns)
        # No gradient for the matrix, and one for what it is multiplied with only if
        # something there is trained. Without a gradient for gates, the last result of
        # a block is not needed again; one that no adapter changes is not, either.
        adapted = self.target in adapters.targets
        changed = self.behind_adapters or adapted
        again = again and changed and not self.ends_block
        times = 1.0 + self.behind_adapters + again
        flops = times * self._forward(self.rows * self.columns)
        if adapted:
            size = adapters.rank * (self.rows + self.columns)
            flops += (4.0 if again else 3.0) * self._forward(size)
        return flops

    def _forward(self, size: int) -> Flops:
        return Flops(
            per_token=2 * size * self.per_token, per_sample=2 * size * self.per_sample
        )
