"""Fills as few bins as possible: the cutting-stock problem.

`fill_bins` finds how often to use each pattern of items, none larger than a bin, to use
up given supplies. It solves the linear relaxation by column generation (Gilmore and
Gomory). With thousands of bins, the relaxation is within a few bins of the optimum, and
it needs no more patterns than there are supplies.
"""

import dataclasses
import math
from collections.abc import Sequence

import highspy
import numpy as np

_MAX_PATTERNS = 150
_FEW_PATTERNS = 30  # The same for a search whose effort is spent.
# If amounts are far apart, the simplex method may fail from the previous basis.
_RETRIES = ("simplex", "ipm")
_IMPROVEMENT = 1e-4  # Share of a bin that a new pattern must save.


@dataclasses.dataclass
class Effort:
    """Work of searches, counted in offers of items to a knapsack.

    Searches that share a spent effort give up sooner. Unlike a clock, the count is the
    same on every machine, so that all processes find the same bins.
    """

    most: int | float = math.inf
    spent: int = 0

    @property
    def is_spent(self) -> bool:
        """True once the work exceeds its bound."""
        return self.spent > self.most


def fill_bins(
    supply_of: np.ndarray,
    amounts: np.ndarray,
    sizes: np.ndarray,
    totals: np.ndarray,
    *,
    bin_size: float,
    resolution: int,
    penalty: float,
    repeats: float = 0.0,
    patterns: Sequence[np.ndarray] = (),
    effort: "Effort | None" = None,
) -> tuple[float, list[tuple[float, np.ndarray]]]:
    """Covers all supplies with as few bins as possible, by linear programming.

    Item j takes `amounts[j]` from supply `supply_of[j]` and fills `sizes[j]` of a bin.
    An item larger than a bin has a bin to itself.

    Returns:
      The number of bins, without charges; and pairs of a number of bins and the pattern
      that they have, the count of each item. Counts are whole, numbers of bins are not.

    Args:
      supply_of: Index of the supply that each item draws from.
      amounts: Amount that each item takes from its supply.
      sizes: Size of each item.
      totals: Amount of each supply.
      bin_size: Size of a bin.
      resolution: Number of units per bin that sizes are rounded to, to the nearest, so
        that each item may overfill a bin by half a unit.
      penalty: Bins charged per item, to prefer large items to small ones.
      repeats: Bins charged for each further use of an item in a pattern, to prefer
        mixed patterns.
      patterns: Known good patterns to start from.
      effort: Effort that several searches share; None: of this search alone.
    """
    effort = effort or Effort()
    units = np.maximum(1, np.round(sizes / bin_size * resolution).astype(np.int64))
    limits = np.full(len(units), 2 * resolution)  # More than a bin can hold.
    if effort.is_spent:
        # A bin never needs more than the whole supply. Without this limit, patterns may
        # use a supply several times and run a fraction of once.
        limits = np.minimum(limits, -(-totals[supply_of] // amounts))
    one_item = np.diag(np.maximum(1, np.minimum(resolution // units, limits)))
    known = [p for p in patterns if p @ units <= resolution]
    uses = np.zeros((len(totals), len(sizes)))
    uses[supply_of, np.arange(len(sizes))] = amounts
    columns = []
    program = _CoveringProgram(totals)

    def add(pattern: np.ndarray) -> None:
        cost = 1 + penalty * pattern.sum() + repeats * _num_repeats(pattern)
        program.add_column(float(cost), uses @ pattern)
        columns.append(pattern)

    for pattern in (*one_item, *known):
        add(pattern)
    while True:
        times, prices = program.solve()
        worth = prices[supply_of] * amounts - penalty
        # Without the items that no pattern worth adding can contain: even if the rest
        # of the bin held the densest item, such a pattern would save too little.
        most = worth + (resolution - units) * (worth / units).max()
        offered = np.where(most >= 1 + _IMPROVEMENT, worth, 0.0)
        _, pattern = _best_pattern(units, offered, limits, resolution, repeats, effort)
        saved = pattern @ worth - repeats * _num_repeats(pattern) - 1
        most_columns = len(sizes) + (
            _FEW_PATTERNS if effort.is_spent else _MAX_PATTERNS
        )
        if saved < _IMPROVEMENT or len(columns) > most_columns:
            break
        add(pattern)
    used = [(float(x), c) for x, c in zip(times, columns, strict=True) if x > 1e-9]
    return float(times.sum()), used


class _CoveringProgram:
    """Linear program: least cost of columns that together cover all demands.

    Columns are added between solutions. Each solution starts from the previous basis,
    which takes a fraction of the time that solving the program anew takes.
    """

    def __init__(self, demands: np.ndarray):
        self._highs = highspy.Highs()
        self._highs.setOptionValue("output_flag", False)
        self._highs.setOptionValue("threads", 1)
        self._highs.setOptionValue("presolve", "off")  # It would discard the basis.
        rows, entries = np.array([], np.int32), np.array([])
        for demand in demands.tolist():
            self._highs.addRow(float(demand), highspy.kHighsInf, 0, rows, entries)

    def add_column(self, cost: float, covers: np.ndarray) -> None:
        """Adds a column that covers these amounts each time it is used."""
        (rows,) = covers.nonzero()
        self._highs.addCol(
            cost, 0.0, highspy.kHighsInf, len(rows), rows.astype(np.int32), covers[rows]
        )

    def solve(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the times of each column, and the price of each demand."""
        self._highs.run()
        for solver in _RETRIES:
            if self._is_solved():
                break
            self._highs.clearSolver()
            self._highs.setOptionValue("solver", solver)
            self._highs.run()
            self._highs.setOptionValue("solver", "choose")
        assert self._is_solved(), self._highs.getModelStatus()
        solution = self._highs.getSolution()
        return np.array(solution.col_value), np.array(solution.row_dual)

    def _is_solved(self) -> bool:
        return self._highs.getModelStatus() == highspy.HighsModelStatus.kOptimal


def _num_repeats(pattern: np.ndarray) -> np.ndarray | np.integer:
    """Returns the number of repeated items in a pattern, or in each column."""
    return np.maximum(pattern - 1, 0).sum(axis=0)


def _best_pattern(
    units: np.ndarray,
    worth: np.ndarray,
    limits: np.ndarray,
    capacity: int,
    repeats: float,
    effort: "Effort",
) -> tuple[float, np.ndarray]:
    """Finds the most valuable pattern for one bin, a bounded knapsack problem.

    Each item is offered 1, 2, 4 and so on times, and the rest of its limit. These
    numbers add up to any count, and each offer is one vector operation on the table.
    """
    best = np.zeros(capacity + 1)
    with_offer = np.empty(capacity + 1)
    offers = []
    for item in np.flatnonzero(worth > 0).tolist():
        unit, value = int(units[item]), float(worth[item])
        left, times = int(limits[item]), 1
        while left > 0 and times * unit <= capacity:
            size = times * unit
            worth_of_all = times * value - (times - 1) * repeats
            tried = np.add(best[:-size], worth_of_all, out=with_offer[size:])
            taken = tried > best[size:]
            np.maximum(best[size:], tried, out=best[size:])
            offers.append((item, times, size, taken))
            left -= times
            times = min(2 * times, left)
    effort.spent += len(offers)
    pattern = np.zeros(len(units), np.int64)
    left = capacity
    for item, times, size, taken in reversed(offers):
        if left >= size and taken[left - size]:
            pattern[item] += times
            left -= size
    return float(best[capacity]), pattern
