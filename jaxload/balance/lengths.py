"""Chooses the lengths of programs whose rows are samples of any shape, padded.

A class holds the samples between two neighbouring lengths, all padded to the longer
one. More classes pad less, and each costs a compile. The best lengths are found by
dynamic programming over the distinct lengths of the samples.
"""

from collections.abc import Callable, Mapping

import numpy as np

from jaxload.balance.form import Length
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape

_MAX_DISTINCT = 1_500  # Most distinct lengths; more are rounded up to larger steps.


Price = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Function (tokens, length) -> cost of rows of `tokens` tokens whose samples have
`length`. It is linear in the length, so that a mean stands for several samples."""


def choose_lengths(
    counts: Mapping[Shape, int],
    price: Price,
    *,
    max_lengths: int,
    min_samples: int,
    program_price: float,
    multiple: int = 1,
) -> tuple[Length, ...]:
    """Chooses the lengths that waste the least cost on padding, ascending.

    Args:
        counts: Number of samples of each shape, at least `min_samples` in total.
        price: Cost of a row.
        max_lengths: Most lengths.
        min_samples: Fewest samples of a class. Samples of a class that would have
            fewer are padded to the next length, so that none is left out.
        program_price: Price of a program, as a share of the cost of an epoch without
            padding. A program that saves less is not worth its compile.
        multiple: Number of tokens that every length is a multiple of.
    """
    total = sum(counts.values())
    if total < min_samples:
        raise InputError(
            f"{total} samples: expected {min_samples} or more, a batch for each "
            "replica; use fewer replicas, a smaller mesh.fsdp or "
            "balance.batch_multiple, or more data"
        )
    bounds, number, own = _histogram(counts, multiple)
    ideal = float(price(own / number, own / number) @ number)
    cost = _class_costs(bounds, number, own, price, min_samples)
    ends = _cheapest(cost + program_price * ideal, max_lengths)
    geometry = next(iter(counts)).geometry
    return tuple(Length(int(bounds[end - 1]), geometry) for end in ends)


def _histogram(
    counts: Mapping[Shape, int], multiple: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns candidate lengths, ascending, and the samples and tokens of each."""
    tokens = np.array([shape.tokens for shape in counts], np.int64)
    number = np.array(list(counts.values()), np.int64)
    step = multiple
    bounds = np.unique(-(-tokens // step) * step)
    while len(bounds) > _MAX_DISTINCT:
        step *= 2
        bounds = np.unique(-(-tokens // step) * step)
    # The longest candidate is not rounded further up than it must be.
    bounds[-1] = -(-int(tokens.max()) // multiple) * multiple
    index = np.searchsorted(bounds, tokens)
    return (
        bounds,
        np.bincount(index, number, len(bounds)),
        np.bincount(index, number * tokens, len(bounds)),
    )


def _class_costs(
    bounds: np.ndarray,
    number: np.ndarray,
    own: np.ndarray,
    price: Price,
    min_samples: int,
) -> np.ndarray:
    """Returns the cost of a class of the candidates i to j - 1, for each i and j.

    Classes of too few samples cost infinitely much.
    """
    samples = np.concatenate([[0.0], np.cumsum(number)])
    tokens = np.concatenate([[0.0], np.cumsum(own)])
    inside = samples[None] - samples[:, None]
    mean = (tokens[None] - tokens[:, None]) / np.maximum(inside, 1)
    cost = inside * price(np.concatenate([[0.0], bounds])[None], mean)
    is_class = np.triu(np.ones_like(cost, bool), 1) & (inside >= min_samples)
    return np.where(is_class, cost, np.inf)


def _cheapest(cost: np.ndarray, max_classes: int) -> list[int]:
    """Returns the ends of the classes with the least total cost."""
    size = len(cost) - 1
    best = np.full(size + 1, np.inf)
    best[0] = 0.0
    starts, totals = [], []
    for _ in range(min(max_classes, size)):
        # best[j]: least cost of the candidates before j, in this many classes.
        tried = best[:, None] + cost
        starts.append(tried.argmin(axis=0))
        best = tried.min(axis=0)
        totals.append(best[-1])
    ends = [size]
    for k in range(int(np.argmin(totals)), 0, -1):
        ends.append(int(starts[k][ends[-1]]))
    return ends[::-1]
