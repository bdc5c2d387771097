"""Tests of jaxload.balance.cost."""

import pytest

from jaxload.balance.cost import CostModel, analytic_cost

WAN_14B = analytic_cost(width=5120, depth=40, mlp_width=13_824, num_text_tokens=512)


@pytest.mark.parametrize(
    ("tokens", "forward_tflop"),
    [(1_560, 42.1), (3_600, 100), (32_760, 1_678), (75_600, 6_523)],
)
def test_agrees_with_the_published_flops_of_wan(tokens, forward_tflop):
    # The published count also has the keys and values of the text, once a sample.
    text_tflop = 40 * 512 * 4 * 5120**2 / 1e12
    counted = WAN_14B(1, tokens) / 3e12 + text_tflop
    assert counted == pytest.approx(forward_tflop, rel=0.01)


@pytest.mark.parametrize(("tokens", "share"), [(1_560, 0.05), (75_600, 0.72)])
def test_attention_takes_over_with_length(tokens, share):
    attention = WAN_14B.per_token_squared * tokens**2
    assert attention / WAN_14B(1, tokens) == pytest.approx(share, abs=0.01)


def test_fixed_cost_is_paid_once():
    cost = CostModel(
        fixed=5.0, per_token=2.0, per_token_squared=1.0, unit="s", source="test"
    )
    assert cost(3, 4) == 5.0 + 3 * (2.0 * 4 + 1.0 * 16)
