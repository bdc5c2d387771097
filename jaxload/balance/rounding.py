"""From patterns that are used a fraction of a time to a deal in whole numbers.

Patterns are rounded down, and the samples that are left are packed into a few more,
each used once an epoch: the rest. A shape's samples seldom fill whole micro-batches, so
its last one in the rest is run only in the epochs in which what was carried over fills
it. A pattern of the rest that would then have nothing to run is avoided, and where it
cannot be, it is kept only if the other replicas of its step have something: no step is
empty.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxload.balance.packing import partition
from jaxload.balance.pattern import BatchOption, Deal, Pattern

_SLACK = 1e-3  # Share of a budget that a pattern of the rest may be over it.
_MAX_TRIES = 8
_SHORT_EPOCH = 48  # Micro-batches.


def round_deal(
    programs: tuple[BatchOption, ...],
    costs: np.ndarray,
    totals: np.ndarray,
    *,
    num_replicas: int,
    budget: float,
    room: float,
    patterns: Sequence[Pattern],
) -> Deal:
    """Makes a deal of patterns that use at most about all samples.

    Args:
      programs: What patterns count.
      costs: Of a micro-batch of each program.
      totals: Samples of each shape.
      num_replicas: Patterns that make a step.
      budget: Compute budget, for the record.
      room: What a replica-step may cost.
      patterns: With times that are rounded down.
    """
    uses = _uses(programs, len(totals))
    smallest = [programs[j].batch for j in _smallest(programs, len(totals))]
    if (totals / smallest).sum() <= _SHORT_EPOCH:
        patterns = []  # Packing all of it comes closer than rounding.
    patterns, left = _within_totals(patterns, uses, totals)
    rest = _pack(programs, costs, left, room, rigid=bool(patterns))
    for _ in range(_MAX_TRIES):
        if not patterns or not _without_work(rest, programs, left):
            break
        # Packed with the micro-batches of one pattern more, it may come out better.
        most = max(range(len(patterns)), key=lambda i: patterns[i].times)
        left = left + uses @ np.array(patterns[most].counts)
        fewer = dataclasses.replace(patterns[most], times=patterns[most].times - 1)
        patterns[most : most + 1] = [fewer] if fewer.times else []
        rest = _pack(programs, costs, left, room, rigid=bool(patterns))
    # A step may touch two epochs, with as many from each.
    rest = _merge_empty(rest, programs, left, allowed=(num_replicas - 1) // 2)
    return Deal(
        options=programs,
        budget=budget,
        patterns=tuple(sorted(patterns, key=lambda p: p.counts, reverse=True)),
        rest=tuple(Pattern(counts=tuple(c), times=1) for c in rest),
    )


def deal_idle(deal: Deal, costs: np.ndarray, totals: np.ndarray) -> float:
    """Idle share of a deal, if every step has one of the longest patterns."""
    cost = np.array([np.dot(p.counts, costs) for p in (*deal.patterns, *deal.rest)])
    times = np.array([p.times for p in deal.patterns], np.int64)
    work = float(cost[: len(times)] @ times)
    uses = _uses(deal.options, len(totals))
    left = totals.copy()
    for pattern in deal.patterns:
        left = left - pattern.times * (uses @ np.array(pattern.counts))
    for shape, program in enumerate(_smallest(deal.options, len(totals))):
        work += left[shape] / deal.options[program].batch * costs[program]
    return float(1 - work / (deal.num_bins * cost.max()))


def _uses(programs: tuple[BatchOption, ...], num_shapes: int) -> np.ndarray:
    """Samples of each shape that a micro-batch of each program takes."""
    uses = np.zeros((num_shapes, len(programs)), np.int64)
    for j, program in enumerate(programs):
        uses[program.shape, j] = program.batch
    return uses


def _smallest(programs: tuple[BatchOption, ...], num_shapes: int) -> list[int]:
    """Each shape's program with the smallest batch."""
    return [
        min(
            (j for j, program in enumerate(programs) if program.shape == shape),
            key=lambda j: programs[j].batch,
        )
        for shape in range(num_shapes)
    ]


def _within_totals(
    patterns: Sequence[Pattern], uses: np.ndarray, totals: np.ndarray
) -> tuple[list[Pattern], np.ndarray]:
    """Leaves out patterns that use more samples than there are; and what is left."""
    left = totals.astype(np.int64)
    kept = []
    for pattern in patterns:
        each = uses @ np.array(pattern.counts)
        times = min([pattern.times, *(left[each > 0] // each[each > 0])])
        if times > 0:
            kept.append(dataclasses.replace(pattern, times=int(times)))
            left = left - times * each
    return kept, left


def _pack(
    programs: tuple[BatchOption, ...],
    costs: np.ndarray,
    left: np.ndarray,
    room: float,
    *,
    rigid: bool,
) -> list[list[int]]:
    """Packs what is left in micro-batches of the smallest size: counts of programs.

    One that is full only in some epochs counts as well. If `rigid`, none costs more
    than the room.
    """
    items: list[int] = []
    for shape, program in enumerate(_smallest(programs, len(left))):
        items += [program] * math.ceil(left[shape] / programs[program].batch)
    if not items:
        return []
    sizes = [float(costs[j]) for j in items]
    need = sum(sizes) / room
    num_bins = max(1, math.ceil(need - _SLACK) if rigid else round(need))
    while True:
        bins = partition(sizes, num_bins)
        fullest = max(sum(sizes[i] for i in b) for b in bins)
        if not rigid or fullest <= max(room * (1 + _SLACK), max(sizes)):
            break
        num_bins += 1
    counts = [np.bincount([items[i] for i in b], minlength=len(costs)) for b in bins]
    return _ordered([c.tolist() for c in counts if c.any()], programs, left)


def _ordered(
    rest: list[list[int]], programs: tuple[BatchOption, ...], left: np.ndarray
) -> list[list[int]]:
    """An order in which, if there is one, each has something to run in every epoch.

    The last micro-batch of a shape is the one that stays away; first comes certain.
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
    """Those of the rest that are empty in epochs that bring no whole micro-batch."""
    if not rest:
        return []
    certain = np.array([left[p.shape] // p.batch for p in programs])
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
    """Adds what may be empty to another: a long step is better than an empty one."""
    while len(rest) > 1:
        empty = _without_work(rest, programs, left)
        if len(empty) <= allowed:
            break
        merged = rest.pop(empty[-1])
        rest[0] = [a + b for a, b in zip(rest[0], merged, strict=True)]
    return rest
