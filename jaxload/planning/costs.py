"""Costs that are measured on the devices at hand, for a plan."""

from rich.console import Console

from jaxload.balance.regression import MIN_POINTS, CostFit, fit_costs
from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.parallel.mesh import replica_mesh
from jaxload.planning.timing import default_grid, measure_steps


def measured_fit(config: Config, *, seconds: float, console: Console) -> CostFit:
    """Times micro-steps here, for about so long, and fits costs to them."""
    mesh = replica_mesh()
    grid = default_grid(config.balance.max_tokens)
    timings = measure_steps(
        config, mesh, grid=grid, seconds_budget=seconds, console=console
    )
    if len(timings) < MIN_POINTS:
        raise InputError(
            f"--seconds {seconds:g}: {len(timings)} of {len(grid)} points were "
            f"measured in that time, expected {MIN_POINTS} or more; give "
            "jaxload.calibrate longer"
        )
    kind = mesh.devices.flat[0].device_kind
    return fit_costs(
        timings, source=f"fitted to {len(timings)} micro-steps on {mesh.size} x {kind}"
    )
