"""A deal: an epoch as patterns of micro-batches, each run so many times."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A shape with a batch size."""

    shape: int
    """Index into the loads."""

    batch: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pattern:
    """What one replica runs in one step."""

    counts: tuple[int, ...]
    """Micro-batches of each program."""

    times: int
    """Replica-steps of an epoch that run it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deal:
    """An epoch, as patterns; the `rest` are used once each."""

    programs: tuple[Program, ...]
    budget: float
    """Compute budget: cost of a replica-step, over the number of accumulations."""

    patterns: tuple[Pattern, ...]
    rest: tuple[Pattern, ...]

    @property
    def num_bins(self) -> int:
        """Replica-steps of an epoch."""
        return sum(p.times for p in self.patterns) + len(self.rest)
