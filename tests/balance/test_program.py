"""Tests of jaxload.balance.program and jaxload.balance.bucket."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxload.balance.form import Grid
from jaxload.balance.program import REMATS, Layout, Program
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape
from tests.balance.grid_samples import grid_bucket, shape_of

GRID = Grid(5, 8, 12)  # 120 tokens.
SIZES = st.integers(1, 8)
PROGRAMS = st.builds(
    lambda form, layout, units, remat: Program(
        form=form, batch=units * layout.batch, layout=layout, remat=remat
    ),
    st.builds(lambda f, h, w: Grid(f, 2 * h, 2 * w), SIZES, SIZES, SIZES),
    st.builds(Layout, SIZES, SIZES, SIZES),
    st.integers(1, 50),
    st.sampled_from(REMATS),
)


@pytest.mark.parametrize(
    ("batch", "layout", "nearest"),
    [
        (0, Layout(), 1),
        (-3, Layout(), 1),
        (3, Layout(batch=2), 4),
        (1, Layout(batch=8), 8),
        (23, Layout(batch=8, ring=2), 24),
        (0, Layout(batch=8), 8),
    ],
    ids=str,
)
def test_a_batch_that_devices_cannot_share_is_refused(batch, layout, nearest):
    message = (
        f"program 5x8x12@{batch}: .* expected a multiple of {layout.batch}, "
        f"such as {nearest}$"
    )
    with pytest.raises(InputError, match=message):
        Program(form=GRID, batch=batch, layout=layout)
    Program(form=GRID, batch=nearest, layout=layout)


def test_a_program_is_resized_within_the_same_rule():
    program = Program(form=GRID, batch=4, layout=Layout(batch=4), remat="full")
    assert program.resized(12) == dataclasses.replace(program, batch=12)
    with pytest.raises(InputError, match="expected a multiple of 4, such as 8"):
        program.resized(10)


@given(PROGRAMS)
def test_json_gives_an_equal_program(program):
    content = json.loads(json.dumps(program.to_dict()))
    assert Program.from_dict(content) == program


@given(PROGRAMS)
def test_devices_share_samples_and_their_tokens(program):
    layout = program.layout
    assert layout.num_devices == layout.batch * layout.ring * layout.heads
    assert layout.devices_per_sample * layout.batch == layout.num_devices
    assert program.samples_per_device * layout.batch == program.batch
    # All devices together hold all tokens, up to rounding.
    total = program.batch * program.tokens
    assert program.tokens_per_device == total // layout.num_devices


def test_tokens_of_a_device_by_hand():
    for layout, tokens in (
        (Layout(), 8 * 120),
        (Layout(batch=4), 2 * 120),
        (Layout(batch=2, ring=2), 4 * 60),
        (Layout(ring=2, heads=4), 8 * 15),
    ):
        program = Program(form=GRID, batch=8, layout=layout)
        assert program.tokens == 120
        assert program.tokens_per_device == tokens


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (Program(form=GRID, batch=3), "5x8x12@3"),
        (Program(form=GRID, batch=3, remat="full"), "5x8x12@3 remat=full"),
        (Program(form=GRID, batch=4, layout=Layout(batch=2)), "5x8x12@4 on 2x1x1"),
        (
            Program(form=GRID, batch=4, layout=Layout(2, 3, 4), remat="attention"),
            "5x8x12@4 on 2x3x4 remat=attention",
        ),
    ],
    ids=str,
)
def test_a_program_as_text(program, text):
    assert str(program) == text
    assert str(grid_bucket(program, 9)) == text


def test_programs_can_be_dictionary_keys():
    same = [Program(form=Grid.of(Shape(5, 8, 12)), batch=2) for _ in range(2)]
    others = [
        dataclasses.replace(same[0], form=Grid(5, 12, 8)),
        dataclasses.replace(same[0], batch=4),
        dataclasses.replace(same[0], layout=Layout(batch=2)),
        dataclasses.replace(same[0], remat="full"),
    ]
    assert len({*same, *others}) == 5
    assert len(set(map(str, [*same, *others]))) == 5


def test_a_bucket_has_the_sizes_of_its_program():
    program = Program(form=GRID, batch=6, layout=Layout(batch=3))
    bucket = grid_bucket(program, 9)
    assert (shape_of(bucket), bucket.batch, bucket.tokens) == (Shape(5, 8, 12), 6, 120)
