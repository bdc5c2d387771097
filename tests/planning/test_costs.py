"""Tests of jaxload.planning.costs and step_times, with a fake clock."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxload.balance.calibration import Calibration
from jaxload.balance.form import Grid
from jaxload.balance.program import REMATS, Program
from jaxload.balance.regression import Timing, regress_costs
from jaxload.config import Config, override_all
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.planning import step_times
from jaxload.planning.analytic_cost import analytic_cost
from jaxload.planning.costs import make_cost_model
from jaxload.planning.model_record import as_json
from jaxload.runs.setup import this_placement, trainer_of
from jaxload.training.lowering import Lowering

QUIET = Console(quiet=True)


def seconds(batch: int, tokens: int) -> float:
    return 0.001 + batch * (1e-5 * tokens + 1e-8 * tokens**2)


TIMINGS = [
    Timing(batch=b, tokens=s, seconds=seconds(b, s))
    for s in (16, 32, 64)
    for b in (1, 2, 4)
]


@pytest.fixture
def lowering(debug_config: Config) -> Lowering:
    return Lowering(trainer_of(debug_config), this_placement(debug_config))


def test_measured_costs_are_regressed_and_named(
    monkeypatch: pytest.MonkeyPatch, debug_config: Config, lowering: Lowering
):
    monkeypatch.setattr(step_times, "measure_steps", lambda *_, **__: TIMINGS)
    calibration = step_times.measure_costs(
        debug_config, lowering, budget=0, seconds=1.0, console=QUIET
    )
    assert calibration.cost(3, 48) == pytest.approx(seconds(3, 48), rel=1e-3)
    assert calibration.source.startswith("regressed from 9 micro-steps on 1 x")
    assert calibration.remat == "none"


@pytest.mark.parametrize("costs", ["measure", "file"])
def test_measured_costs_price_every_policy(
    monkeypatch: pytest.MonkeyPatch,
    debug_config: Config,
    lowering: Lowering,
    tmp_path: Path,
    costs: str,
):
    def measure(config: Config, given: Lowering, **options: object) -> Calibration:
        assert options["seconds"] == 12.5
        assert given is lowering
        return regress_costs(
            TIMINGS,
            source="measured once",
            remat="attention",
            model=as_json(debug_config.model),
        )

    monkeypatch.setattr("jaxload.planning.costs.measure_costs", measure)
    assignments = ["balance.costs=measure", "balance.measure_seconds=12.5"]
    if costs == "file":
        path = tmp_path / "calibration.json"
        calibration = regress_costs(
            TIMINGS,
            source="measured once",
            remat="attention",
            model=as_json(debug_config.model),
        )
        path.write_text(json.dumps(calibration.to_dict()))
        assignments = [f"balance.costs={path}"]
    config = override_all(debug_config, assignments)
    model = make_cost_model(config, QUIET, lowering, budget=0, skips_padding=False)
    assert (model.unit, model.source) == ("s", "measured once")

    costs_of = {
        remat: model(Program(form=Grid(4, 8, 8), batch=3, remat=remat))
        for remat in REMATS
    }
    # The timed policy has its measured cost; others are scaled by their FLOPs.
    assert costs_of["attention"] == pytest.approx(seconds(3, 64), rel=1e-6)
    assert costs_of["none"] <= costs_of["attention"] < costs_of["full"]
    analytic = analytic_cost(config.model)
    for term in ("per_token", "per_token_squared"):
        measured, counted = (
            [
                getattr(m.laws[r], term) / getattr(m.laws["attention"], term)
                for r in REMATS
            ]
            for m in (model, analytic)
        )
        assert measured == pytest.approx(counted)
        assert len(set(counted)) > 1


def test_costs_are_analytic_by_default(debug_config: Config):
    model = make_cost_model(debug_config, QUIET, None, budget=0, skips_padding=False)
    assert model == analytic_cost(debug_config.model)
    assert model.source.startswith("analytic: ")


def error_of(config: Config, lowering: Lowering | None) -> str:
    with pytest.raises(InputError) as error:
        make_cost_model(config, QUIET, lowering, budget=0, skips_padding=False)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_target_cannot_be_timed(debug_config: Config):
    config = override_all(debug_config, ["balance.costs=measure"])
    message = error_of(config, None)
    assert message.startswith("balance.costs=measure: the plan is for other devices")
    assert "jaxload.calibrate" in message


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "cannot be read (No such file or directory)"),
        (lambda path: path.mkdir(), "cannot be read (Is a directory)"),
        (lambda path: path.write_text("{"), "not JSON"),
        (lambda path: path.write_text("[]"), "expected a JSON object, got []"),
        (lambda path: path.write_text("{}"), "not a calibration"),
        (lambda path: path.write_text('{"format": 1}'), "format 1, expected 4"),
    ],
)
def test_an_invalid_calibration_file_is_one_line(
    debug_config: Config,
    tmp_path: Path,
    write: Callable[[Path], object],
    message: str,
):
    path = tmp_path / "calibration.json"
    write(path)
    config = override_all(debug_config, [f"balance.costs={path}"])
    found = error_of(config, None)
    assert found.startswith(f"calibration {path}: ")
    assert message in found
    assert "jaxload.calibrate" in found
