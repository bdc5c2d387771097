"""Tests of jaxload.balance.batch_sizes."""

import dataclasses
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxload.balance.architecture import analytic_law
from jaxload.balance.batch_sizes import Catalogue, choose_batches, expected_idle
from jaxload.balance.config import BalanceConfig
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.balance.form import Grid
from jaxload.balance.memory import Limit
from jaxload.balance.program import Layout, Program
from jaxload.errors import InputError
from jaxload.models import preset
from jaxload.planning.analytic_cost import architecture_of
from jaxload.shapes.shape import Shape
from tests.balance.grid_samples import grid_class, grid_classes, shape_of

COST = analytic_law(architecture_of(preset("wan-demo")))
CONFIG = BalanceConfig(max_tokens=640, max_compute_tokens=512)
SHAPES = st.builds(
    lambda f, h, w: Shape(f, 2 * h, 2 * w),
    st.integers(1, 20),
    st.integers(1, 8),
    st.integers(1, 8),
)
COUNTS = st.dictionaries(SHAPES, st.integers(1, 1_000), min_size=1, max_size=12)
RULES = st.sampled_from(["equal-token", "dual", "dual-cost"])

WAN_LIKE = analytic_law(architecture_of(preset("wan2.1-t2v-14b")))


def model_of(law: CostLaw) -> CostModel:
    return CostModel.of(law, unit="FLOP", source="test")


def limit_of(
    shape: Shape, max_units: int, *, unit: int = 1, layout: Layout | None = None
) -> Limit:
    program = Program(
        form=Grid.of(shape),
        batch=max(1, max_units) * unit,
        layout=layout or Layout(),
    )
    return Limit(program=program, within_budget=max_units > 0, unit=unit)


