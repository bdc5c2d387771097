"""Two packing problems: fill some bins evenly, or fill as few bins as possible.

`partition` distributes items over bins so that the fullest bin is as small as possible.
`fill_bins` is the cutting-stock problem: how often to use each pattern of items, none
larger than a bin, to use up given supplies. `fill_bins` solves the linear relaxation by
column generation (Gilmore and Gomory). With thousands of bins, the relaxation is within
a few bins of the optimum, and it needs no more patterns than there are supplies.
"""

import heapq
from collections.abc import Sequence

import highspy
import numpy as np

_EXACT_ITEMS = 12  # Most items for which every distribution is searched.
_MAX_SWAPS = 2_000
_MAX_PATTERNS = 150
_IMPROVEMENT = 1e-4  # Share of a bin that a new pattern must save.


def partition(sizes: Sequence[float], num_bins: int) -> list[list[int]]:
    """Returns the indices of the items in each bin; minimizes the fullest bin."""
    bins = _improve(sizes, longest_first(sizes, num_bins))
    if len(sizes) <= _EXACT_ITEMS:
        bins = _exact(sizes, bins)
    return bins


def longest_first(sizes: Sequence[float], num_bins: int) -> list[list[int]]:
    """Puts each item, the largest first, into the emptiest bin."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    heap = [(0.0, b) for b in range(num_bins)]
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        filled, b = heapq.heappop(heap)
        bins[b].append(item)
        heapq.heappush(heap, (filled + sizes[item], b))
    return bins


def _improve(sizes: Sequence[float], bins: list[list[int]]) -> list[list[int]]:
    """Moves or swaps items out of the fullest bin while that lowers the maximum."""
    filled = np.array([sum(sizes[i] for i in b) for b in bins])
    for _ in range(_MAX_SWAPS):
        full = int(filled.argmax())
        best = (filled[full] * (1 - 1e-9), -1, -1, -1)
        for other in np.argsort(filled)[: min(len(bins), 16)].tolist():
            if other == full:
                continue
            for mine in bins[full]:
                for theirs in [-1, *bins[other]]:
                    change = sizes[mine] - (sizes[theirs] if theirs >= 0 else 0.0)
                    worse = max(filled[full] - change, filled[other] + change)
                    if change > 0 and worse < best[0]:
                        best = (worse, other, mine, theirs)
        _, other, mine, theirs = best
        if other < 0:
            break
        bins[full].remove(mine)
        bins[other].append(mine)
        if theirs >= 0:
            bins[other].remove(theirs)
            bins[full].append(theirs)
        for b in (full, other):
            filled[b] = sum(sizes[i] for i in bins[b])
    return bins


def _exact(sizes: Sequence[float], bins: list[list[int]]) -> list[list[int]]:
    """Finds the best distribution of a few items by branch and bound."""
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    best = [list(b) for b in bins]
    least = max(sum(sizes[i] for i in b) for b in bins)
    bound = max(sum(sizes) / len(bins), max(sizes, default=0.0)) * (1 + 1e-9)
    filled = [0.0] * len(bins)
    bin_of = [0] * len(sizes)

    def search(depth: int) -> None:
        nonlocal least, best
        if least <= bound:
            return
        if depth == len(order):
            least = max(filled)
            best = [[i for i in order if bin_of[i] == b] for b in range(len(bins))]
            return
        tried = set()  # Equally full bins are interchangeable.
        for b in range(len(bins)):
            size = filled[b] + sizes[order[depth]]
            if filled[b] in tried or size >= least * (1 - 1e-12):
                continue
            tried.add(filled[b])
            before, filled[b], bin_of[order[depth]] = filled[b], size, b
            search(depth + 1)
            filled[b] = before

    search(0)
    return best


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
    """
    units = np.maximum(1, np.round(sizes / bin_size * resolution).astype(np.int64))
    one_item = np.diag(np.maximum(1, resolution // units))
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
        _, pattern = _best_pattern(units, offered, resolution, repeats)
        saved = pattern @ worth - repeats * _num_repeats(pattern) - 1
        if saved < _IMPROVEMENT or len(columns) > len(sizes) + _MAX_PATTERNS:
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
        status = self._highs.getModelStatus()
        assert status == highspy.HighsModelStatus.kOptimal, status
        solution = self._highs.getSolution()
        return np.array(solution.col_value), np.array(solution.row_dual)


def _num_repeats(pattern: np.ndarray) -> np.ndarray | np.integer:
    """Returns the number of repeated items in a pattern, or in each column."""
    return np.maximum(pattern - 1, 0).sum(axis=0)


def _best_pattern(
    units: np.ndarray, worth: np.ndarray, capacity: int, repeats: float = 0.0
) -> tuple[float, np.ndarray]:
    """Finds the most valuable pattern for one bin, an unbounded knapsack problem.

    Each item is offered 1, 2, 4 and so on times. These numbers add up to any count,
    and each offer is one vector operation on the whole table.
    """
    best = np.zeros(capacity + 1)
    with_offer = np.empty(capacity + 1)
    offers = []
    for item in np.flatnonzero(worth > 0).tolist():
        size, value, times = int(units[item]), float(worth[item]), 1
        while size <= capacity:
            tried = np.add(best[:-size], value, out=with_offer[size:])
            taken = tried > best[size:]
            np.maximum(best[size:], tried, out=best[size:])
            offers.append((item, times, size, taken))
            size, value, times = 2 * size, 2 * value - repeats, 2 * times
    pattern = np.zeros(len(units), np.int64)
    left = capacity
    for item, times, size, taken in reversed(offers):
        if left >= size and taken[left - size]:
            pattern[item] += times
            left -= size
    return float(best[capacity]), pattern
