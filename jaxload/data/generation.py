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

from jaxload.data.shard import Shard

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


def parse_generations(
    content: Sequence[Mapping[str, Any]], shards: Sequence[Shard]
) -> tuple[Generation, ...]:
    """Builds generations from what JSON holds; raises ValueError if it is invalid."""
    generations = tuple(map(_parse, content))
    ends = [generation.num_shards for generation in generations]
    if not ends or ends != sorted(ends) or ends[-1] != len(shards) or ends[0] < 0:
        raise ValueError(f"generations of {ends} shards, of {len(shards)}")
    num_rows = [0, *itertools.accumulate(shard.num_records for shard in shards)]
    for generation in generations:
        most = num_rows[generation.num_shards]
        for start, stop in generation.masked:
            if not 0 <= start < stop <= most:
                raise ValueError(f"masked rows {start} to {stop}, of {most}")
    return generations


def _parse(fields: Mapping[str, Any]) -> Generation:
    ranges = tuple((start, stop) for start, stop in fields["masked"])
    generation = Generation(**{**fields, "masked": ranges})
    numbers = [*itertools.chain(*ranges), generation.num_shards, generation.num_updates]
    if not all(type(number) is int for number in numbers):
        raise ValueError("numbers that are not whole")
    if generation.num_updates < 1 or not isinstance(generation.fingerprint, dict):
        raise ValueError("a generation without updates or fingerprint")
    return generation


def all_masked(generations: Iterable[Generation]) -> Ranges:
    """Returns the rows that are masked after all of these generations."""
    return tuple(itertools.chain(*(g.masked for g in generations)))


def num_covered(generations: Sequence[Generation]) -> int:
    """Returns the number of updates that a manifest covers; 0 without a manifest."""
    return generations[-1].num_updates if generations else 0


def extended(
    generations: Sequence[Generation], newest: Generation
) -> tuple[Generation, ...]:
    """Appends a generation, unless it has the rows of the last one.

    In that case, the last one also keeps its fingerprint, and so the digest by which
    runs recognize it.
    """
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
