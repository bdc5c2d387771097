"""Tests of jaxload.balance.cost."""

import dataclasses

import numpy as np
import pytest

from jaxload.balance.cost import (
    ARCHITECTURES,
    CostModel,
    analytic_cost,
    find_architecture,
)
from jaxload.errors import InputError

# Forward TFLOP of a sample by its tokens, and the share of self-attention in it.
WAN = {
    "wan2.1-t2v-1.3b": {
        1_560: (4.64, 0.10),
        3_600: (11.9, 0.20),
        32_760: (283, 0.70),
        75_600: (1_250, 0.84),
    },
    "wan2.1-t2v-14b": {
        1_560: (42.1, 0.05),
        3_600: (100, 0.11),
        32_760: (1_678, 0.52),
        75_600: (6_523, 0.72),
    },
}
LENGTHS = np.array([1_560, 4_096, 7_800, 14_040, 20_280, 32_760, 75_600])


@pytest.mark.parametrize(
    ("name", "tokens", "tflop", "share"),
    [
        pytest.param(name, tokens, *row, id=f"{name}-{tokens}")
        for name, rows in WAN.items()
        for tokens, row in rows.items()
    ],
)
def test_agrees_with_the_known_flops_of_wan(name, tokens, tflop, share):
    cost = analytic_cost(ARCHITECTURES[name])
    forward = cost(1, tokens) / 3
    assert forward == pytest.approx(tflop * 1e12, rel=0.01)
    attention = cost.per_token_squared * tokens**2 / 3
    assert attention / forward == pytest.approx(share, abs=0.01)


def test_an_unknown_model_is_named_with_the_known_ones():
    with pytest.raises(InputError, match=r"'wan3': expected one of wan2.1-t2v-1.3b, "):
        find_architecture("wan3")


@pytest.mark.parametrize(
    ("name", "exponent"), [("wan2.1-t2v-1.3b", 1.46), ("wan2.1-t2v-14b", 1.31)]
)
def test_one_exponent_lies_between_those_of_the_shortest_and_the_longest(
    name, exponent
):
    cost = analytic_cost(ARCHITECTURES[name])
    # Known for eleven lengths of this range, which are not all these.
    assert cost.exponent(LENGTHS) == pytest.approx(exponent, abs=0.05)
    shortest, longest = (cost.exponent(LENGTHS[[i]]) for i in (0, -1))
    assert shortest < cost.exponent(LENGTHS) < longest < 2.0


def test_the_local_exponent_is_one_and_the_share_of_attention():
    # Of what depends on the length; the text of a sample does not.
    cost = dataclasses.replace(
        analytic_cost(ARCHITECTURES["wan2.1-t2v-14b"]), per_sample=0.0
    )
    for tokens in LENGTHS.tolist():
        share = cost.per_token_squared * tokens**2 / cost.sample(tokens)
        assert cost.exponent(np.array([tokens])) == pytest.approx(1 + share, abs=2e-3)


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


def test_remat_runs_the_blocks_forward_once_more():
    plain, remat = (
        analytic_cost(ARCHITECTURES["wan2.1-t2v-1.3b"], remat=remat)
        for remat in (False, True)
    )
    assert remat.per_token_squared == pytest.approx(4 / 3 * plain.per_token_squared)
    # Patches and embeddings are outside of the blocks, and small.
    patches = 3 * 4 * 64 * 1536
    assert remat.per_token - patches == pytest.approx(
        4 / 3 * (plain.per_token - patches)
    )
    assert plain.per_sample < remat.per_sample < 4 / 3 * plain.per_sample
    assert plain.source != remat.source


def test_the_depth_scales_the_blocks_alone():
    wan = ARCHITECTURES["wan2.1-t2v-14b"]
    none, one, two = (
        analytic_cost(dataclasses.replace(wan, depth=depth))(1, 4_096)
        for depth in (0, 1, 2)
    )
    assert none > 0
    assert two - one == pytest.approx(one - none)


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
    cost = analytic_cost(ARCHITECTURES["wan2.1-t2v-14b"])
    batch = np.array([8, 4, 1])
    priced = np.asarray(cost(batch, LENGTHS[:3]))
    for i in range(3):
        assert priced[i] == pytest.approx(cost(int(batch[i]), int(LENGTHS[i])))
