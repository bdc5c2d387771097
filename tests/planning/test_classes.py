"""Tests of plans by length: classes, cut samples and memory."""

import dataclasses
import random
from collections.abc import Callable, Mapping
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxload.balance.config import BalanceConfig
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.balance.form import Grid, Length
from jaxload.balance.program import Program
from jaxload.config import Config
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.models.wan import FAMILY
from jaxload.parallel.config import MeshConfig
from jaxload.planning import form_choice
from jaxload.planning.analytic_cost import analytic_cost
from jaxload.planning.classes import (
    TOO_LONG,
    Classes,
    classes_by_grid,
    classes_by_length,
)
from jaxload.planning.memory import CompiledMemory
from jaxload.planning.plan import Plan
from jaxload.planning.planner import Planner
from jaxload.planning.samples import Samples
from jaxload.shapes.shape import Shape
from tests.planning.fake_compiler import FIXED, FakeCompiler, line

IMAGE, SHORT, LONG = Shape(1, 8, 8), Shape(4, 4, 8), Shape(16, 4, 8)  # 16, 32, 128.
COUNTS = {IMAGE: 60, SHORT: 30, LONG: 20}
COSTS = CostModel.of(
    CostLaw(fixed=0.0, per_token=1.0, per_token_squared=0.01), unit="s", source="test"
)


def samples_of(counts: Mapping[Shape, int] = COUNTS, *, may_cut: bool) -> Samples:
    return Samples.of_counts(counts, may_cut=may_cut, dataset="0123456789abcdef")


def by_length(
    samples: Samples, longest_row: int, multiple: int = 1, min_samples: int = 4
) -> Classes:
    return classes_by_length(
        samples,
        BalanceConfig(max_tokens=1_000),
        COSTS,
        num_devices=1,
        min_samples=min_samples,
        longest_row=longest_row,
        multiple=multiple,
    )


def test_samples_longer_than_the_memory_run_by_their_first_frames():
    found = by_length(samples_of(may_cut=True), longest_row=100)
    assert [c.form for c in found.classes] == [Length(16), Length(32), Length(96)]
    assert found.classes[-1].shapes == (Shape(12, 4, 8),)
    assert found.num_cut == 20
    assert found.left_out == ()
    own = 60 * 16 + 30 * 32 + 20 * 128
    assert found.kept == pytest.approx(1 - 20 * 32 / own)


def test_samples_of_other_codecs_are_left_out_with_the_reason():
    found = by_length(samples_of(may_cut=False), longest_row=100)
    assert [c.form for c in found.classes] == [Length(16), Length(32)]
    (left_out,) = found.left_out
    assert (left_out.reason, left_out.count) == (TOO_LONG, 20)
    assert left_out.examples == ("16x4x8 (20)",)
    assert found.num_cut == 0


def test_memory_below_every_sample_is_one_line():
    with pytest.raises(InputError, match="no sample has at most 14 tokens") as error:
        by_length(samples_of(may_cut=True), longest_row=20, multiple=7)
    assert "the shortest has 16;" in str(error.value)
    assert "\n" not in str(error.value)


def test_lengths_are_multiples_of_the_devices_that_share_a_sample():
    found = by_length(samples_of(may_cut=True), longest_row=100, multiple=7)
    assert [c.form.tokens for c in found.classes] == [21, 35, 98]
    assert [c.shapes for c in found.classes] == [
        (IMAGE,),
        (SHORT,),
        (Shape(12, 4, 8),),
    ]


def test_shapes_by_grid_cut_clips_and_count_them():
    config = BalanceConfig(max_tokens=1_000, max_buckets=2)
    counts = COUNTS | {IMAGE: 61}
    found = classes_by_grid(samples_of(counts, may_cut=True), config, min_samples=4)
    assert [c.form for c in found.classes] == [Grid.of(IMAGE), Grid.of(LONG)]
    (left_out,) = found.left_out
    assert left_out.reason == "not among the 2 shapes with the most content"
    assert left_out.examples == ("4x4x8 (30)",)
    counts |= {LONG: 5}
    found = classes_by_grid(samples_of(counts, may_cut=True), config, min_samples=4)
    assert [c.form for c in found.classes] == [Grid.of(IMAGE), Grid.of(SHORT)]
    assert (found.num_cut, found.left_out) == (5, ())


