"""Supplies: samples to deal, by form, with their cost."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Supply:
    """Samples of one form, with their cost and the limits on batches."""

    num_samples: int
    cost: float
    """Cost that one sample adds to a micro-batch."""

    max_batch: int
    """Most samples of a micro-batch within the memory budget; at least one unit."""

    unit: int = 1
    """Smallest batch size; every batch is a multiple of this size."""
