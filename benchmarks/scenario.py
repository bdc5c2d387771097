"""Reads the workloads that the planning benchmarks measure."""

from pathlib import Path

from jaxload.balance.config import FormChoice
from jaxload.console import Console
from jaxload.planning.scenarios import SimulationOptions, Workload, read_workload
from jaxload.shapes.config import ShapeRules


def read(
    path: Path, *, num_replicas: int, accumulate: int, form: FormChoice = "length"
) -> Workload:
    """Reads a workload file and chooses forms, for Wan 2.1 14B."""
    options = SimulationOptions(
        workload=path,
        model="wan2.1-t2v-14b",
        remat="none",
        costs=None,
        num_replicas=num_replicas,
        accumulate=accumulate,
        memory_headroom=2.0,
        policies=("mixed",),
        form=form,
        max_buckets=32,
        num_steps=1,
        seed=0,
        max_bad_share=0.1,
        rules=ShapeRules(),
    )
    return read_workload(options, Console(quiet=True))
