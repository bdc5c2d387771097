"""Deals an epoch over replicas and steps so that a step's replicas finish together.

A replica-step is what one replica runs in one step: a pattern of micro-batches. If all
patterns cost the same, no replica waits, whichever patterns meet in a step; so patterns
are chosen for the whole epoch at once, each close to the budget, so that together they
use every sample. What does not divide evenly is packed into a few patterns that are
used once an epoch. The deal is a table of fixed size, whatever the number of samples.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxload.balance.packing import fill_bins
from jaxload.balance.pattern import BatchOption, Deal, Pattern
from jaxload.balance.rounding import deal_idle, round_deal
from jaxload.errors import InputError

_GOOD_ENOUGH = 0.002  # Idle share at which no more batch sizes are added.
_TOO_MUCH = 0.02  # Idle share at which budgets beyond the memory are tried.
_COARSE, _FINE = 1_500, 20_000  # Parts of a budget that costs are rounded to.
_PENALTY = 2e-4  # Of a micro-batch, in budgets: prefers one large to two small.
_REPEATS = 2e-3  # Of a micro-batch that its pattern has already: prefers mixtures.
_NUM_BUDGETS = 6
_NUM_REFINED = 3  # Budgets that are tried with more batch sizes.
_SMALL_PIECES = 8  # Micro-batches that a shape is cut into at least, if need be.
_MIN_EVEN = 0.6  # Share of the largest batch that an even one has at least.
_LADDER = (1, 2, 3, 4, 6, 8)  # Batch sizes that a shape may have besides its largest.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Supply:
    """Samples of one shape."""

    num_samples: int
    cost: float
    """Cost that one sample adds to a micro-batch."""

    max_batch: int
    """Samples of a micro-batch that memory allows; at least one unit."""

    unit: int = 1
    """Smallest batch, of which every batch is a multiple."""


def make_deal(
    supplies: Sequence[Supply],
    *,
    fixed: float,
    accumulate: int,
    num_replicas: int,
    max_programs: int,
    budget: float = 0.0,
) -> Deal:
    """Deals the samples of some shapes.

    Args:
      supplies: What there is, at least one sample of each.
      fixed: Cost of a micro-batch besides its samples.
      accumulate: Budgets that a replica gets in a step.
      num_replicas: Replicas of a step; there have to be as many units of samples.
      max_programs: Programs that may be compiled; at least one for each shape.
      budget: The compute budget; 0 has it searched.
    """
    _check_enough(supplies, num_replicas)
    deals = []
    # Whole micro-batches of few samples leave gaps; batches that divide them leave
    # fewer, and small batches small ones.
    for pieces in (0, 1, _SMALL_PIECES):
        solver = _Solver(supplies, fixed, accumulate, num_replicas, pieces)
        deals.append(_deal(solver, max_programs, budget))
        if solver.idle(deals[-1]) <= _GOOD_ENOUGH:
            break
    return min(deals, key=solver.idle)


def deal_again(
    supplies: Sequence[Supply],
    options: Sequence[BatchOption],
    *,
    fixed: float,
    accumulate: int,
    num_replicas: int,
    budget: float,
) -> Deal:
    """Deals other numbers of samples with batch sizes that are given.

    Args:
      supplies: As in `make_deal`; shapes without an option are an error.
      options: Batch sizes, at least one for each shape.
      fixed: Cost of a micro-batch besides its samples.
      accumulate: Budgets that a replica gets in a step.
      num_replicas: Replicas of a step.
      budget: The compute budget of the deal that the options come from.
    """
    _check_enough(supplies, num_replicas)
    solver = _Solver(supplies, fixed, accumulate, num_replicas, pieces=0)
    return solver.rounded(solver.solve(budget, tuple(options), _FINE))


def _check_enough(supplies: Sequence[Supply], num_replicas: int) -> None:
    """Refuses an epoch in which a replica would have nothing to run."""
    if sum(supply.num_samples // supply.unit for supply in supplies) < num_replicas:
        num_samples = sum(supply.num_samples for supply in supplies)
        unit = max(supply.unit for supply in supplies)
        raise InputError(
            f"{num_samples} samples for {num_replicas} replicas: expected at least "
            f"{'one' if unit == 1 else unit} for each; use fewer replicas, or more data"
        )


def _deal(solver: "_Solver", max_programs: int, budget: float) -> Deal:
    """The best deal with one program for each shape or, if it idles, some more."""
    most = solver.most_at_once()
    best = solver.best_of([budget] if budget else solver.budgets(most), max_programs)
    if best.idle > _TOO_MUCH and not budget:
        # Two shapes of unlike cost, of which memory holds one or two: more together
        # come closer to each other.
        larger = [b for b in solver.budgets(2 * most) if b > most]
        best = min(best, solver.best_of(larger, max_programs), key=_preference)
    return solver.rounded(solver.solve(best.budget, best.programs, _FINE, best))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Relaxed:
    """A deal in which patterns are used a fraction of a time."""

    budget: float
    programs: tuple[BatchOption, ...]
    idle: float
    times: tuple[float, ...]
    patterns: tuple[np.ndarray, ...]

    def samples(self) -> np.ndarray:
        """Samples that each program runs."""
        batch = np.array([p.batch for p in self.programs])
        return batch * sum(
            t * p for t, p in zip(self.times, self.patterns, strict=True)
        )


def _preference(option: _Relaxed) -> tuple[int, float]:
    # Of budgets that idle as little, the larger: its micro-batches fill the memory.
    return round(option.idle / 5e-4), -option.budget


class _Solver:
    """The shapes of a deal, and what is tried on them."""

    def __init__(
        self,
        supplies: Sequence[Supply],
        fixed: float,
        accumulate: int,
        num_replicas: int,
        pieces: int,
    ):
        self._num_replicas = num_replicas
        self._pieces = pieces
        self._supplies = supplies
        self._fixed = fixed
        self._accumulate = accumulate
        self._totals = np.array([supply.num_samples for supply in supplies])

    def most_at_once(self) -> float:
        """Cost of the dearest micro-batch that fits into memory."""
        return max(self._cost(supply, supply.max_batch) for supply in self._supplies)

    def best_of(self, budgets: list[float], max_programs: int) -> _Relaxed:
        """The best with one program for each shape or, if it idles, some more."""
        options = [self.solve(b, self.largest(b), _COARSE) for b in budgets]
        best = min(options, key=_preference)
        if best.idle > _GOOD_ENOUGH and max_programs > len(self._supplies):
            likely = sorted(options, key=_preference)[:_NUM_REFINED]
            options = [
                self.solve(o.budget, self.ladder(o.budget), _COARSE) for o in likely
            ]
            best = self.fewer_programs(min(options, key=_preference), max_programs)
        return best

    def budgets(self, most: float) -> list[float]:
        """Budgets to try, from the dearest sample on.

        Multiples of what the shapes with the most work cost fill replica-steps without
        any help, so they are tried besides an even spread.
        """
        least = max(self._cost(supply, supply.unit) for supply in self._supplies)
        tried = np.linspace(least, most, _NUM_BUDGETS).tolist()
        by_work = sorted(self._supplies, key=lambda x: -x.num_samples * x.cost)
        for supply in by_work[:2]:
            step = self._cost(supply, supply.unit) / self._accumulate
            first, last = math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9)
            every = max(1, (last - first) // _NUM_BUDGETS)
            tried += [k * step for k in range(first, last + 1, every)]
        distinct: list[float] = []
        for b in sorted(tried):
            if not distinct or b > distinct[-1] * 1.002:
                distinct.append(b)
        return distinct

    def largest(self, budget: float) -> tuple[BatchOption, ...]:
        """One program for each shape: as large as memory and the budget allow."""
        return tuple(
            BatchOption(shape=i, batch=self._batch(supply, budget))
            for i, supply in enumerate(self._supplies)
        )

    def ladder(self, budget: float) -> tuple[BatchOption, ...]:
        """Several programs for each shape, to choose from."""
        programs = []
        for i, supply in enumerate(self._supplies):
            largest = self._batch(supply, budget) // supply.unit
            sizes = {n for n in (*_LADDER, largest // 2) if 0 < n < largest}
            programs += [
                BatchOption(shape=i, batch=n * supply.unit)
                for n in sorted(sizes | {largest})
            ]
        return tuple(programs)

    def solve(
        self,
        budget: float,
        programs: tuple[BatchOption, ...],
        resolution: int,
        start: _Relaxed | None = None,
    ) -> _Relaxed:
        """The fewest replica-steps of a budget that use all samples."""
        costs = self._costs(programs)
        shapes = np.array([p.shape for p in programs])
        bins, used = fill_bins(
            shapes,
            np.array([p.batch for p in programs]),
            costs,
            self._totals,
            bin_size=budget * self._accumulate,
            resolution=resolution,
            penalty=_PENALTY / self._accumulate,
            repeats=_REPEATS / self._accumulate,
            patterns=start.patterns if start else (),
        )
        work = sum(t * float(p @ costs) for t, p in used)
        return _Relaxed(
            budget=budget,
            programs=programs,
            idle=1 - work / (bins * budget * self._accumulate),
            times=tuple(t for t, _ in used),
            patterns=tuple(p for _, p in used),
        )

    def fewer_programs(self, option: _Relaxed, limit: int) -> _Relaxed:
        """The same with as few programs as do about as well."""
        largest = set(self.largest(option.budget))
        costs = self._costs(option.programs)
        batch = np.array([p.batch for p in option.programs])
        work = option.samples() * costs / batch
        extra = [
            option.programs[i]
            for i in np.argsort(-work, kind="stable")
            if work[i] > 0 and option.programs[i] not in largest
        ]
        target = max(_GOOD_ENOUGH, 1.1 * option.idle)
        low, high = 0, min(len(extra), limit - len(largest))
        best = self._with(option.budget, largest, extra[:high])
        while low < high:  # The least number of extra programs that is good enough.
            middle = (low + high) // 2
            tried = self._with(option.budget, largest, extra[:middle])
            if tried.idle <= max(target, best.idle):
                best, high = tried, middle
            else:
                low = middle + 1
        return best

    def rounded(self, option: _Relaxed) -> Deal:
        """The same in whole numbers."""
        kept = self._used(option)
        programs = tuple(option.programs[i] for i in kept)
        return round_deal(
            programs,
            self._costs(programs),
            self._totals,
            num_replicas=self._num_replicas,
            budget=option.budget,
            room=option.budget * self._accumulate,
            patterns=[
                Pattern(counts=tuple(p[kept].tolist()), times=math.floor(t + 1e-6))
                for t, p in zip(option.times, option.patterns, strict=True)
            ],
        )

    def idle(self, deal: Deal) -> float:
        """Idle share of a deal, if every step has one of the longest patterns."""
        return deal_idle(deal, self._costs(deal.options), self._totals)

    def _used(self, option: _Relaxed) -> list[int]:
        """Programs that are run, and at least one of each shape."""
        samples = option.samples()
        used = set(np.flatnonzero(samples > 0.5).tolist())
        served = {option.programs[i].shape for i in used}
        for i, program in enumerate(option.programs):
            if program.shape not in served:
                used.add(i)
                served.add(program.shape)
        return sorted(used)

    def _with(
        self, budget: float, largest: set[BatchOption], extra: list[BatchOption]
    ) -> _Relaxed:
        programs = sorted({*largest, *extra}, key=lambda p: (p.shape, p.batch))
        return self.solve(budget, tuple(programs), _COARSE)

    def _batch(self, supply: Supply, budget: float) -> int:
        unit = supply.unit
        fits = math.floor((budget - self._fixed) / (unit * supply.cost) + 1e-9)
        available = supply.num_samples // unit
        largest = max(1, min(supply.max_batch // unit, fits, available))
        if not self._pieces:
            return largest * unit
        largest = min(largest, max(1, available // self._pieces))
        # Of batches not much smaller, the one that lacks least to use up all samples.
        return min(
            (n * unit for n in range(largest, math.floor(largest * _MIN_EVEN), -1)),
            key=lambda batch: -supply.num_samples % batch,
        )

    def _cost(self, supply: Supply, batch: int) -> float:
        return self._fixed + batch * supply.cost

    def _costs(self, programs: Sequence[BatchOption]) -> np.ndarray:
        return np.array(
            [self._cost(self._supplies[p.shape], p.batch) for p in programs]
        )
