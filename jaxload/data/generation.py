"""Generations of a dataset: the shards and masked rows after each preparation.

A dataset only grows. A preparation that finds new, changed or removed files appends
shards and rows, and masks rows that are out of date. Runs that began with an earlier
generation find its rows unchanged.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Ranges = tuple[tuple[int, int], ...]
"""Ranges of rows, each with its first row and the row after its last."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """Dataset after one preparation."""

    fingerprint: Mapping[str, Any]
    """Provenance of the dataset: codec, text encoder, source."""

    num_shards: int
    """Number of shards, together with those of earlier generations."""

    masked: Ranges = ()
    """Rows that this generation masks and earlier ones do not."""

    num_updates: int = 1
    """Updates of the media that this generation covers, with their first listing."""

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> "Generation":
        """Builds a generation from the fields that JSON holds."""
        ranges = [(int(start), int(stop)) for start, stop in fields["masked"]]
        return cls(**{**fields, "masked": tuple(ranges)})


def all_masked(generations: Iterable[Generation]) -> Ranges:
    """Returns the rows that are masked after all of these generations."""
    return tuple(itertools.chain(*(g.masked for g in generations)))


def extended(
    generations: Sequence[Generation], newest: Generation
) -> tuple[Generation, ...]:
    """Appends a generation, unless it has the rows of the last one."""
    if generations:
        last = generations[-1]
        if not newest.masked and newest.num_shards == last.num_shards:
            last = dataclasses.replace(last, num_updates=newest.num_updates)
            return (*generations[:-1], last)
    return (*generations, newest)


def mask(ranges: Ranges, num_rows: int) -> np.ndarray:
    """Returns an array of `num_rows` booleans, True in the ranges."""
    masked = np.zeros(num_rows, bool)
    for start, stop in ranges:
        masked[start:stop] = True
    return masked


def ranges_of(masked: np.ndarray) -> Ranges:
    """Returns the ranges in which an array of booleans is True."""
    edges = np.flatnonzero(np.diff(masked.astype(np.int8), prepend=0, append=0))
    return tuple((int(start), int(stop)) for start, stop in edges.reshape(-1, 2))
