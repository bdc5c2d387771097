"""Relaxed deals, in which patterns run a fractional number of times.

The solver of a deal's supplies tries budgets and batch sizes. For each choice, linear
programming finds the fewest replica-steps that run all samples.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from jaxload.balance.bins import Effort, fill_bins
from jaxload.balance.pattern import BatchOption, Deal, Pattern
from jaxload.balance.rounding import deal_idle, round_deal
from jaxload.balance.supply import Supply

GOOD_ENOUGH = 0.002
"""Idle share at which no more batch sizes are added."""

_COARSE = 1_500  # Units per budget that costs are rounded to while searching.
_PENALTY = 2e-4  # Budgets charged per micro-batch, to prefer one large one to two.
_REPEATS = 2e-3  # Budgets charged per repeat in a pattern, to prefer mixed patterns.
_NUM_BUDGETS = 6
_NUM_REFINED = 3  # Budgets that are also tried with more batch sizes.
_MIN_EVEN = 0.6  # Smallest batch that may replace the largest, as a share of it.
_MAX_EVEN = 1_000  # Most batches that are compared for that.
_LADDER = (1, 2, 3, 4, 6, 8)  # Batch sizes, in units, to try besides the largest.


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelaxedDeal:
    """Patterns of an epoch, each with a fractional number of times."""

    budget: float
    programs: tuple[BatchOption, ...]
    idle: float
    times: tuple[float, ...]
    patterns: tuple[np.ndarray, ...]

    def samples(self) -> np.ndarray:
        """Returns the number of samples that each program runs."""
        batch = np.array([p.batch for p in self.programs])
        return batch * sum(
            t * p for t, p in zip(self.times, self.patterns, strict=True)
        )


def preference(option: RelaxedDeal) -> tuple[int, float]:
    """Returns a key that sorts relaxed deals, the best first."""
    # Among budgets that idle about equally, the larger one fills memory better.
    return round(option.idle / 5e-4), -option.budget


class RelaxedSolver:
    """Searches budgets and batch sizes for the supplies of a deal."""

    def __init__(
        self,
        supplies: Sequence[Supply],
        fixed: float,
        accumulate: int,
        num_replicas: int,
        min_batches: int,
        effort: Effort,
        on_attempt: Callable[[], None] = lambda: None,
    ):
        self._effort = effort
        self._on_attempt = on_attempt
        self._num_replicas = num_replicas
        self._min_batches = min_batches
        self._supplies = supplies
        self._fixed = fixed
        self._accumulate = accumulate
        self._totals = np.array([supply.num_samples for supply in supplies])

    def max_cost_in_memory(self) -> float:
        """Returns the cost of the costliest micro-batch within the memory budget."""
        return max(self._cost(supply, supply.max_batch) for supply in self._supplies)

    def best_of(self, budgets: list[float], max_programs: int) -> RelaxedDeal:
        """Returns the best relaxed deal, with several batches per form if needed."""
        options = [self.solve(b, self.largest(b), _COARSE) for b in budgets]
        best = min(options, key=preference)
        if best.idle > GOOD_ENOUGH and max_programs > len(self._supplies):
            likely = sorted(options, key=preference)[:_NUM_REFINED]
            options = [
                self.solve(o.budget, self.ladder(o.budget), _COARSE) for o in likely
            ]
            best = self.fewer_programs(min(options, key=preference), max_programs)
        return best

    def budgets(self, most: float) -> list[float]:
        """Returns cost limits to try for what one replica runs in one step, ascending.

        Limits range from the cost of the costliest smallest batch up to `most`, evenly
        spaced. A limit that is a multiple of the cost of a form's smallest batch can
        be filled exactly by that form, so such multiples are added for the two forms
        with the highest total cost.
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
        """Returns one program for each form, as large as memory and budget allow."""
        return tuple(
            BatchOption(form=i, batch=self._batch(supply, budget))
            for i, supply in enumerate(self._supplies)
        )

    def ladder(self, budget: float) -> tuple[BatchOption, ...]:
        """Returns several programs for each form, to choose from."""
        programs = []
        for i, supply in enumerate(self._supplies):
            largest = self._batch(supply, budget) // supply.unit
            sizes = {n for n in (*_LADDER, largest // 2) if 0 < n < largest}
            programs += [
                BatchOption(form=i, batch=n * supply.unit)
                for n in sorted(sizes | {largest})
            ]
        return tuple(programs)

    def solve(
        self,
        budget: float,
        programs: tuple[BatchOption, ...],
        resolution: int,
        start: RelaxedDeal | None = None,
    ) -> RelaxedDeal:
        """Finds the fewest replica-steps within a budget that use all samples."""
        costs = self._costs(programs)
        forms = np.array([p.form for p in programs])
        bins, used = fill_bins(
            forms,
            np.array([p.batch for p in programs]),
            costs,
            self._totals,
            bin_size=budget * self._accumulate,
            resolution=resolution,
            penalty=_PENALTY / self._accumulate,
            repeats=_REPEATS / self._accumulate,
            patterns=start.patterns if start else (),
            effort=self._effort,
        )
        self._on_attempt()
        work = sum(t * float(p @ costs) for t, p in used)
        return RelaxedDeal(
            budget=budget,
            programs=programs,
            idle=1 - work / (bins * budget * self._accumulate),
            times=tuple(t for t, _ in used),
            patterns=tuple(p for _, p in used),
        )

    def fewer_programs(self, option: RelaxedDeal, limit: int) -> RelaxedDeal:
        """Returns a relaxed deal of fewer programs, with about the same idle share."""
        largest = set(self.largest(option.budget))
        costs = self._costs(option.programs)
        batch = np.array([p.batch for p in option.programs])
        work = option.samples() * costs / batch
        extra = [
            option.programs[i]
            for i in np.argsort(-work, kind="stable")
            if work[i] > 0 and option.programs[i] not in largest
        ]
        target = max(GOOD_ENOUGH, 1.1 * option.idle)
        low, high = 0, min(len(extra), limit - len(largest))
        best = self._with(option.budget, largest, extra[:high])
        while low < high:  # Bisects for the fewest extra programs that are good enough.
            middle = (low + high) // 2
            tried = self._with(option.budget, largest, extra[:middle])
            if tried.idle <= max(target, best.idle):
                best, high = tried, middle
            else:
                low = middle + 1
        return best

    def rounded(self, option: RelaxedDeal) -> Deal:
        """Rounds a relaxed deal to whole numbers."""
        kept = self._kept(option)
        programs = tuple(option.programs[i] for i in kept)
        return round_deal(
            programs,
            self._costs(programs),
            self._totals,
            num_replicas=self._num_replicas,
            budget=option.budget,
            capacity=option.budget * self._accumulate,
            patterns=[
                Pattern(counts=tuple(p[kept].tolist()), times=math.floor(t + 1e-6))
                for t, p in zip(option.times, option.patterns, strict=True)
            ],
        )

    def idle(self, deal: Deal) -> float:
        """Returns the idle share of a deal; see `deal_idle`."""
        return deal_idle(deal, self._costs(deal.options), self._totals)

    def _kept(self, relaxed: RelaxedDeal) -> list[int]:
        """Returns the indices of the programs that a relaxed deal runs.

        A form whose programs all run less than half a sample keeps its first program.
        """
        samples = relaxed.samples()
        kept = set(np.flatnonzero(samples > 0.5).tolist())
        served = {relaxed.programs[i].form for i in kept}
        for i, program in enumerate(relaxed.programs):
            if program.form not in served:
                kept.add(i)
                served.add(program.form)
        return sorted(kept)

    def _with(
        self, budget: float, largest: set[BatchOption], extra: list[BatchOption]
    ) -> RelaxedDeal:
        programs = sorted({*largest, *extra}, key=lambda p: (p.form, p.batch))
        return self.solve(budget, tuple(programs), _COARSE)

    def _batch(self, supply: Supply, budget: float) -> int:
        unit = supply.unit
        affordable = math.floor((budget - self._fixed) / (unit * supply.cost) + 1e-9)
        available = supply.num_samples // unit
        largest = max(1, min(supply.max_batch // unit, affordable, available))
        if not self._min_batches:
            return largest * unit
        largest = min(largest, max(1, available // self._min_batches))
        least = max(math.floor(largest * _MIN_EVEN), largest - _MAX_EVEN)
        # Among batches that are not much smaller, the last micro-batch of the chosen
        # one lacks the fewest samples.
        return min(
            (n * unit for n in range(largest, least, -1)),
            key=lambda batch: -supply.num_samples % batch,
        )

    def _cost(self, supply: Supply, batch: int) -> float:
        return self._fixed + batch * supply.cost

    def _costs(self, programs: Sequence[BatchOption]) -> np.ndarray:
        return np.array([self._cost(self._supplies[p.form], p.batch) for p in programs])
