"""Two problems of packing: equal bins, and many bins that are filled exactly.

`partition` deals things over some bins so that the fullest holds as little as possible.
`fill_bins` is the cutting-stock problem: how often to use which pattern of things, each
at most so long, to use up given numbers of each kind. It solves the linear relaxation,
by generating patterns as they are needed (Gilmore and Gomory): with thousands of bins
the relaxation is within a few bins of the best, and it needs no more patterns than
there are kinds.
"""

import heapq
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog

_EXACT_ITEMS = 12  # Few enough to try every deal.
_MAX_SWAPS = 2_000
_MAX_PATTERNS = 150
_IMPROVEMENT = 1e-4  # Share of a bin that a new pattern has to save.


def partition(sizes: Sequence[float], num_bins: int) -> list[list[int]]:
    """Deals things over bins, by index, so that the fullest bin is about the least."""
    bins = _improve(sizes, longest_first(sizes, num_bins))
    if len(sizes) <= _EXACT_ITEMS:
        bins = _exact(sizes, bins)
    return bins


def longest_first(sizes: Sequence[float], num_bins: int) -> list[list[int]]:
    """Puts each thing, the largest first, into the bin that holds the least."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    heap = [(0.0, b) for b in range(num_bins)]
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        load, b = heapq.heappop(heap)
        bins[b].append(item)
        heapq.heappush(heap, (load + sizes[item], b))
    return bins


def _improve(sizes: Sequence[float], bins: list[list[int]]) -> list[list[int]]:
    """Moves or swaps something out of the fullest bin while that lowers it."""
    loads = np.array([sum(sizes[i] for i in b) for b in bins])
    for _ in range(_MAX_SWAPS):
        full = int(loads.argmax())
        best = (loads[full] * (1 - 1e-9), -1, -1, -1)
        for other in np.argsort(loads)[: min(len(bins), 16)].tolist():
            if other == full:
                continue
            for mine in bins[full]:
                for theirs in [-1, *bins[other]]:
                    change = sizes[mine] - (sizes[theirs] if theirs >= 0 else 0.0)
                    worse = max(loads[full] - change, loads[other] + change)
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
            loads[b] = sum(sizes[i] for i in bins[b])
    return bins


def _exact(sizes: Sequence[float], bins: list[list[int]]) -> list[list[int]]:
    """The best deal of a few things, found by trying all that could be better."""
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    best = [list(b) for b in bins]
    least = max(sum(sizes[i] for i in b) for b in bins)
    bound = max(sum(sizes) / len(bins), max(sizes, default=0.0)) * (1 + 1e-9)
    loads = [0.0] * len(bins)
    place = [0] * len(sizes)

    def search(depth: int) -> None:
        nonlocal least, best
        if least <= bound:
            return
        if depth == len(order):
            least = max(loads)
            best = [[i for i in order if place[i] == b] for b in range(len(bins))]
            return
        tried = set()  # Bins of equal load are the same.
        for b in range(len(bins)):
            load = loads[b] + sizes[order[depth]]
            if loads[b] in tried or load >= least * (1 - 1e-12):
                continue
            tried.add(loads[b])
            before, loads[b], place[order[depth]] = loads[b], load, b
            search(depth + 1)
            loads[b] = before

    search(0)
    return best


def fill_bins(
    kinds: np.ndarray,
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
    """Fills as few bins as possible with all that there is.

    A thing j is of a kind `kinds[j]`, of which it uses up `amounts[j]`, and takes
    `sizes[j]` of a bin. Sizes are rounded to a bin's `resolution` parts. Returns the
    number of bins, and each pattern (how many of each thing) with its number of bins,
    not rounded.

    Args:
      kinds: Which kind each thing is of.
      amounts: What each thing uses up of its kind.
      sizes: What each thing takes of a bin.
      totals: How much there is of each kind.
      bin_size: What a bin holds.
      resolution: Parts of a bin that sizes are rounded to.
      penalty: Bins that each thing costs: prefers large things to small ones.
      repeats: Bins that each thing costs more if its pattern has it already: prefers
        patterns of many kinds.
      patterns: Some that are known to be good.
    """
    units = np.maximum(1, np.round(sizes / bin_size * resolution).astype(np.int64))
    one_kind = np.diag(np.maximum(1, resolution // units))
    known = [p for p in patterns if p @ units <= resolution]
    columns = [*one_kind, *known]
    uses = np.zeros((len(totals), len(sizes)))
    uses[kinds, np.arange(len(sizes))] = amounts
    while True:
        matrix = np.stack(columns, axis=1)
        solution = linprog(
            1 + penalty * matrix.sum(axis=0) + repeats * _num_repeats(matrix),
            A_ub=-(uses @ matrix),
            b_ub=-totals.astype(float),
            method="highs",
        )
        worth = -solution.ineqlin.marginals[kinds] * amounts - penalty
        _, pattern = _best_pattern(units, worth, resolution, repeats)
        saved = pattern @ worth - repeats * _num_repeats(pattern) - 1
        if saved < _IMPROVEMENT or len(columns) > len(sizes) + _MAX_PATTERNS:
            break
        columns.append(pattern)
    used = [
        (float(x), column)
        for x, column in zip(solution.x, columns, strict=True)
        if x > 1e-9
    ]
    return float(solution.x.sum()), used


def _num_repeats(pattern: np.ndarray) -> np.ndarray | np.integer:
    """Things of a pattern, or of each column, that are there already."""
    return np.maximum(pattern - 1, 0).sum(axis=0)


def _best_pattern(
    units: np.ndarray, worth: np.ndarray, room: int, repeats: float = 0.0
) -> tuple[float, np.ndarray]:
    """The most valuable things that fit into a bin: an unbounded knapsack.

    Each thing is offered once, twice, four times and so on, so that every number of it
    can be had, and each offer is one operation on the whole table.
    """
    best = np.zeros(room + 1)
    offers = []
    for thing in np.flatnonzero(worth > 0):
        times = 1
        while times * units[thing] <= room:
            size = int(times * units[thing])
            value = times * worth[thing] - (times - 1) * repeats
            with_it = best[: room + 1 - size] + value
            better = with_it > best[size:]
            best[size:] = np.where(better, with_it, best[size:])
            offers.append((thing, times, size, better))
            times *= 2
    pattern = np.zeros(len(units), np.int64)
    left = room
    for thing, times, size, better in reversed(offers):
        if left >= size and better[left - size]:
            pattern[thing] += times
            left -= size
    return float(best[room]), pattern
