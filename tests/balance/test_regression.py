"""Tests of jaxload.balance.regression."""

import dataclasses
import json
from collections.abc import Callable

import numpy as np
import pytest

from jaxload.balance.calibration import Calibration
from jaxload.balance.regression import Timing, regress_costs
from jaxload.errors import InputError

GRID = [(b, s) for s in (16, 64, 256, 1_024, 4_096) for b in (1, 2, 4)]


def two_terms(batch: int, tokens: int) -> float:
    return 3e-3 + 2e-5 * batch * tokens + 1e-8 * batch * tokens**2


def power(batch: int, tokens: int) -> float:
    return 2e-3 + 5e-6 * batch * tokens**1.4


def timings(law: Callable[[int, int], float], noise: float = 0.0) -> list[Timing]:
    rng = np.random.default_rng(0)
    return [
        Timing(batch=b, tokens=s, seconds=law(b, s) * (1 + noise * rng.normal()))
        for b, s in GRID
    ]


def test_recovers_the_two_terms():
    calibration = regress_costs(timings(two_terms), source="test")
    assert calibration.cost.fixed == pytest.approx(3e-3)
    assert calibration.cost.per_token == pytest.approx(2e-5)
    assert calibration.cost.per_token_squared == pytest.approx(1e-8)
    assert (calibration.source, calibration.remat) == ("test", "none")
    assert calibration.cost_goodness.r2 == pytest.approx(1)
    assert calibration.cost_goodness.held_out_error < 1e-9
    # No single power predicts both ends.
    assert calibration.power_law_goodness.held_out_error > 0.01


def test_noise_moves_the_coefficients_only_a_little():
    calibration = regress_costs(timings(two_terms, noise=0.02), source="test")
    assert calibration.cost.fixed == pytest.approx(3e-3, rel=0.1)
    assert calibration.cost.per_token == pytest.approx(2e-5, rel=0.1)
    assert calibration.cost.per_token_squared == pytest.approx(1e-8, rel=0.1)
    assert calibration.cost_goodness.r2 > 0.99
    assert 0.001 < calibration.cost_goodness.held_out_error < 0.05


def test_recovers_a_power():
    calibration = regress_costs(timings(power), source="test")
    assert calibration.power_law.exponent == pytest.approx(1.4, abs=1e-4)
    assert calibration.power_law.scale == pytest.approx(5e-6, rel=1e-3)
    assert calibration.power_law.fixed == pytest.approx(2e-3, rel=1e-3)
    assert calibration.power_law_goodness.r2 == pytest.approx(1)
    assert calibration.power_law_goodness.held_out_error < 1e-4


def test_no_coefficient_is_negative():
    def falling(batch: int, tokens: int) -> float:
        return 1e-4 * batch * tokens**0.8  # Unconstrained, b would be negative.

    cost = regress_costs(timings(falling), source="test").cost
    assert cost.per_token > 0
    assert cost.per_token_squared >= 0
    assert cost.fixed >= 0
    free = np.array([[1, b * s, b * s**2] for b, s in GRID], float)
    seconds = np.array([falling(b, s) for b, s in GRID])
    assert np.linalg.lstsq(free, seconds)[0].min() < 0


def test_about_a_quarter_is_held_out_but_not_the_ends():
    points = regress_costs(timings(two_terms), source="test").points
    held_out = [(p.batch, p.tokens) for p in points if p.held_out]
    assert len(held_out) == round(len(GRID) / 4)
    ends = {(1, 16), (4, 4_096)}
    assert not ends & set(held_out)
    # Held-out points are spread over lengths and batch sizes.
    assert len({tokens for _, tokens in held_out}) >= 3
    assert len({batch for batch, _ in held_out}) >= 2


def test_held_out_points_do_not_influence_the_regression():
    before = timings(two_terms, noise=0.02)
    calibration = regress_costs(before, source="test")
    for i, point in enumerate(calibration.points):
        after = list(before)
        after[i] = dataclasses.replace(before[i], seconds=9 * before[i].seconds)
        changed = regress_costs(after, source="test")
        assert changed.points[i].held_out == point.held_out
        same = (changed.cost, changed.power_law) == (
            calibration.cost,
            calibration.power_law,
        )
        assert same == point.held_out
        if point.held_out:
            assert changed.cost_goodness.r2 == calibration.cost_goodness.r2
            assert (
                changed.cost_goodness.held_out_error
                > calibration.cost_goodness.held_out_error
            )


