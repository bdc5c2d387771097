"""Tests of jaxload.balance.lengths."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxload.balance import lengths
from jaxload.balance.form import Length
from jaxload.balance.lengths import choose_lengths
from jaxload.balance.sample_class import make_classes
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape


def padded(tokens: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Returns the cost of rows whose attention takes time for padding."""
    del length
    return 30.0 + tokens + 0.02 * tokens**2


def skipping(tokens: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Returns the cost of rows whose attention skips padding."""
    return 30.0 + tokens + 0.02 * tokens * length


PRICES = {"padded": padded, "skipping": skipping}


def shape_of(tokens: int) -> Shape:
    return Shape(tokens, 2, 2)


def cost_of(
    counts: Mapping[Shape, int],
    bounds: Sequence[int],
    price: lengths.Price,
    min_samples: int,
    program_price: float,
) -> float:
    """Returns the cost of some lengths, sample by sample; infinite if invalid."""
    classes = make_classes(counts, [Length(b) for b in bounds], may_cut=False)
    total = 0.0
    for samples in classes:
        if samples is None or samples.num_samples < min_samples:
            return np.inf
        for shape, count in zip(samples.shapes, samples.counts, strict=True):
            row = np.array(samples.form.tokens)
            total += count * float(price(row, np.array(shape.tokens)))
    own = sum(
        n * float(price(np.array(s.tokens), np.array(s.tokens)))
        for s, n in counts.items()
    )
    return total + program_price * own * len(bounds)


@given(
    counts=st.dictionaries(
        st.integers(1, 60).map(shape_of), st.integers(1, 40), min_size=1, max_size=6
    ),
    name=st.sampled_from(sorted(PRICES)),
    max_lengths=st.integers(1, 4),
    min_samples=st.integers(1, 25),
    program_price=st.sampled_from([0.0, 0.01, 0.2]),
    multiple=st.sampled_from([1, 4]),
)
def test_no_other_lengths_are_cheaper(
    counts: dict[Shape, int],
    name: str,
    max_lengths: int,
    min_samples: int,
    program_price: float,
    multiple: int,
):
    if sum(counts.values()) < min_samples:
        return
    price = PRICES[name]
    rules = {"min_samples": min_samples, "program_price": program_price}
    found = choose_lengths(
        counts, price, max_lengths=max_lengths, multiple=multiple, **rules
    )
    bounds = [length.tokens for length in found]
    assert bounds == sorted(set(bounds))
    assert all(bound % multiple == 0 for bound in bounds)
    assert 1 <= len(bounds) <= max_lengths
    assert max(s.tokens for s in counts) <= bounds[-1]
    candidates = sorted({-(-s.tokens // multiple) * multiple for s in counts})
    best = min(
        cost_of(counts, chosen, price, **rules)
        for n in range(1, max_lengths + 1)
        for chosen in itertools.combinations(candidates, n)
        if chosen[-1] == candidates[-1]
    )
    assert cost_of(counts, bounds, price, **rules) == pytest.approx(best)


def test_a_class_of_too_few_samples_joins_the_next_longer_one():
    counts = {shape_of(10): 100, shape_of(20): 3, shape_of(30): 100}
    rules = {"max_lengths": 3, "program_price": 0.0}
    found = choose_lengths(counts, padded, min_samples=3, **rules)
    assert found == (Length(10), Length(20), Length(30))
    found = choose_lengths(counts, padded, min_samples=4, **rules)
    assert found == (Length(10), Length(30))


def test_too_few_samples_for_any_class_are_one_line():
    with pytest.raises(InputError, match=r"^3 samples: expected 4 or more") as error:
        choose_lengths(
            {shape_of(10): 3}, padded, max_lengths=2, min_samples=4, program_price=0.0
        )
    assert "\n" not in str(error.value)


def test_a_program_that_saves_less_than_its_price_is_left_out():
    # Rows of 100 instead of 99 tokens cost 2% more for a hundredth of the samples.
    counts = {shape_of(99): 10, shape_of(100): 990}
    rules = {"max_lengths": 8, "min_samples": 1}
    cheap = choose_lengths(counts, padded, program_price=1e-5, **rules)
    assert cheap == (Length(99), Length(100))
    dear = choose_lengths(counts, padded, program_price=1e-3, **rules)
    assert dear == (Length(100),)


def test_thousands_of_distinct_lengths_take_bounded_work(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(lengths, "_MAX_DISTINCT", 100)
    tokens = np.random.default_rng(0).permutation(20_000)[:5_000] + 1
    counts = dict.fromkeys(map(shape_of, tokens.tolist()), 3)
    rules = {"max_lengths": 16, "min_samples": 1, "program_price": 0.0}
    found = choose_lengths(counts, padded, **rules)
    assert found[-1] == Length(int(tokens.max()))  # Not rounded up to a larger step.
    samples = make_classes(counts, found, may_cut=False)
    assert None not in samples
    waste = 1 - sum(c.num_tokens for c in samples if c) / sum(
        c.num_samples * c.form.tokens for c in samples if c
    )
    assert waste < 0.08
