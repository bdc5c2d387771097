"""FLOPs as a function of tokens, and the training FLOPs of one weight matrix."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flops:
    """FLOPs for S tokens: `per_sample + per_token * S + per_token_squared * S^2`."""

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
    """Low-rank adapters, trained instead of the matrices that they are attached to."""

    rank: int
    targets: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matrix:
    """A weight matrix of the blocks, and how many vectors it multiplies."""

    rows: int
    columns: int
    per_token: int = 0
    per_sample: int = 0
    target: str | None = None
    """Name of the matrix in `Adapters.targets`; None if it takes no adapter."""

    behind_adapters: bool = True
    """True if the input depends on adapters of earlier blocks."""

    ends_block: bool = False
    """True if only a gate lies between this matmul and the output of the block."""

    def flops(self, *, again: bool, adapters: Adapters | None) -> Flops:
        """Returns the training FLOPs; with `again`, remat repeats the forward pass."""
        if adapters is None:
            return (4.0 if again else 3.0) * self._forward(self.rows * self.columns)
        # The frozen matrix gets no gradient, and its input gets one only if adapters
        # of earlier blocks need that gradient. Frozen gates need no gradient, so the
        # last matmul of a block is not recomputed. A result that no adapter changes is
        # not recomputed either.
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
