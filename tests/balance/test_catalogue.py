"""Tests of jaxload.balance.catalogue."""

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxload.balance.catalogue import BalanceConfig, budget_batch, choose_catalogue
from jaxload.balance.cost import analytic_cost
from jaxload.balance.shape import Shape
from jaxload.errors import InputError

COST = analytic_cost(width=128, depth=4, mlp_width=512, num_text_tokens=12)
CONFIG = BalanceConfig(max_tokens=640, max_compute_tokens=512, max_buckets=4)
SHAPES = st.builds(
    lambda f, h, w: Shape(f, 2 * h, 2 * w),
    st.integers(1, 20),
    st.integers(1, 8),
    st.integers(1, 8),
)
RULES = st.sampled_from(["equal-token", "dual", "dual-cost"])


def choose(counts, *, config=CONFIG, num_replicas=1):
    return choose_catalogue(
        counts, config=config, cost_model=COST, num_replicas=num_replicas
    )


@given(
    counts=st.dictionaries(SHAPES, st.integers(1, 1_000), min_size=1, max_size=20),
    rule=RULES,
)
def test_budgets_hold_for_every_bucket_that_is_not_flagged(counts, rule):
    config = dataclasses.replace(CONFIG, rule=rule)
    for bucket in choose(counts, config=config).buckets:
        tokens, batch = bucket.shape.tokens, bucket.batch
        within = tokens * batch <= config.max_tokens
        if rule == "dual":
            within &= batch * tokens**1.5 <= 512**1.5 * (1 + 1e-9)
        if rule == "dual-cost":
            within &= COST(batch, tokens) <= COST(1, 512) * (1 + 1e-9)
        assert within != bucket.over_budget
        assert batch >= 1


@given(tokens=st.integers(1, 2_000), rule=RULES)
def test_one_more_sample_would_break_a_budget(tokens, rule):
    config = dataclasses.replace(CONFIG, rule=rule)
    batch = 1 + budget_batch(tokens, 512, config, COST)
    broken = batch * tokens > config.max_tokens
    if rule == "dual":
        broken |= batch * tokens**1.5 > 512**1.5 * (1 - 1e-9)
    if rule == "dual-cost":
        broken |= COST(batch, tokens) > COST(1, 512) * (1 - 1e-9)
    assert broken


def test_dual_equals_equal_token_when_memory_holds_the_longest_only():
    shapes = [Shape(f, 8, 8) for f in (1, 2, 3, 5, 8, 13, 21)]
    longest = max(shape.tokens for shape in shapes)
    dual = BalanceConfig(max_tokens=longest, rule="dual", exponent=1.5)
    plain = dataclasses.replace(dual, rule="equal-token")
    counts = dict.fromkeys(shapes, 10_000)
    assert [b.batch for b in choose(counts, config=dual).buckets] == [
        b.batch for b in choose(counts, config=plain).buckets
    ]


@given(
    counts=st.dictionaries(SHAPES, st.integers(1, 99), min_size=1, max_size=12),
    seed=st.integers(0, 99),
)
def test_order_of_the_counts_does_not_matter(counts, seed):
    items = list(counts.items())
    random.Random(seed).shuffle(items)
    assert choose(dict(items)) == choose(counts)


@given(
    counts=st.dictionaries(SHAPES, st.integers(1, 99), min_size=1, max_size=12),
    num_replicas=st.integers(1, 8),
)
def test_every_sample_is_kept_or_dropped_with_a_reason(counts, num_replicas):
    if max(counts.values()) < num_replicas:
        with pytest.raises(InputError, match="use fewer replicas or more data"):
            choose(counts, num_replicas=num_replicas)
        return
    catalogue = choose(counts, num_replicas=num_replicas)
    kept = {bucket.shape: bucket.num_samples for bucket in catalogue.buckets}
    dropped = {row.shape: row.num_samples for row in catalogue.dropped}
    assert kept | dropped == counts
    assert len(kept) + len(dropped) == len(counts)
    assert all(row.reason for row in catalogue.dropped)
    assert len(kept) <= CONFIG.max_buckets


def test_keeps_the_shapes_with_the_most_content():
    counts = {Shape(1, 8, 8): 50, Shape(5, 8, 8): 11, Shape(9, 8, 8): 1}
    config = dataclasses.replace(CONFIG, max_buckets=2)
    catalogue = choose(counts, config=config)
    assert [b.shape.frames for b in catalogue.buckets] == [1, 5]
    assert catalogue.dropped[0].reason == "not among the 2 shapes with the most content"


def test_too_few_samples_for_the_replicas_are_dropped():
    counts = {Shape(1, 8, 8): 50, Shape(5, 8, 8): 3}
    (dropped,) = choose(counts, num_replicas=4).dropped
    assert dropped.reason == "too few samples for 4 replicas"


def test_batch_leaves_a_micro_batch_for_each_replica():
    (bucket,) = choose({Shape(1, 8, 8): 9}, num_replicas=4).buckets
    assert bucket.batch == 2


def test_a_sample_over_the_budget_is_flagged():
    (bucket,) = choose({Shape(64, 8, 8): 9}).buckets
    assert (bucket.batch, bucket.over_budget) == (1, True)


def test_no_sample_is_an_error():
    with pytest.raises(InputError, match="no sample to plan for"):
        choose({})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_tokens", 0, r"balance.max_tokens=0: expected 1 or more"),
        ("max_buckets", 0, r"balance.max_buckets=0: expected 1 or more"),
        ("max_compute_tokens", -1, r"balance.max_compute_tokens=-1: expected 0"),
        ("exponent", 0.5, r"balance.exponent=0.5: expected 1.0 or more"),
    ],
)
def test_rejects_budgets_that_make_no_sense(field, value, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(CONFIG, **{field: value})
