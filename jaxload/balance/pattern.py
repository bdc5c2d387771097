"""Deals: the patterns of micro-batches in an epoch, and how often each runs."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchOption:
    """A batch size that a deal may use for one form."""

    form: int
    """Index of the form in the supplies."""

    batch: int
    """Number of samples in a micro-batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pattern:
    """Micro-batches that one replica runs in one step."""

    counts: tuple[int, ...]
    """Number of micro-batches of each option, in the order of the deal's options."""

    times: int
    """Number of replica-steps of an epoch that run the pattern."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deal:
    """Patterns that make up an epoch; each pattern of `rest` runs once."""

    options: tuple[BatchOption, ...]
    budget: float
    """Compute budget: cost of a replica-step, divided by `accumulate`."""

    patterns: tuple[Pattern, ...]
    rest: tuple[Pattern, ...]

    @property
    def num_bins(self) -> int:
        """Number of replica-steps in an epoch."""
        return sum(p.times for p in self.patterns) + len(self.rest)
