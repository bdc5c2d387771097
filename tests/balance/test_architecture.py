"""Tests of jaxload.balance.architecture and jaxload.planning.analytic_cost."""

import dataclasses

import numpy as np
import pytest

from jaxload.balance.architecture import CrossArchitecture, analytic_cost
from jaxload.models import preset
from jaxload.planning.analytic_cost import architecture_of

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
    cost = analytic_cost(architecture_of(preset(name)))
    forward = cost(1, tokens) / 3
    assert forward == pytest.approx(tflop * 1e12, rel=0.01)
    attention = cost.per_token_squared * tokens**2 / 3
    assert attention / forward == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(
    ("name", "exponent"), [("wan2.1-t2v-1.3b", 1.46), ("wan2.1-t2v-14b", 1.31)]
)
def test_one_exponent_lies_between_those_of_the_shortest_and_the_longest(
    name, exponent
):
    cost = analytic_cost(architecture_of(preset(name)))
    # Known for eleven lengths of this range, which are not all these.
    assert cost.exponent(LENGTHS) == pytest.approx(exponent, abs=0.05)
    shortest, longest = (cost.exponent(LENGTHS[[i]]) for i in (0, -1))
    assert shortest < cost.exponent(LENGTHS) < longest < 2.0


def test_the_local_exponent_is_one_and_the_share_of_attention():
    # Of what depends on the length; the text of a sample does not.
    cost = dataclasses.replace(
        analytic_cost(architecture_of(preset("wan2.1-t2v-14b"))), per_sample=0.0
    )
    for tokens in LENGTHS.tolist():
        share = cost.per_token_squared * tokens**2 / cost.sample(tokens)
        assert cost.exponent(np.array([tokens])) == pytest.approx(1 + share, abs=2e-3)


def test_remat_runs_the_blocks_forward_once_more():
    plain, remat = (
        analytic_cost(architecture_of(preset("wan2.1-t2v-1.3b")), remat=remat)
        for remat in ("none", "full")
    )
    assert remat.per_token_squared == pytest.approx(4 / 3 * plain.per_token_squared)
    # Patches and embeddings are outside of the blocks, and small.
    patches = 3 * 4 * 64 * 1536
    assert remat.per_token - patches == pytest.approx(
        4 / 3 * (plain.per_token - patches)
    )
    assert plain.per_sample < remat.per_sample < 4 / 3 * plain.per_sample
    assert plain.source != remat.source


def test_remat_of_attention_spares_what_is_quadratic():
    none, attention, full = (
        analytic_cost(architecture_of(preset("wan2.1-t2v-1.3b")), remat=remat)
        for remat in ("none", "attention", "full")
    )
    assert attention.per_token_squared == none.per_token_squared
    # Attention to the text is linear in tokens, and runs again.
    assert attention.per_token == full.per_token
    assert attention.per_sample == full.per_sample


def test_an_image_costs_its_keys_and_what_attends_to_them():
    text, image = (
        analytic_cost(architecture_of(preset(f"wan2.1-{kind}-14b")))
        for kind in ("t2v", "i2v")
    )
    width, depth, tokens = 5120, 40, 257
    keys_and_values = 3 * depth * 4 * tokens * width**2
    embedding = 3 * 2 * tokens * 1280 * (1280 + width)
    assert image.per_sample - text.per_sample == keys_and_values + embedding
    scores, patches = 3 * depth * 4 * tokens * width, 3 * 8 * 20 * width
    assert image.per_token - text.per_token == scores + patches


def test_the_depth_scales_the_blocks_alone():
    wan = architecture_of(preset("wan2.1-t2v-14b"))
    assert isinstance(wan, CrossArchitecture)
    none, one, two = (
        analytic_cost(dataclasses.replace(wan, depth=depth))(1, 4_096)
        for depth in (0, 1, 2)
    )
    assert none > 0
    assert two - one == pytest.approx(one - none)
