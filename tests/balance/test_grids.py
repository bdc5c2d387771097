"""Tests of jaxload.balance.grids."""

import itertools
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from jaxload.balance.form import Grid
from jaxload.balance.grids import choose_grids
from jaxload.balance.sample_class import make_classes
from jaxload.shapes.shape import Shape

SHAPES = st.builds(
    Shape, st.integers(1, 7), st.sampled_from([2, 4]), st.sampled_from([2, 4])
)


def tokens_kept(
    counts: Mapping[Shape, int],
    grids: tuple[Grid, ...],
    min_samples: int,
    *,
    may_cut: bool,
) -> int:
    """Returns the tokens that some shapes keep; -1 if one has too few samples."""
    classes = make_classes(counts, grids, may_cut=may_cut)
    if any(c is None or c.num_samples < min_samples for c in classes):
        return -1
    return sum(c.num_tokens for c in classes if c is not None)


@given(
    counts=st.dictionaries(SHAPES, st.integers(1, 20), min_size=1, max_size=7),
    max_grids=st.integers(1, 4),
    min_samples=st.integers(1, 12),
    may_cut=st.booleans(),
)
def test_no_other_shapes_keep_more_tokens(
    counts: dict[Shape, int], max_grids: int, min_samples: int, may_cut: bool
):
    found = choose_grids(
        counts, max_grids=max_grids, min_samples=min_samples, may_cut=may_cut
    )
    assert len(found) <= max_grids
    assert list(found) == sorted(found, key=lambda grid: grid.tokens)
    kept = tokens_kept(counts, found, min_samples, may_cut=may_cut)
    most = max(
        tokens_kept(counts, tuple(map(Grid.of, some)), min_samples, may_cut=may_cut)
        for n in range(max_grids + 1)
        for some in itertools.combinations(counts, n)
    )
    assert kept == most


def test_clips_are_cut_to_few_shapes_and_stills_stay_apart():
    counts = {Shape(1, 4, 4): 50, Shape(5, 4, 4): 9, Shape(6, 4, 4): 9}
    options = {"max_grids": 2, "min_samples": 10}
    found = choose_grids(counts, may_cut=True, **options)
    assert found == (Grid(1, 4, 4), Grid(5, 4, 4))
    # Uncut, neither shape of clips has ten samples.
    assert choose_grids(counts, may_cut=False, **options) == (Grid(1, 4, 4),)


def test_no_shape_with_enough_samples_gives_none():
    options = {"max_grids": 2, "min_samples": 10, "may_cut": True}
    assert choose_grids({Shape(1, 4, 4): 9}, **options) == ()
