"""Tests of jaxload.balance.cost."""

import numpy as np
import pytest

from jaxload.balance.architecture import analytic_cost
from jaxload.balance.cost import CostModel
from jaxload.models import preset
from jaxload.planning.analytic_cost import architecture_of

LENGTHS = np.array([1_560, 4_096, 7_800, 14_040, 20_280, 32_760, 75_600])


@pytest.mark.parametrize(
    ("per_sample", "per_token", "per_token_squared", "exponent"),
    [(3.0, 0.0, 0.0, 0.0), (0.0, 3.0, 0.0, 1.0), (0.0, 0.0, 3.0, 2.0)],
)
def test_a_single_power_is_found_exactly(
    per_sample, per_token, per_token_squared, exponent
):
    cost = CostModel(
        fixed=7.0,  # Of a micro-batch and not of a sample: it must not count.
        per_sample=per_sample,
        per_token=per_token,
        per_token_squared=per_token_squared,
        unit="s",
        source="test",
    )
    assert cost.exponent(LENGTHS) == pytest.approx(exponent, abs=1e-9)
    assert cost.exponent(LENGTHS[:1]) == pytest.approx(exponent, abs=1e-9)


def test_fixed_cost_is_paid_once_and_the_text_once_a_sample():
    cost = CostModel(
        fixed=5.0,
        per_sample=7.0,
        per_token=2.0,
        per_token_squared=1.0,
        unit="s",
        source="test",
    )
    assert cost.sample(4) == 7.0 + 2.0 * 4 + 1.0 * 16
    assert cost(3, 4) == 5.0 + 3 * cost.sample(4)


def test_arrays_are_priced_element_by_element():
    cost = analytic_cost(architecture_of(preset("wan2.1-t2v-14b")))
    batch = np.array([8, 4, 1])
    priced = np.asarray(cost(batch, LENGTHS[:3]))
    for i in range(3):
        assert priced[i] == pytest.approx(cost(int(batch[i]), int(LENGTHS[i])))