def test_points_are_sorted_and_have_their_residuals():
    calibration = regress_costs(timings(two_terms, noise=0.02)[::-1], source="test")
    assert [(p.batch, p.tokens) for p in calibration.points] == GRID
    assert calibration == regress_costs(
        timings(two_terms, noise=0.02)[::-1], source="test"
    )
    for point in calibration.points:
        predicted = calibration.cost(point.batch, point.tokens)
        assert point.two_term == pytest.approx(predicted)
        assert point.two_term_residual == pytest.approx(predicted / point.seconds - 1)
        predicted = calibration.power_law(point.batch, point.tokens)
        assert point.power_law_residual == pytest.approx(predicted / point.seconds - 1)


def test_five_points_of_three_lengths_are_enough():
    pairs = [(1, 16), (2, 16), (1, 64), (1, 256), (2, 256)]
    points = [Timing(batch=b, tokens=s, seconds=two_terms(b, s)) for b, s in pairs]
    calibration = regress_costs(points, source="test")
    assert sum(point.held_out for point in calibration.points) == 1
    assert calibration.cost.per_token == pytest.approx(2e-5)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "0 timings of 0 lengths: expected 5 or more of 3 lengths or more"),
        (GRID[::4], "4 timings of 4 lengths: expected 5 or more"),
        (GRID[:6], "6 timings of 2 lengths: expected 5 or more of 3 lengths"),
        (
            [(16, 16), (8, 32), (4, 64), (2, 128), (1, 256)],
            "5 timings that cannot tell a cost per micro-batch from one per token",
        ),
    ],
    ids=["none", "few", "few-lengths", "equal-tokens"],
)
def test_too_few_timings_are_refused(pairs, message):
    points = [Timing(batch=b, tokens=s, seconds=two_terms(b, s)) for b, s in pairs]
    with pytest.raises(InputError, match=message):
        regress_costs(points, source="test")


def test_times_that_do_not_grow_are_refused():
    # As on a busy machine, where overhead hides the cost of tokens.
    points = [Timing(batch=b, tokens=s, seconds=1 / (b * s)) for b, s in GRID]
    with pytest.raises(InputError, match="that do not grow with tokens: expected"):
        regress_costs(points, source="test")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_an_invalid_time_is_refused(seconds):
    with pytest.raises(InputError, match=r"timing of 2 x 64 tokens: .* positive time"):
        Timing(batch=2, tokens=64, seconds=seconds)


def test_json_gives_an_equal_calibration():
    calibration = regress_costs(
        timings(two_terms, noise=0.02), source="test", remat="full"
    )
    content = json.loads(json.dumps(calibration.to_dict()))
    assert (content["format"], content["remat"]) == (4, "full")
    assert Calibration.from_dict(content, name="calibration.json") == calibration


def test_a_damaged_or_foreign_file_is_refused_by_name():
    content = regress_costs(timings(two_terms), source="test").to_dict()
    rows = content["points"]
    damaged = [
        None,
        [],
        "text",
        {"format": 2, "buckets": []},
        content | {"format": 1},
        content | {"cost": None},
        content | {"cost": content["cost"] | {"fixed": "3"}},
        content | {"cost": content["cost"] | {"per_token": float("nan")}},
        content | {"power_law": content["power_law"] | {"more": 1.0}},
        content | {"points": [*rows[:-1], rows[-1] | {"held_out": 3}]},
    ]
    for bad in damaged:
        with pytest.raises(
            InputError, match=r"^calibration.json: not a calibration .* anew"
        ):
            Calibration.from_dict(bad, name="calibration.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("source", 3), ("source", None), ("remat", "half"), ("remat", ["full"])],
)
def test_an_invalid_source_or_remat_is_refused(field, value):
    content = regress_costs(timings(two_terms), source="test").to_dict()
    # Refused by the class itself, not by type checks that run only in tests.
    with pytest.raises(InputError, match=rf"a calibration \(ValueError\(.{field}="):
        Calibration.from_dict(content | {field: value}, name="calibration.json")


@pytest.mark.parametrize("skips", [False, True])
def test_rows_with_padding_decide_whether_attention_skips_it(skips: bool):
    def seconds(batch: int, tokens: int, mean: float) -> float:
        keys = mean if skips else tokens
        return 3e-3 + batch * tokens * (2e-5 + 1e-8 * keys)

    rng = np.random.default_rng(0)
    mixed = [
        Timing(
            batch=b,
            tokens=s,
            mean_length=s / 2,
            seconds=seconds(b, s, s / 2) * (1 + 0.01 * rng.normal()),
        )
        for b, s in GRID
    ]
    full = timings(two_terms, noise=0.01)
    found = regress_costs([*mixed, *full], source="test")
    assert found.skips_padding == skips
    assert len(found.mixed) == len(GRID)
    # Rows with padding change no law.
    alone = regress_costs(full, source="test")
    assert (found.cost, found.power_law) == (alone.cost, alone.power_law)
    assert found.points == alone.points
    assert not alone.skips_padding
    content = json.loads(json.dumps(found.to_dict()))
    assert Calibration.from_dict(content, name="x") == found
