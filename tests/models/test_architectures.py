"""Tests of the FLOPs of each family, and of jaxload.planning.analytic_cost."""

import dataclasses
from collections.abc import Sequence

import pytest

from jaxload.balance.architecture import analytic_law
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.balance.form import Grid
from jaxload.balance.program import REMATS, Program
from jaxload.models import preset
from jaxload.planning.analytic_cost import analytic_cost, architecture_of

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
LENGTHS = (1_560, 4_096, 7_800, 14_040, 20_280, 32_760, 75_600)


def exponent_of(law: CostLaw, lengths: Sequence[int]) -> float:
    """Returns the exponent of a power law regressed on a cost law."""
    programs = [Program(form=Grid(tokens, 2, 2), batch=1) for tokens in lengths]
    return CostModel.of(law, unit="FLOP", source="test").exponent(programs)


@pytest.mark.parametrize(
    ("name", "tokens", "tflop", "share"),
    [
        pytest.param(name, tokens, *row, id=f"{name}-{tokens}")
        for name, rows in WAN.items()
        for tokens, row in rows.items()
    ],
)
def test_agrees_with_the_known_flops_of_wan(name, tokens, tflop, share):
    cost = analytic_law(architecture_of(preset(name)))
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
    cost = analytic_law(architecture_of(preset(name)))
    # The expected exponents are for eleven lengths of the same range.
    assert exponent_of(cost, LENGTHS) == pytest.approx(exponent, abs=0.05)
    shortest, longest = (exponent_of(cost, [LENGTHS[i]]) for i in (0, -1))
    assert shortest < exponent_of(cost, LENGTHS) < longest < 2.0


def test_the_local_exponent_is_one_and_the_share_of_attention():
    # Without the cost per sample, which does not depend on the number of tokens.
    cost = dataclasses.replace(
        analytic_law(architecture_of(preset("wan2.1-t2v-14b"))), per_sample=0.0
    )
    for tokens in LENGTHS:
        share = cost.per_token_squared * tokens**2 / cost.sample(tokens)
        assert exponent_of(cost, [tokens]) == pytest.approx(1 + share, abs=2e-3)


def test_remat_runs_the_blocks_forward_once_more():
    plain, remat = (
        analytic_law(architecture_of(preset("wan2.1-t2v-1.3b")), remat=remat)
        for remat in ("none", "full")
    )
    assert remat.per_token_squared == pytest.approx(4 / 3 * plain.per_token_squared)
    # Patches and embeddings are outside of the blocks, and small.
    patches = 3 * 4 * 64 * 1536
    assert remat.per_token - patches == pytest.approx(
        4 / 3 * (plain.per_token - patches)
    )
    assert plain.per_sample < remat.per_sample < 4 / 3 * plain.per_sample


def test_remat_of_attention_spares_what_is_quadratic():
    none, attention, full = (
        analytic_law(architecture_of(preset("wan2.1-t2v-1.3b")), remat=remat)
        for remat in ("none", "attention", "full")
    )
    assert attention.per_token_squared == none.per_token_squared
    # Attention to the text is linear in tokens, and runs again.
    assert attention.per_token == full.per_token
    assert attention.per_sample == full.per_sample


def test_an_image_costs_its_keys_and_what_attends_to_them():
    text, image = (
        analytic_law(architecture_of(preset(f"wan2.1-{kind}-14b")))
        for kind in ("t2v", "i2v")
    )
    width, depth, tokens = 5120, 40, 257
    keys_and_values = 3 * depth * 4 * tokens * width**2
    embedding = 3 * 2 * tokens * 1280 * (1280 + width)
    assert image.per_sample - text.per_sample == keys_and_values + embedding
    scores, patches = 3 * depth * 4 * tokens * width, 3 * 8 * 20 * width
    assert image.per_token - text.per_token == scores + patches


def test_the_depth_scales_the_blocks_alone():
    wan = preset("wan2.1-t2v-14b")
    one, two, three = (
        analytic_law(architecture_of(dataclasses.replace(wan, depth=depth)))(1, 4_096)
        for depth in (1, 2, 3)
    )
    assert three - two == pytest.approx(two - one)
    assert one > two - one  # Embeddings and patches are outside of the blocks.


def test_a_config_is_priced_with_every_remat():
    model = preset("wan2.1-t2v-1.3b")
    cost = analytic_cost(model)
    assert cost.unit == "FLOP"
    assert set(cost.laws) == set(REMATS)
    for remat in REMATS:
        assert cost.laws[remat] == analytic_law(architecture_of(model), remat=remat)


def test_devices_that_share_a_sample_have_an_equal_part_of_its_cost():
    model = preset("wan2.1-t2v-1.3b")
    alone, shared = analytic_cost(model), analytic_cost(model, num_devices=4)
    for remat in REMATS:
        assert shared.laws[remat] == alone.laws[remat].scaled(1 / 4)
        assert shared.laws[remat](3, 4_096) == pytest.approx(
            float(alone.laws[remat](3, 4_096)) / 4
        )


def test_adapters_cost_less_than_the_model_and_the_source_says_so():
    model = preset("wan2.1-t2v-1.3b")
    adapted = dataclasses.replace(model, lora_rank=16)
    whole, adapters = analytic_cost(model), analytic_cost(adapted)
    for remat in REMATS:
        assert adapters.laws[remat](1, 4_096) < whole.laws[remat](1, 4_096)
    assert "rank" not in whole.source
    assert "adapters of rank 16" in adapters.source
