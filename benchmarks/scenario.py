"""Reads the scenario that the planning benchmarks measure."""

from pathlib import Path

from jaxload.balance.scenario import Scenario
from jaxload.console import Console
from jaxload.planning.scenarios import SimulationOptions, read_scenario
from jaxload.shapes.config import ShapeRules


def read(path: Path, *, num_replicas: int, accumulate: int) -> Scenario:
    """Reads a workload file and chooses shapes, for Wan 2.1 14B."""
    options = SimulationOptions(
        workload=path,
        model="wan2.1-t2v-14b",
        remat="none",
        costs=None,
        num_replicas=num_replicas,
        accumulate=accumulate,
        memory_headroom=2.0,
        policies=("mixed",),
        max_buckets=32,
        num_steps=1,
        seed=0,
        max_bad_share=0.0,
        rules=ShapeRules(),
    )
    return read_scenario(options, Console(quiet=True))
