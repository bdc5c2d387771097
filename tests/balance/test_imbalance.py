"""Tests of jaxload.balance.imbalance."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxload.balance.imbalance import (
    expected_distinct,
    idle_by_step,
    measure_imbalance,
)

# Two steps of four replicas: the longest take 4 and 10, the means are 2.5 and 9.
SECONDS = np.array([[1.0, 2.0, 3.0, 4.0], [8.0, 10.0, 8.0, 10.0]])


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("idle_share", (6.0 + 4.0) / (16.0 + 40.0)),
        ("mean_wait", (6 / 16 + 4 / 40) / 2),
        ("max_over_mean", (4 / 2.5 - 1 + 10 / 9 - 1) / 2),
        ("spread", (3 / 4 + 2 / 10) / 2),
        ("variation", (1.25**0.5 / 2.5 + 1 / 9) / 2),
    ],
)
def test_each_definition_by_hand(name, by_hand):
    assert getattr(measure_imbalance(SECONDS), name) == pytest.approx(by_hand)


def test_idle_by_step_by_hand():
    np.testing.assert_allclose(idle_by_step(SECONDS), [6 / 16, 4 / 40])


def test_equal_replicas_are_balanced_in_every_definition():
    equal = np.tile([[3.0], [7.0], [0.5]], (1, 5))
    for name, value in dataclasses.asdict(measure_imbalance(equal)).items():
        assert value == 0.0, name
    assert not idle_by_step(equal).any()


def test_one_slow_replica_of_many():
    # All replicas but one wait for almost the whole step, the limit of each definition.
    seconds = np.full((1, 100), 1e-9)
    seconds[0, 0] = 1.0
    result = measure_imbalance(seconds)
    assert result.idle_share == pytest.approx(0.99)
    assert result.mean_wait == pytest.approx(0.99)
    assert result.max_over_mean == pytest.approx(99.0, rel=1e-6)
    assert result.spread == pytest.approx(1.0)
    assert result.variation == pytest.approx(99**0.5, rel=1e-6)


def test_only_the_idle_share_weights_steps_by_their_length():
    long = SECONDS * np.array([[1.0], [1000.0]])
    first, second = measure_imbalance(SECONDS), measure_imbalance(long)
    assert second.idle_share == pytest.approx(0.1, abs=1e-3)
    assert second.mean_wait == pytest.approx(first.mean_wait)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8),
    st.integers(1, 30),
    st.integers(0, 99),
)
def test_expected_distinct_agrees_with_random_draws(weights, num_draws, seed):
    share = np.array(weights) / sum(weights)
    drawn = np.random.default_rng(seed).multinomial(num_draws, share, size=20_000)
    # With at most 8 outcomes, the standard error is below 1.5 / sqrt(20,000).
    expected = (drawn > 0).sum(axis=1).mean()
    assert expected_distinct(np.array(weights), float(num_draws)) == pytest.approx(
        expected, abs=0.06
    )
