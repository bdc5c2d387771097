"""Rounds patterns that run a fractional number of times to a deal in whole numbers.

The times of each pattern are rounded down. The samples left over are packed into a few
more patterns that run once an epoch: the rest. The samples of a form seldom fill whole
micro-batches, so the last micro-batch of a form in the rest runs only in epochs in
which carried-over samples fill it. A pattern of the rest may then have nothing to run.
Such patterns are avoided if possible. If some remain, they are merged until they are
too few to leave a step empty.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxload.balance.packing import fewest_bins, partition
from jaxload.balance.pattern import BatchOption, Deal, Pattern

_SLACK = 1e-3  # Share of the budget by which a pattern of the rest may exceed it.
_MAX_TRIES = 8
_SHORT_EPOCH = 48  # Most micro-batches of an epoch that is packed as a whole.


def round_deal(
    programs: tuple[BatchOption, ...],
    costs: np.ndarray,
    totals: np.ndarray,
    *,
    num_replicas: int,
    budget: float,
    capacity: float,
    patterns: Sequence[Pattern],
) -> Deal:
    """Builds a deal from patterns that use nearly all samples.

    Args:
      programs: Programs that the counts of patterns refer to.
      costs: Cost of a micro-batch of each program.
      totals: Number of samples of each form.
      num_replicas: Number of replicas, and of patterns in a step.
      budget: Compute budget to record in the deal.
      capacity: Upper bound on the cost of a replica-step.
      patterns: Patterns with times rounded down.
    """
    uses = _uses(programs, len(totals))
    smallest = [programs[j].batch for j in _smallest(programs, len(totals))]
    if (totals / smallest).sum() <= _SHORT_EPOCH:
        patterns = []  # Packing a short epoch balances better than rounding.
    patterns, left = _within_totals(patterns, programs, totals)
    rest = _pack(programs, costs, left, capacity, rigid=bool(patterns))
    for _ in range(_MAX_TRIES):
        if not patterns or not _without_work(rest, programs, left):
            break
        # With the samples of one more pattern, the rest may pack better.
        most = max(range(len(patterns)), key=lambda i: patterns[i].times)
        left = left + uses @ np.array(patterns[most].counts)
        fewer = dataclasses.replace(patterns[most], times=patterns[most].times - 1)
        patterns[most : most + 1] = [fewer] if fewer.times else []
        rest = _pack(programs, costs, left, capacity, rigid=bool(patterns))
    # A step may span two epochs, each with this many empty patterns.
    rest = _merge_empty(rest, programs, left, allowed=(num_replicas - 1) // 2)
    return Deal(
        options=programs,
        budget=budget,
        patterns=tuple(sorted(patterns, key=lambda p: p.counts, reverse=True)),
        rest=tuple(Pattern(counts=tuple(c), times=1) for c in rest),
    )


def deal_idle(deal: Deal, costs: np.ndarray, totals: np.ndarray) -> float:
    """Returns the idle share if each step took as long as the costliest pattern."""
    cost = np.array([np.dot(p.counts, costs) for p in (*deal.patterns, *deal.rest)])
    times = np.array([p.times for p in deal.patterns], np.int64)
    work = float(cost[: len(times)] @ times)
    uses = _uses(deal.options, len(totals))
    left = totals.copy()
    for pattern in deal.patterns:
        left = left - pattern.times * (uses @ np.array(pattern.counts))
    for form, program in enumerate(_smallest(deal.options, len(totals))):
        work += left[form] / deal.options[program].batch * costs[program]
    return float(1 - work / (deal.num_bins * cost.max()))


def _uses(programs: tuple[BatchOption, ...], num_forms: int) -> np.ndarray:
    """Returns the samples that each program takes of each form, [forms, programs]."""
    uses = np.zeros((num_forms, len(programs)), np.int64)
    for j, program in enumerate(programs):
        uses[program.form, j] = program.batch
    return uses


def _smallest(programs: tuple[BatchOption, ...], num_forms: int) -> list[int]:
    """Returns the index of each form's program with the smallest batch."""
    return [
        min(
            (j for j, program in enumerate(programs) if program.form == form),
            key=lambda j: programs[j].batch,
        )
        for form in range(num_forms)
    ]


