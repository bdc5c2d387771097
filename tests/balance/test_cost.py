"""Tests of jaxload.balance.cost and jaxload.planning.costs."""

import dataclasses

import numpy as np
import pytest

from jaxload.balance.architecture import analytic_law
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.balance.form import Grid
from jaxload.balance.program import REMATS, Layout, Program, Remat
from jaxload.balance.regression import Timing, regress_costs
from jaxload.models import preset
from jaxload.planning.analytic_cost import analytic_cost, architecture_of
from jaxload.planning.costs import measured_cost

LENGTHS = np.array([1_560, 4_096, 7_800, 14_040, 20_280, 32_760, 75_600])
LAW = CostLaw(fixed=5.0, per_sample=7.0, per_token=2.0, per_token_squared=1.0)


def program(
    tokens: int, batch: int = 1, *, layout: Layout | None = None, remat: Remat = "none"
) -> Program:
    return Program(
        form=Grid(tokens, 2, 2), batch=batch, layout=layout or Layout(), remat=remat
    )


def model_of(law: CostLaw) -> CostModel:
    return CostModel.of(law, unit="s", source="test")


@pytest.mark.parametrize(
    ("per_sample", "per_token", "per_token_squared", "exponent"),
    [(3.0, 0.0, 0.0, 0.0), (0.0, 3.0, 0.0, 1.0), (0.0, 0.0, 3.0, 2.0)],
)
def test_a_single_power_is_found_exactly(
    per_sample, per_token, per_token_squared, exponent
):
    cost = model_of(
        CostLaw(
            fixed=7.0,  # Per micro-batch, so it must not influence the exponent.
            per_sample=per_sample,
            per_token=per_token,
            per_token_squared=per_token_squared,
        )
    )
    programs = [program(tokens) for tokens in LENGTHS.tolist()]
    assert cost.exponent(programs) == pytest.approx(exponent, abs=1e-9)
    assert cost.exponent(programs[:1]) == pytest.approx(exponent, abs=1e-9)
    # Each length counts once, whatever the batch and the layout.
    again = [program(1_560, 8, layout=Layout(batch=4)) for _ in range(9)]
    assert cost.exponent([*again, *programs]) == cost.exponent(programs)
    ring = [program(1_560, layout=Layout(ring=2)), *programs[1:]]
    assert cost.exponent(ring) == cost.exponent(programs)


def test_fixed_cost_is_paid_once_and_the_text_once_a_sample():
    assert LAW.sample(4) == 7.0 + 2.0 * 4 + 1.0 * 16
    assert LAW(3, 4) == 5.0 + 3 * LAW.sample(4)


def test_arrays_are_priced_element_by_element():
    cost = analytic_law(architecture_of(preset("wan2.1-t2v-14b")))
    batch = np.array([8, 4, 1])
    priced = np.asarray(cost(batch, LENGTHS[:3]))
    for i in range(3):
        assert priced[i] == pytest.approx(cost(int(batch[i]), int(LENGTHS[i])))


def test_scaling_a_law_scales_its_costs():
    for samples, tokens in ((0, 1), (1, 4), (3, 100)):
        expected = 3 * float(LAW(samples, tokens))
        assert LAW.scaled(3.0)(samples, tokens) == pytest.approx(expected)


def test_the_cost_of_a_program_is_per_device():
    cost = model_of(LAW)
    assert cost.fixed == 5.0
    assert cost(program(4, 8)) == LAW(8, 4)
    assert cost.sample(program(4, 8)) == LAW.sample(4)
    # Four devices with two samples each run as long as one device with two.
    apart = program(4, 8, layout=Layout(batch=4))
    assert cost(apart) == cost(program(4, 2)) == LAW(2, 4)
    assert cost.sample(apart) == LAW.sample(4)


@pytest.mark.parametrize("layout", [Layout(ring=2), Layout(2, 3, 4)], ids=str)
def test_devices_that_share_a_sequence_share_its_cost(layout):
    cost = model_of(LAW)
    shared = program(4, 6 * layout.batch, layout=layout)
    share = float(LAW.sample(4)) / (layout.ring * layout.heads)
    assert cost.sample(shared) == pytest.approx(share)
    assert cost(shared) == pytest.approx(cost.fixed + 6 * share)


def test_a_program_is_priced_by_the_law_of_its_remat():
    laws: dict[Remat, CostLaw] = {
        remat: LAW.scaled(1.0 + i) for i, remat in enumerate(REMATS)
    }
    cost = CostModel(laws=laws, unit="s", source="test")
    for remat in REMATS:
        assert cost(program(4, 3, remat=remat)) == laws[remat](3, 4)
        assert cost.sample(program(4, 3, remat=remat)) == laws[remat].sample(4)
        assert model_of(LAW)(program(4, 3, remat=remat)) == LAW(3, 4)


@pytest.mark.parametrize("timed", REMATS)
def test_measured_costs_are_scaled_to_the_remats_that_were_not_timed(timed: Remat):
    analytic = analytic_cost(preset("wan2.1-t2v-1.3b"))
    law = CostLaw(fixed=3e-3, per_token=2e-5, per_token_squared=1e-8)
    timings = [
        Timing(batch=b, tokens=s, seconds=float(law(b, s)))
        for s in (16, 64, 256, 1_024, 4_096)
        for b in (1, 2, 4)
    ]
    calibration = regress_costs(timings, source="six cores", remat=timed)
    cost = measured_cost(calibration, analytic)
    assert (cost.unit, cost.source) == ("s", "six cores")
    assert set(cost.laws) == set(REMATS)
    assert cost.fixed == calibration.cost.fixed
    for remat in REMATS:
        found, flops = cost.laws[remat], analytic.laws[remat]
        # The fixed cost is the same for all policies. Each term in tokens is scaled by
        # the ratio of its FLOPs.
        assert found.fixed == calibration.cost.fixed
        for name in ("per_token", "per_token_squared"):
            more = getattr(flops, name) / getattr(analytic.laws[timed], name)
            assert getattr(found, name) == pytest.approx(
                getattr(calibration.cost, name) * more
            )
    same = program(256, 2, remat=timed)
    assert cost(same) == pytest.approx(float(law(2, 256)))
    assert cost(program(256, 2, remat="full")) > cost(program(256, 2, remat="none"))


def test_the_cost_of_the_measured_remat_is_not_scaled():
    analytic = analytic_cost(preset("wan2.1-t2v-1.3b"))
    calibration = regress_costs(
        [
            Timing(batch=b, tokens=s, seconds=1e-3 + 1e-6 * b * s + 1e-9 * b * s**2)
            for s in (16, 256, 1_024)
            for b in (1, 2)
        ],
        source="test",
        remat="full",
    )
    assert dataclasses.astuple(measured_cost(calibration, analytic).laws["full"]) == (
        pytest.approx(dataclasses.astuple(calibration.cost))
    )
