"""Packs items into bins so that the fullest bin is as small as possible.

Items of equal size are one kind, and a bin holds a number of items of each kind. Time
and memory depend on the numbers of kinds and of bins, but not on that of the items.
"""

import math
from collections.abc import Sequence

import numpy as np

_EXACT_ITEMS = 12  # Most items for which every distribution is searched.
_MAX_SWAPS = 2_000
_MAX_PARTNERS = 16  # Bins that the fullest one may exchange items with.


def partition(
    sizes: Sequence[float],
    counts: Sequence[int],
    num_bins: int,
    *,
    enough: float = 0.0,
) -> np.ndarray:
    """Distributes items over bins; minimizes the fullest bin.

    Args:
      sizes: Size of an item of each kind.
      counts: Number of items of each kind.
      num_bins: Number of bins.
      enough: Filling of the fullest bin at which the search stops.

    Returns:
      The number of items of each kind in each bin, [bins, kinds].
    """
    held = improved(sizes, longest_first(sizes, counts, num_bins), enough=enough)
    if sum(counts) <= _EXACT_ITEMS and fullest(sizes, held) > enough:
        held = _exact(sizes, held)
    return held


def fewest_bins(
    sizes: Sequence[float], counts: Sequence[int], most: float, *, at_least: int
) -> np.ndarray:
    """Distributes items over few bins, none of which is filled with more than `most`.

    Bisects the number of bins, because each attempt packs all items. The result may
    have a bin too many: more bins do not always pack better.

    Args:
      sizes: Size of an item of each kind, at most `most`.
      counts: Number of items of each kind.
      most: Size of a bin.
      at_least: Number of bins to try first.

    Returns:
      The number of items of each kind in each bin, [bins, kinds].
    """
    num_items = sum(counts)
    low, step = min(max(1, at_least), max(1, num_items)), 1
    held = partition(sizes, counts, low, enough=most)
    while fullest(sizes, held) > most and low < num_items:
        low = min(low + step, num_items)
        held, step = partition(sizes, counts, low, enough=most), 2 * step
    high, low = len(held), max(low - step // 2 + 1, 1)
    while low < high:
        middle = (low + high) // 2
        tried = partition(sizes, counts, middle, enough=most)
        if fullest(sizes, tried) <= most:
            held, high = tried, middle
        else:
            low = middle + 1
    return improved(sizes, held)


def fullest(sizes: Sequence[float], held: np.ndarray) -> float:
    """Returns the sum of sizes in the fullest bin."""
    return float(_filled(sizes, held).max())


def longest_first(
    sizes: Sequence[float], counts: Sequence[int], num_bins: int
) -> np.ndarray:
    """Puts each item, the largest first, into the bin that is emptiest by then.

    Returns the number of items of each kind in each bin, [bins, kinds].
    """
    held = np.zeros((num_bins, len(sizes)), np.int64)
    filled = np.zeros(num_bins)
    for kind in sorted(range(len(sizes)), key=lambda kind: (-sizes[kind], kind)):
        if counts[kind]:
            held[:, kind] = _poured(filled, sizes[kind], counts[kind])
            filled += held[:, kind] * sizes[kind]
    return held


def _poured(filled: np.ndarray, size: float, count: int) -> np.ndarray:
    """Returns the items of one kind that each bin gets, one after the other."""
    level = _level(filled, size * count)
    # These items are poured in any order; they end at the level or below.
    poured = np.maximum(np.floor((level - filled) / size), 0).astype(np.int64)
    # Rounding may be off by an item.
    while (left := count - int(poured.sum())) < 0:
        poured[int((filled + poured * size).argmax())] -= 1
    while left > 0:
        order = np.argsort(filled + poured * size, kind="stable")[:left]
        poured[order] += 1
        left -= len(order)
    return poured


def _level(filled: np.ndarray, amount: float) -> float:
    """Returns the level of the emptiest bins after pouring a liquid into them."""
    ascending = np.sort(filled)
    levels = (np.cumsum(ascending) + amount) / np.arange(1, len(ascending) + 1)
    # Each further bin is used if it is emptier than the level of those before it.
    num_used = int((ascending <= levels).sum())
    return float(levels[num_used - 1])


def improved(
    sizes: Sequence[float], held: np.ndarray, *, enough: float = 0.0
) -> np.ndarray:
    """Moves or swaps items out of the fullest bin while that lowers the maximum.

    Stops once the fullest bin is filled with at most `enough`.
    """
    held, size = held.copy(), np.array(sizes, float)
    filled = _filled(sizes, held)
    # Change of both bins if an item is swapped for another, or, first, for none.
    change = size[:, None] - np.append(0.0, size)
    for _ in range(_MAX_SWAPS):
        full = int(filled.argmax())
        if filled[full] <= enough:
            break
        others = np.argsort(filled, kind="stable")[:_MAX_PARTNERS]
        mine = np.flatnonzero(held[full])
        worse = np.maximum(
            filled[full] - change[mine],
            filled[others, None, None] + change[mine],
        )
        has_theirs = np.pad(held[others] > 0, ((0, 0), (1, 0)), constant_values=True)
        worse[~has_theirs[:, None] | (change[mine] <= 0)] = math.inf
        if not worse.size or worse.min() >= filled[full] * (1 - 1e-9):
            break
        partner, given, taken = np.unravel_index(worse.argmin(), worse.shape)
        for bin_, kind, more in (
            (full, mine[given], -1),
            (others[partner], mine[given], 1),
            *(
                [(full, taken - 1, 1), (others[partner], taken - 1, -1)]
                if taken
                else []
            ),
        ):
            held[bin_, kind] += more
        for bin_ in (full, others[partner]):
            filled[bin_] = (held[bin_] * size).sum()
    return held


def _filled(sizes: Sequence[float], held: np.ndarray) -> np.ndarray:
    # Not a matrix product, whose rounding depends on the machine.
    return (held * np.array(sizes, float)).sum(axis=1)


def _exact(sizes: Sequence[float], held: np.ndarray) -> np.ndarray:
    """Finds the best distribution of a few items by branch and bound."""
    num_bins = len(held)
    items = np.repeat(np.arange(len(sizes)), held.sum(axis=0)).tolist()
    items.sort(key=lambda kind: (-sizes[kind], kind))
    best, least = held, fullest(sizes, held)
    total = math.fsum(sizes[kind] for kind in items)
    bound = max(total / num_bins, max(sizes, default=0.0)) * (1 + 1e-9)
    filled, bin_of = [0.0] * num_bins, [0] * len(items)

    def search(depth: int) -> None:
        nonlocal least, best
        if least <= bound:
            return
        if depth == len(items):
            least, best = max(filled), np.zeros_like(held)
            np.add.at(best, (bin_of, items), 1)
            return
        tried = set()  # Equally full bins are interchangeable.
        for bin_ in range(num_bins):
            size = filled[bin_] + sizes[items[depth]]
            if filled[bin_] in tried or size >= least * (1 - 1e-12):
                continue
            tried.add(filled[bin_])
            before, filled[bin_], bin_of[depth] = filled[bin_], size, bin_
            search(depth + 1)
            filled[bin_] = before

    search(0)
    return best
