"""Tests of calibration files that were damaged, forged or edited by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxload.balance.cost import CostModel
from jaxload.balance.form import Grid
from jaxload.balance.program import REMATS, Layout, Program
from jaxload.balance.regression import Timing, regress_costs
from jaxload.config import Config, override_all
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig
from jaxload.planning.costs import make_cost_model
from jaxload.planning.memory import TokenMemory
from jaxload.planning.model_record import as_json
from jaxload.planning.planner import Planner
from jaxload.planning.samples import Samples
from jaxload.shapes.shape import Shape
from tests.json_edits import as_bytes, assert_one_line, damaged, edits, fewer

QUIET = Console(quiet=True)
COUNTS = {Shape(1, 8, 8): 640, Shape(5, 8, 8): 320, Shape(9, 8, 8): 77}


@pytest.fixture(scope="module")
def content(debug_config: Config) -> dict[str, Any]:
    timings = [
        Timing(batch=b, tokens=s, seconds=0.001 + b * (1e-5 * s + 1e-8 * s**2))
        for s in (16, 32, 64)
        for b in (1, 2, 4)
    ]
    found = regress_costs(
        timings, source="measured once", model=as_json(debug_config.model)
    )
    return json.loads(json.dumps(found.to_dict()))


def read(path: Path, config: Config) -> CostModel | None:
    """Reads costs as `plan` does; None if they are refused in one line."""
    config = override_all(config, [f"balance.costs={path}"])
    try:
        return make_cost_model(config, QUIET, None, budget=0, skips_padding=False)
    except InputError as error:
        assert_one_line(error, path)
    return None


def check(costs: CostModel | None) -> None:
    """Asserts that costs of programs are positive and finite."""
    if costs is None:
        return
    for remat in REMATS:
        for form, batch in ((Grid(1, 2, 2), 1), (Grid(20, 100, 100), 4_096)):
            program = Program(form=form, batch=batch, remat=remat)
            assert 0 < costs(program) < math.inf
            assert 0 < costs.sample(program) < math.inf


@pytest.mark.fuzz
@given(data=st.data())
def test_edited_costs_are_used_or_one_line(
    content: dict[str, Any], debug_config: Config, tmp_path: Path, data: st.DataObject
):
    path = tmp_path / "calibration.json"
    path.write_bytes(as_bytes(data.draw(edits(content))))
    check(read(path, debug_config))


@pytest.mark.fuzz
@given(data=st.data())
def test_damaged_costs_are_used_or_one_line(
    content: dict[str, Any], debug_config: Config, tmp_path: Path, data: st.DataObject
):
    path = tmp_path / "calibration.json"
    path.write_bytes(data.draw(damaged(as_bytes(content))))
    check(read(path, debug_config))


def plan_with(config: Config, costs: CostModel, policy: str) -> None:
    config = override_all(
        config, [f"balance.policy={policy}", "balance.max_tokens=256"]
    )
    planner = Planner(
        config,
        Samples.of_counts(COUNTS, may_cut=False, dataset="0123456789abcdef"),
        costs,
        TokenMemory(max_tokens=256, layout=Layout(), multiple=1),
        MeshConfig(replica=2),
        num_replicas=2,
        target="cpu",
    )
    plan = planner.plan()
    assert sum(plan.work_shares()) == pytest.approx(1.0)


TERMS = st.one_of(
    st.sampled_from([0.0, 1e-12, 1e-3, 1.0, 1e6, 1e20, 1e-20, 1e-50]),
    st.floats(min_value=0, max_value=1e9),
)


@pytest.mark.fuzz
@pytest.mark.parametrize("policy", ["lockstep", "mixed"])
@fewer(5)
@given(terms=st.tuples(TERMS, TERMS, TERMS, TERMS))
@example(terms=(1.0, 1e-50, 0.0, 0.0))
@example(terms=(1e-50, 1.0, 0.0, 0.0))
@example(terms=(0.0, 0.0, 0.0, 1e-3))
def test_costs_of_any_size_give_a_plan(
    content: dict[str, Any],
    debug_config: Config,
    tmp_path: Path,
    policy: str,
    terms: tuple[float, ...],
):
    path = tmp_path / "calibration.json"
    names = ("fixed", "per_token", "per_token_squared", "per_sample")
    cost = dict(zip(names, terms, strict=True))
    path.write_bytes(as_bytes(content | {"cost": cost}))
    costs = read(path, debug_config)
    if costs is not None:
        plan_with(debug_config, costs, policy)