def _within_totals(
    patterns: Sequence[Pattern], programs: tuple[BatchOption, ...], totals: np.ndarray
) -> tuple[list[Pattern], np.ndarray]:
    """Limits patterns to the available samples; also returns the samples left over.

    Relaxed patterns may use more than all samples of a form whose micro-batches fill
    gaps. Once they run out, patterns run without them. Dropping such patterns would
    leave over their other samples, without a bound on their number.
    """
    left = totals.tolist()  # Python's integers, which do not overflow.
    kept: dict[tuple[int, ...], int] = {}
    for pattern in patterns:
        parts = [([], pattern.times)] if pattern.times else []
        for program, count in zip(programs, pattern.counts, strict=True):
            available = left[program.form] // program.batch
            split = []
            for counts, times in parts:
                used = min(available, times * count)
                available -= used
                left[program.form] -= used * program.batch
                # If too few are available, some of the replica-steps get one more.
                fewer, num_more = divmod(used, times)
                split.append(([*counts, fewer + 1], num_more))
                split.append(([*counts, fewer], times - num_more))
            parts = [(counts, times) for counts, times in split if times]
        for counts, times in parts:
            if any(counts):
                kept[tuple(counts)] = kept.get(tuple(counts), 0) + times
    return [Pattern(counts=c, times=n) for c, n in kept.items()], np.array(left)


def _pack(
    programs: tuple[BatchOption, ...],
    costs: np.ndarray,
    left: np.ndarray,
    capacity: float,
    *,
    rigid: bool,
) -> list[list[int]]:
    """Packs the samples left over into patterns, in batches of the smallest size.

    Micro-batches that are full only in some epochs are packed as well. If `rigid`, no
    pattern costs more than `capacity`, unless a single micro-batch does. Returns the
    counts of programs in each pattern.
    """
    kinds = _smallest(programs, len(left))
    # Python's integers, which do not overflow.
    counts = [
        -(-n // programs[j].batch) for n, j in zip(left.tolist(), kinds, strict=True)
    ]
    if not any(counts):
        return []
    sizes = [float(costs[j]) for j in kinds]
    total = math.fsum(n * size for n, size in zip(counts, sizes, strict=True))
    need = total / capacity
    if rigid:
        largest = max(size for n, size in zip(counts, sizes, strict=True) if n)
        most = max(capacity * (1 + _SLACK), largest)
        bins = fewest_bins(sizes, counts, most, at_least=math.ceil(need - _SLACK))
    else:
        bins = partition(sizes, counts, max(1, round(need)))
    rest = np.zeros((len(bins), len(programs)), np.int64)
    rest[:, kinds] = bins
    return _ordered(rest[rest.any(axis=1)].tolist(), programs, left)


def _ordered(
    rest: list[list[int]], programs: tuple[BatchOption, ...], left: np.ndarray
) -> list[list[int]]:
    """Orders the rest so that each pattern has work in every epoch, if possible.

    If an epoch has too few samples, the last micro-batch of a form does not run.
    Patterns that may be empty are therefore moved to the front.
    """
    for _ in rest:
        empty = _without_work(rest, programs, left)
        if not empty:
            break
        rest = [rest[i] for i in empty] + [
            r for i, r in enumerate(rest) if i not in empty
        ]
    return rest


def _without_work(
    rest: list[list[int]], programs: tuple[BatchOption, ...], left: np.ndarray
) -> list[int]:
    """Returns the indices of patterns of the rest that are empty in some epochs."""
    if not rest:
        return []
    certain = np.array([left[p.form] // p.batch for p in programs])
    counts = np.array(rest)
    before = np.cumsum(counts, axis=0) - counts
    run = np.clip(certain - before, 0, counts).sum(axis=1)
    return np.flatnonzero(run == 0).tolist()


def _merge_empty(
    rest: list[list[int]],
    programs: tuple[BatchOption, ...],
    left: np.ndarray,
    *,
    allowed: int,
) -> list[list[int]]:
    """Merges leftover patterns until at most `allowed` of them run nothing in an epoch.

    A leftover pattern runs in one step per epoch. Its replica is idle for that step if
    the samples `left` over, per form, are used up by then. Such a pattern is added to
    the first one, since a longer step wastes less than a step without work.

    Returns:
        `rest`, with the remaining patterns: micro-batches of each of the `programs`.
    """
    while len(rest) > 1:
        empty = _without_work(rest, programs, left)
        if len(empty) <= allowed:
            break
        merged = rest.pop(empty[-1])
        rest[0] = [a + b for a, b in zip(rest[0], merged, strict=True)]
    return rest
