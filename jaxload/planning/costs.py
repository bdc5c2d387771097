"""Cost model of a plan: analytic, from a file of jaxload.calibrate, or measured."""

import dataclasses
from pathlib import Path

from jaxload.balance.calibration import Calibration
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.config import Config
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.files import read_json
from jaxload.planning.analytic_cost import analytic_cost
from jaxload.planning.model_record import difference
from jaxload.planning.step_times import measure_costs
from jaxload.training.lowering import Lowering


def make_cost_model(
    config: Config,
    console: Console,
    lowering: Lowering | None,
    *,
    budget: int,
    skips_padding: bool,
) -> CostModel:
    """Returns the cost model that `balance.costs` names.

    Args:
        config: Config of the run.
        console: Shows the progress of a measurement.
        lowering: Programs for the devices of this machine; None if the plan is for
            other devices, which cannot be timed here.
        budget: Bytes of each device that a measurement may use; 0: not known.
        skips_padding: Whether attention on the devices takes no time for padding.
    """
    analytic = analytic_cost(
        config.model, num_devices=config.mesh.tensor, skips_padding=skips_padding
    )
    match config.balance.costs:
        case "analytic":
            return analytic
        case "measure":
            if lowering is None:
                raise InputError(
                    "balance.costs=measure: the plan is for other devices, which "
                    "cannot be timed here; use analytic, or a file that "
                    "jaxload.calibrate wrote on such a machine"
                )
            seconds = config.balance.measure_seconds
            calibration = measure_costs(
                config, lowering, budget=budget, seconds=seconds, console=console
            )
        case path:
            calibration = read_calibration(Path(path))
            _check_calibration(calibration, config, path)
    return measured_cost(calibration, analytic)


def _check_calibration(calibration: Calibration, config: Config, path: str) -> None:
    """Refuses costs measured for another model or number of devices per replica."""
    other = difference(calibration.model, config.model)
    if not other and calibration.devices_per_group != config.mesh.devices_per_group:
        other = (
            f"{calibration.devices_per_group} devices per replica there and "
            f"{config.mesh.devices_per_group} here"
        )
    if other:
        raise InputError(
            f"balance.costs={path}: measured for another run: {other}; measure this "
            "one with jaxload.calibrate, or use analytic"
        )


def measured_cost(calibration: Calibration, analytic: CostModel) -> CostModel:
    """Returns the measured cost model, scaled by FLOPs for the other remat policies."""
    timed = analytic.laws[calibration.remat]

    def law(other: CostLaw) -> CostLaw:
        return dataclasses.replace(
            calibration.cost,
            per_token=calibration.cost.per_token * other.per_token / timed.per_token,
            per_token_squared=calibration.cost.per_token_squared
            * (other.per_token_squared / timed.per_token_squared),
        )

    return CostModel(
        laws={remat: law(other) for remat, other in analytic.laws.items()},
        unit="s",
        source=calibration.source,
        skips_padding=calibration.skips_padding,
    )


def read_calibration(path: Path) -> Calibration:
    """Reads measured costs from a file that jaxload.calibrate wrote."""
    remedy = "make one with python -m jaxload.calibrate"
    content = read_json(path, remedy=remedy, kind="calibration")
    return Calibration.from_dict(content, name=f"calibration {path}")
