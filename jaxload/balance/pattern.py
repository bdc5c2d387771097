"""A deal: an epoch as patterns of micro-batches, each run so many times."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchOption:
    """A batch size that a deal may use for one shape."""

    shape: int
    """Index into the supplies."""

    batch: int
    """Samples of a micro-batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pattern:
    """Micro-batches that one replica runs in one step."""

    counts: tuple[int, ...]
    """Micro-batches of each option, in the order of the deal's options."""

    times: int
    """Replica-steps of an epoch that run it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deal:
    """An epoch, as patterns; the `rest` are used once each."""

    options: tuple[BatchOption, ...]
    budget: float
    """Compute budget: cost of a replica-step, over the number of accumulations."""

    patterns: tuple[Pattern, ...]
    rest: tuple[Pattern, ...]

    @property
    def num_bins(self) -> int:
        """Replica-steps of an epoch."""
        return sum(p.times for p in self.patterns) + len(self.rest)
