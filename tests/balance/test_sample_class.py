"""Tests of jaxload.balance.sample_class."""

import pytest

from jaxload.balance.form import Grid, Length, parse_form
from jaxload.balance.sample_class import SampleClass, assign_forms, make_classes
from jaxload.errors import InputError
from jaxload.shapes.geometry import DEFAULT, Geometry
from jaxload.shapes.shape import Shape

IMAGE, SHORT, LONG = Shape(1, 8, 8), Shape(3, 4, 8), Shape(9, 4, 8)


def test_a_sample_goes_to_the_shortest_length_that_holds_it():
    forms = [Length(100), Length(16), Length(24)]
    found = assign_forms([IMAGE, SHORT, LONG], forms, may_cut=False)
    assert found == {IMAGE: (1, IMAGE), SHORT: (2, SHORT), LONG: (0, LONG)}


@pytest.mark.parametrize("may_cut", [False, True])
def test_too_long_samples_are_cut_only_if_they_may(may_cut: bool):
    found = assign_forms([LONG, Shape(1, 20, 20)], [Length(70)], may_cut=may_cut)
    assert found == ({LONG: (0, Shape(8, 4, 8))} if may_cut else {})


def test_a_cut_sample_goes_to_the_length_of_its_first_frames():
    forms = [Length(16), Length(30)]
    # 30 tokens hold 2 of the frames of 15 tokens, and 2 of those of 12 are 24.
    wide = Shape(5, 6, 10)
    assert assign_forms([wide], forms, may_cut=True) == {wide: (1, Shape(2, 6, 10))}
    assert assign_forms([Shape(9, 4, 4)], forms[:1], may_cut=True) == {
        Shape(9, 4, 4): (0, Shape(4, 4, 4))
    }


def test_a_clip_never_becomes_a_still():
    clip = Shape(5, 8, 8)
    assert not assign_forms([clip], [Length(16)], may_cut=True)
    assert not assign_forms([clip], [Grid(1, 8, 8)], may_cut=True)
    assert assign_forms([IMAGE], [Grid(1, 8, 8)], may_cut=True)


def test_a_sample_goes_to_the_longest_grid_of_its_size():
    forms = [Grid(1, 4, 8), Grid(3, 4, 8), Grid(7, 4, 8), Grid(9, 8, 4)]
    assert assign_forms([SHORT, LONG], forms, may_cut=True) == {
        SHORT: (1, SHORT),
        LONG: (2, Shape(7, 4, 8)),
    }
    assert assign_forms([SHORT, LONG], forms, may_cut=False) == {SHORT: (1, SHORT)}


def test_classes_count_samples_by_the_shape_that_runs():
    counts = {IMAGE: 5, SHORT: 3, LONG: 2, Shape(10, 4, 8): 4}
    forms = [Length(8), Length(24), Length(72)]
    empty, short, long = make_classes(counts, forms, may_cut=True)
    assert empty is None
    assert short == SampleClass.of(Length(24), {SHORT: 3, IMAGE: 5})
    assert long is not None
    assert long.shapes == (LONG,)
    assert long.counts == (6,)
    assert short is not None
    assert short.num_samples == 8
    assert short.num_tokens == 5 * 16 + 3 * 24
    lengths = short.lengths
    assert (lengths.shortest, lengths.longest, lengths.num_grids) == (16, 24, 2)
    assert lengths.mean == 152 / 8


@pytest.mark.parametrize(
    "form", [Grid(3, 4, 8), Length(1560), Length(7, Geometry(patch=(1, 1, 1)))]
)
def test_forms_are_parsed_from_their_text(form: Grid | Length):
    assert parse_form(str(form), form.geometry) == form


@pytest.mark.parametrize("text", ["len", "len-3", "len0", "1560", "len12.5"])
def test_invalid_forms_are_refused(text: str):
    with pytest.raises(InputError):
        parse_form(text, DEFAULT)