@given(
    counts=st.dictionaries(
        st.builds(
            lambda f, h, w: Shape(f, 2 * h, 2 * w),
            st.integers(1, 20),
            st.integers(1, 4),
            st.integers(1, 4),
        ),
        st.integers(1, 99),
        min_size=1,
        max_size=12,
    ),
    may_cut=st.booleans(),
    by_grid=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_sample_runs_or_is_left_out_with_a_reason(
    counts: dict[Shape, int], may_cut: bool, by_grid: bool, seed: int
):
    def choose(counts: Mapping[Shape, int]) -> Classes:
        samples = samples_of(counts, may_cut=may_cut)
        if by_grid:
            config = BalanceConfig(max_tokens=1_000, max_buckets=3)
            return classes_by_grid(samples, config, min_samples=1)
        return by_length(samples, longest_row=max(40, tokens[0]), min_samples=1)

    tokens = sorted(shape.tokens for shape in counts)
    found = choose(counts)
    num_left_out = sum(left_out.count for left_out in found.left_out)
    num_run = sum(samples.num_samples for samples in found.classes)
    assert num_run + num_left_out == sum(counts.values())
    assert all(left_out.reason and left_out.examples for left_out in found.left_out)
    assert 0 < found.kept <= 1
    if not num_left_out and not found.num_cut:
        assert found.kept == pytest.approx(1.0)
    # The order of the counts does not matter.
    items = list(counts.items())
    random.Random(seed).shuffle(items)
    assert choose(dict(items)).classes == found.classes


def test_too_few_samples_of_every_shape_are_one_line():
    with pytest.raises(InputError, match="no shape has 99 samples") as error:
        classes_by_grid(samples_of(may_cut=True), BalanceConfig(), min_samples=99)
    assert "\n" not in str(error.value)


# --- Plans ---


def plan_in(
    config: Config,
    budget: int,
    *,
    may_cut: bool = True,
    bytes_of: Callable[[Program], int] = line,
    counts: Mapping[Shape, int] = COUNTS,
) -> Plan:
    """Plans within a budget in bytes that a fake compiler reports."""
    balance = BalanceConfig(form="length", rule="equal-token")
    config = dataclasses.replace(config, balance=balance)
    memory = CompiledMemory(
        FakeCompiler(bytes_of),
        COSTS,
        balance,
        budget=budget,
        origin="test",
        layout=MeshConfig(replica=1).layout,
        remats=("none",),
        console=Console(quiet=True),
    )
    return Planner(
        config,
        samples_of(counts, may_cut=may_cut),
        analytic_cost(config.model),
        memory,
        MeshConfig(replica=1),
        num_replicas=1,
        target="fake",
    ).plan()


def test_a_plan_runs_what_the_memory_allows(debug_config: Config):
    plan = plan_in(debug_config, FIXED + 1_000)  # 100 tokens.
    assert [b.tokens for b in plan.buckets] == [16, 32, 96]
    assert [b.batch for b in plan.buckets] == [6, 3, 1]
    assert plan.num_cut == 20
    assert not any(b.over_budget for b in plan.buckets)
    assert all(b.num_bytes <= FIXED + 1_000 for b in plan.buckets)
    assert plan.sizes == ((4, 8), (8, 8))


def test_a_length_that_needs_more_than_regressed_gets_shorter(debug_config: Config):
    def bends(program: Program) -> int:
        return line(program) + 300 * (64 <= program.tokens < 128)

    plan = plan_in(debug_config, FIXED + 1_000, bytes_of=bends)
    *_, longest = plan.buckets
    assert longest.tokens < 96
    assert bends(longest.program) <= FIXED + 1_000
    assert not longest.over_budget
    assert plan.num_cut == 20


def test_a_budget_below_every_sample_is_one_line(debug_config: Config):
    with pytest.raises(InputError, match="not one sample of len16, 16 tokens") as error:
        plan_in(debug_config, FIXED + 100)
    assert "\n" not in str(error.value)


def test_an_image_larger_than_the_memory_is_left_out(debug_config: Config):
    counts = COUNTS | {Shape(1, 32, 32): 5}
    plan = plan_in(debug_config, FIXED + 1_000, counts=counts)
    (left_out,) = plan.left_out
    assert (left_out.reason, left_out.count) == (TOO_LONG, 5)


def test_shapes_beyond_the_rotary_tables_are_one_line(debug_config: Config):
    counts = {Shape(1_025, 2, 2): 50}
    with pytest.raises(
        InputError, match="at most 1024 tokens along each axis"
    ) as error:
        plan_in(debug_config, FIXED + 10**6, counts=counts)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("policy", ["lockstep", "mixed"])
def test_every_sample_runs_once_in_an_epoch(plan_of: Callable[..., Plan], policy: str):
    counts = {Shape(f, 4, 4): 7 + 3 * f for f in range(1, 9)} | {Shape(1, 8, 8): 31}
    plan = plan_of(counts, num_replicas=2, policy=policy, form="length", max_buckets=3)
    assert sum(
        b.num_samples for b in {b.form: b for b in plan.buckets}.values()
    ) == sum(counts.values())
    schedule, seen, step = plan.schedule(seed=0), {}, 0
    while schedule.epoch(step + 1) <= 1.0:
        for replica in range(2):
            for micro_batch in schedule.micro_batches(step, replica):
                form = plan.buckets[micro_batch.bucket].form
                for member in micro_batch.members.tolist():
                    seen[form, member] = seen.get((form, member), 0) + 1
        step += 1
    assert set(seen.values()) == {1}


def test_clips_that_are_all_longer_than_the_memory_are_cut(debug_config: Config):
    plan = plan_in(debug_config, FIXED + 1_000, counts={Shape(21, 4, 8): 100})
    assert [(b.tokens, b.num_samples) for b in plan.buckets] == [(96, 100)]
    assert plan.num_cut == 100
    with pytest.raises(InputError, match="not one sample of len168, 168 tokens"):
        plan_in(
            debug_config,
            FIXED + 1_000,
            counts={Shape(21, 4, 8): 100},
            may_cut=False,
        )


def test_rows_of_any_grid_need_a_family_that_takes_them(debug_config: Config):
    grids_only = dataclasses.replace(FAMILY, form="grid")
    config = dataclasses.replace(
        debug_config, balance=dataclasses.replace(debug_config.balance, form="length")
    )
    with (
        mock.patch.object(form_choice, "family_of", return_value=grids_only),
        pytest.raises(InputError, match=r"balance\.form=length: models of the family"),
    ):
        form_choice.form_of(config)
