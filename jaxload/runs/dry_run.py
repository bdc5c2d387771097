"""Dry run: plans and compiles a run and prints its memory, but does not train."""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from rich.table import Table

from jaxload.config import Config
from jaxload.console import Console, phase
from jaxload.data.batch_spec import ArraySpec, batch_spec
from jaxload.data.manifest import Manifest
from jaxload.data.source import MicroBatchSource
from jaxload.errors import InputError
from jaxload.planning.footprint import OTHERS, Compiler, add_queue
from jaxload.planning.plan import Plan
from jaxload.reports.plan import format_bytes, print_plan
from jaxload.runs.dataset import check_dataset_matches, open_if_there
from jaxload.runs.planned import make_plan
from jaxload.runs.setup import Hardware, memory_budget
from jaxload.runs.start import check_start, check_trainable


def dry_run(
    config: Config, hardware: Hardware, console: Console, *, plan_file: Path | None
) -> None:
    """Plans and compiles a run, and prints the bytes of its programs and a batch.

    Allocates neither parameters nor training state.
    """
    if hardware.compiler is None:
        raise InputError(
            f"--devices: expected the devices of this machine ({jax.device_count()} x "
            f"{hardware.target}), for which programs are compiled; name another GPU "
            "with --target"
        )
    if config.balance.costs == "measure":
        raise InputError(
            "balance.costs=measure: a dry run runs no program that could be timed; "
            "leave out --dry-run, or use analytic or a file of jaxload.calibrate"
        )
    _check_weights(config, console)
    manifest = open_if_there(config, console, draw=False)
    if manifest is not None:
        check_dataset_matches(config, manifest, console)
    plan = make_plan(config, manifest, hardware, console, plan_file=plan_file)
    print_plan(plan, console)
    _print_bytes(config, plan, hardware, hardware.compiler, console)
    _print_first_batch(config, plan, manifest, console)


def _check_weights(config: Config, console: Console) -> None:
    """Checks the model and its initial weights; skips weights that are missing."""
    path = config.train.weights
    if not path:
        check_start(config, "noise")
    elif Path(path).exists():
        check_start(config, "weights")
    else:
        check_trainable(config, "weights")
        console.say(f"no weights in {path}: not checked")


def _print_bytes(
    config: Config,
    plan: Plan,
    hardware: Hardware,
    compiler: Compiler,
    console: Console,
) -> None:
    """Compiles the remaining programs and prints the bytes of every program."""
    requests = [*(bucket.program for bucket in plan.buckets), *OTHERS]
    with phase(console, "compiling", len(requests)) as advance:
        found = add_queue(compiler, compiler.footprints(requests, on_done=advance))
    budget = memory_budget(config.balance, hardware.memory_bytes)
    table = Table(box=None)
    table.add_column("program")
    for name in ("bytes", "of the budget") if budget else ("bytes",):
        table.add_column(name, justify="right")
    for request, num_bytes in found.items():
        share = [f"{num_bytes / budget:.0%}"] if budget else []
        table.add_row(str(request), format_bytes(num_bytes), *share)
    console.say(f"bytes of each device, {hardware.target}:")
    console.print(table)
    largest = max(found, key=lambda request: found[request])
    peak = found[largest]
    if budget and peak > budget:
        raise InputError(
            f"program {largest} needs {peak:,} bytes of each device, and the budget is "
            f"{budget:,}; plan again for these devices, raise balance.max_bytes, or "
            "shard the model over more devices (mesh.fsdp)"
        )
    fits = f" of {format_bytes(budget)}: fits" if budget else ""
    console.say(f"peak {format_bytes(peak)} ({peak:,} bytes){fits}")


def _print_first_batch(
    config: Config, plan: Plan, manifest: Manifest | None, console: Console
) -> None:
    """Reads the first micro-batch and prints the shapes and types of its arrays."""
    schedule = plan.schedule(config.train.seed)
    bucket = schedule.micro_batches(0, 0)[0].bucket
    arrays: Mapping[str, ArraySpec | np.ndarray]
    arrays = spec = batch_spec(config.model, schedule.programs[bucket])
    if manifest is not None:
        source = MicroBatchSource(
            manifest,
            schedule,
            replicas=[0],
            num_at_once=1,
            num_steps=1,
            num_text_tokens=config.model.num_text_tokens,
        )
        first = source[0]
        assert first is not None
        arrays = first.arrays
        assert {n: (a.shape, a.dtype) for n, a in arrays.items()} == spec
    shapes = ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in arrays.items())
    console.say(f"first batch ({schedule.programs[bucket]}): {shapes}")