def choose(
    counts, *, config=CONFIG, num_replicas=1, max_batch=None, layout=None, together=True
) -> Catalogue:
    shapes = sorted(counts, key=lambda shape: (shape.tokens, shape))
    num_devices = layout.batch if layout else 1
    unit = math.lcm(num_devices, config.batch_multiple)
    # Tokens of the samples that a unit has on each device.
    per_unit = unit // num_devices
    max_units = max_batch or (lambda s: config.max_tokens // (per_unit * s.tokens))
    return choose_batches(
        grid_classes(counts),
        [limit_of(s, max_units(s), unit=unit, layout=layout) for s in shapes],
        config=config,
        cost_model=model_of(COST),
        num_replicas=num_replicas,
        together=together,
    )


def any_within_budget(counts, config) -> bool:
    return min(shape.tokens for shape in counts) <= config.max_tokens


def obeys(batch: int, tokens: int, rule: str, config: BalanceConfig, exponent) -> bool:
    """Returns whether a micro-batch is within the budgets of a rule."""
    longest = config.max_compute_tokens
    within = batch * tokens <= config.max_tokens
    if rule == "dual":
        within &= batch * tokens**exponent <= longest**exponent * (1 + 1e-9)
    if rule == "dual-cost":
        within &= batch * COST.sample(tokens) <= COST.sample(longest) * (1 + 1e-9)
    return bool(within)


@settings(max_examples=60, deadline=None)
@given(COUNTS, RULES, st.integers(1, 64), st.sampled_from([0.0, 1.0, 1.5, 2.0]))
def test_a_batch_is_the_largest_within_both_budgets(
    counts, rule, num_replicas, exponent
):
    config = dataclasses.replace(CONFIG, rule=rule, exponent=exponent)
    if not any_within_budget(counts, config):
        return
    catalogue = choose(counts, config=config, num_replicas=num_replicas)
    if rule == "dual" and exponent:
        assert catalogue.exponent == exponent
    assert [shape_of(b).tokens for b in catalogue.buckets] == sorted(
        shape.tokens for shape in counts
    )
    for bucket in catalogue.buckets:
        tokens, available = (
            shape_of(bucket).tokens,
            counts[shape_of(bucket)] // num_replicas,
        )
        options = (tokens, rule, config, catalogue.exponent)
        # Brute force over all batches.
        best = max((b for b in range(1, 641) if obeys(b, *options)), default=0)
        assert bucket.batch == max(1, min(best, available))
        assert bucket.over_budget == (not obeys(1, *options))
        assert bucket.num_samples == counts[shape_of(bucket)]
        assert bucket.cost == pytest.approx(COST(bucket.batch, tokens))


LAYOUTS = st.sampled_from([Layout(), Layout(batch=2), Layout(batch=8)])


@settings(max_examples=80, deadline=None)
@given(
    COUNTS,
    RULES,
    st.integers(1, 8),
    st.booleans(),
    LAYOUTS,
    st.sampled_from([1, 2, 3, 8]),
)
def test_a_batch_of_several_devices_is_the_largest_within_the_budgets_of_each(
    counts, rule, num_replicas, together, layout, multiple
):
    config = dataclasses.replace(CONFIG, rule=rule, batch_multiple=multiple)
    unit = math.lcm(layout.batch, multiple)
    if min(shape.tokens for shape in counts) * unit // layout.batch > config.max_tokens:
        return
    catalogue = choose(
        counts,
        config=config,
        num_replicas=num_replicas,
        layout=layout,
        together=together,
    )
    for bucket in catalogue.buckets:
        assert bucket.program.layout == layout
        assert bucket.batch % layout.batch == bucket.batch % multiple == 0
        assert bucket.program.samples_per_device == bucket.batch // layout.batch
        available = counts[shape_of(bucket)] // (num_replicas if together else 1)
        options = (bucket.tokens, rule, config, catalogue.exponent)
        # Brute force over all batches, by their samples per device.
        best = max(
            (
                batch
                for batch in range(unit, 640 * layout.batch + 1)
                if batch % layout.batch == batch % multiple == 0
                and obeys(batch // layout.batch, *options)
                and batch <= available
            ),
            default=unit,
        )
        assert bucket.batch == best
        assert bucket.over_budget == (not obeys(unit // layout.batch, *options))
        assert bucket.cost == pytest.approx(
            float(COST(bucket.batch // layout.batch, bucket.tokens))
        )


@settings(max_examples=20, deadline=None)
@given(COUNTS, RULES, st.sampled_from([2, 8]), st.booleans())
def test_more_devices_in_a_group_multiply_the_batch(counts, rule, devices, searched):
    # With `devices` times the samples, so that they do not run out.
    config = dataclasses.replace(
        CONFIG, rule=rule, max_compute_tokens=0 if searched else 512
    )
    if not any_within_budget(counts, config):
        return
    single = choose(counts, config=config)
    group = choose(
        {shape: devices * n for shape, n in counts.items()},
        config=config,
        layout=Layout(batch=devices),
    )
    assert [b.batch for b in group.buckets] == [
        devices * b.batch for b in single.buckets
    ]
    assert [b.cost for b in group.buckets] == [b.cost for b in single.buckets]
    assert group.budget == single.budget


@pytest.mark.parametrize("rule", ["dual", "dual-cost"])
def test_devices_that_share_sequences_run_more_of_them(rule):
    # Memory does not bind; the compute budget holds 4 samples, or 12 thirds.
    shape, config = Shape(8, 8, 8), dataclasses.replace(CONFIG, rule=rule, exponent=1.5)
    batch = {
        ring: choose_batches(
            [grid_class(shape, 10**6)],
            [limit_of(shape, 1_000, layout=Layout(ring=ring))],
            config=config,
            cost_model=model_of(COST),
            num_replicas=1,
        )
        .buckets[0]
        .batch
        for ring in (1, 3)
    }
    price = {"dual": lambda s: s**1.5, "dual-cost": COST.sample}[rule]
    assert batch[1] == int(price(512) / price(128))
    assert batch[3] == int(3 * price(512) / price(128))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 2_000), st.integers(2, 1_500), st.floats(1.05, 2.0), st.floats(1, 8)
)
def test_memory_binds_below_the_crossover_and_compute_above(
    tokens, longest, exponent, headroom
):
    max_tokens = int(longest * headroom)
    config = BalanceConfig(
        max_tokens=max_tokens,
        max_compute_tokens=longest,
        rule="dual",
        exponent=exponent,
    )
    shape = Shape(tokens, 2, 2)
    # The shortest shape is always within the budgets.
    counts = {Shape(1, 2, 2): 10**6, shape: 10**6}
    bucket = choose(counts, config=config).buckets[-1]
    by_memory, by_compute = max_tokens / tokens, (longest / tokens) ** exponent
    crossover = (longest**exponent / max_tokens) ** (1 / (exponent - 1))
    binding = by_memory if tokens <= crossover else by_compute
    assert binding == pytest.approx(min(by_memory, by_compute), rel=1e-6)
    # The floor of a quotient, which rounding may change by one.
    expected = {max(1, int(binding * (1 + e))) for e in (-1e-9, 0.0, 1e-9)}
    assert bucket.batch in expected


@pytest.mark.parametrize("exponent", [1.0, 1.31, 1.5, 2.0])
def test_dual_equals_equal_token_if_memory_holds_one_longest_sample(exponent):
    counts = {Shape(f, 8, 8): 10_000 for f in (1, 2, 3, 5, 8, 13, 21)}
    longest = max(shape.tokens for shape in counts)
    dual = BalanceConfig(
        max_tokens=longest,
        max_compute_tokens=longest,
        rule="dual",
        exponent=exponent,
    )
    plain = dataclasses.replace(dual, rule="equal-token")
    assert choose(counts, config=dual).buckets == choose(counts, config=plain).buckets


def test_a_sample_over_a_budget_gets_a_batch_of_one_and_a_flag():
    counts = {Shape(1, 8, 8): 9, Shape(36, 8, 8): 9, Shape(64, 8, 8): 9}
    for rule, flags in (
        ("equal-token", [False, False, True]),
        ("dual", [False, True, True]),
        ("dual-cost", [False, True, True]),
    ):
        config = dataclasses.replace(CONFIG, rule=rule)
        buckets = choose(counts, config=config).buckets
        assert [b.over_budget for b in buckets] == flags
        assert [b.batch for b in buckets][1:] == [1, 1]


def test_a_batch_leaves_a_micro_batch_for_each_replica():
    (bucket,) = choose({Shape(1, 8, 8): 9}, num_replicas=4).buckets
    assert bucket.batch == 2
    (bucket,) = choose({Shape(1, 8, 8): 3}, num_replicas=4).buckets
    assert bucket.batch == 1


def test_the_memory_limit_may_depend_on_the_shape():
    counts = {Shape(1, 8, 8): 1_000, Shape(2, 8, 8): 1_000}
    limits = {16: 7, 32: 2}
    catalogue = choose(counts, max_batch=lambda shape: limits[shape.tokens])
    assert [b.batch for b in catalogue.buckets] == [7, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"balance.max_tokens=640: not one sample of 64x8x8, 1024 tokens, fits"),
        ({"max_bytes": 5}, r"balance.max_bytes=5: not one sample of 64x8x8"),
        (
            {},
            r"plan or prepare smaller clips \(shapes.max_frames and shapes.max_pixels",
        ),
    ],
    ids=["tokens", "bytes", "clips"],
)
def test_a_budget_below_one_sample_is_an_error(options, message):
    config = dataclasses.replace(CONFIG, **options)
    with pytest.raises(InputError, match=message):
        choose({Shape(64, 8, 8): 9, Shape(65, 8, 8): 9}, config=config)


@settings(max_examples=10, deadline=None)
@given(
    st.dictionaries(SHAPES, st.integers(64, 10_000), min_size=2, max_size=8),
    st.sampled_from(["dual", "dual-cost"]),
    st.integers(0, 99),
)
def test_no_random_budget_is_better_than_the_searched_one(counts, rule, seed):
    num_replicas = 16
    longest = max(shape.tokens for shape in counts)
    config = BalanceConfig(max_tokens=2 * longest, rule=rule, exponent=1.5)

    def idle_of(catalogue: Catalogue) -> float:
        return expected_idle(
            np.array([b.cost for b in catalogue.buckets]),
            np.array([b.num_samples / b.batch for b in catalogue.buckets]),
            num_replicas,
        )

    searched = choose(counts, config=config, num_replicas=num_replicas)
    rng = np.random.default_rng(seed)
    for tokens in rng.uniform(longest, 4 * longest, 200):
        fixed = dataclasses.replace(config, max_compute_tokens=int(tokens))
        other = choose(counts, config=fixed, num_replicas=num_replicas)
        assert idle_of(searched) <= idle_of(other) + 1e-3


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.1, 10.0), st.floats(0.01, 1.0)), min_size=1, max_size=6
    ),
    st.integers(1, 16),
    st.integers(0, 99),
)
def test_expected_idle_agrees_with_random_draws(buckets, num_replicas, seed):
    cost, weight = np.array(buckets).T
    rng = np.random.default_rng(seed)
    drawn = rng.choice(cost, (20_000, num_replicas), p=weight / weight.sum())
    # The standard error over 20,000 steps is far below 0.01.
    expected = 1 - drawn.mean() / drawn.max(axis=1).mean()
    assert expected_idle(cost, weight, num_replicas) == pytest.approx(
        expected, abs=0.03
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_tokens", -1, r"balance.max_tokens=-1: expected 0 or more"),
        ("batch_multiple", 0, r"balance.batch_multiple=0: expected 1 or more"),
        ("reserve", 1.0, r"balance.reserve=1.0: expected a share from 0 to below 1"),
        ("reserve", -0.1, r"balance.reserve=-0.1: expected a share"),
        ("measure_seconds", 0.0, r"balance.measure_seconds=0.0: expected more than 0"),
        ("max_buckets", 0, r"balance.max_buckets=0: expected 1 or more"),
        ("max_bytes", -1, r"balance.max_bytes=-1: expected 0 or more"),
        ("max_programs", -1, r"balance.max_programs=-1: expected 0 or more"),
        ("max_compute_tokens", -1, r"balance.max_compute_tokens=-1: expected 0"),
        ("exponent", 0.5, r"balance.exponent=0.5: expected 1.0 or more"),
    ],
)
def test_rejects_invalid_budgets(field, value, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(CONFIG, **{field: value})


def test_the_exponent_of_dual_is_regressed_from_the_cost_model():
    shapes = [Shape(frames, 60, 104) for frames in (1, 5, 13, 21)]
    catalogue = choose_batches(
        grid_classes(dict.fromkeys(shapes, 1_000)),
        [limit_of(shape, 70_000 // shape.tokens) for shape in shapes],
        config=BalanceConfig(max_tokens=70_000, rule="dual"),
        cost_model=model_of(WAN_LIKE),
        num_replicas=1,
    )
    tokens = np.array([shape.tokens for shape in shapes], float)
    exponent, _ = np.polyfit(np.log(tokens), np.log(WAN_LIKE.sample(tokens)), 1)
    assert catalogue.exponent == pytest.approx(exponent)
    assert 1.2 < catalogue.exponent < 1.5


def test_the_budget_includes_the_fixed_cost():
    cost = dataclasses.replace(WAN_LIKE, fixed=float(WAN_LIKE(1, 1_560)))
    shapes = [Shape(1, 60, 104), Shape(21, 60, 104)]
    catalogue = choose_batches(
        grid_classes(dict.fromkeys(shapes, 1_000)),
        [limit_of(shape, 70_000 // shape.tokens) for shape in shapes],
        config=BalanceConfig(max_tokens=70_000),
        cost_model=model_of(cost),
        num_replicas=1,
    )
    assert max(b.cost for b in catalogue.buckets) <= catalogue.budget * (1 + 1e-9)
    assert catalogue.budget - cost.fixed >= cost.sample(32_760) * (1 - 1e-9)


def test_the_budget_of_trillions_of_samples_is_searched_in_little_memory():
    counts = {Shape(1, 2, 2): 10**12, Shape(21, 90, 160): 1_000}
    config = BalanceConfig(max_tokens=10**12)
    tracemalloc.start()
    found = choose(counts, config=config)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.buckets[0].batch > 10**6
    assert peak < 100_000_000
