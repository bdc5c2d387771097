"""A run up to its first step, without its state: plan, programs and their bytes."""

from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from jaxload.config import Config
from jaxload.console import phase
from jaxload.data.batch_spec import batch_spec
from jaxload.data.manifest import FILE_NAME, Manifest
from jaxload.data.source import MicroBatchSource
from jaxload.errors import InputError
from jaxload.planning.footprint import OTHERS, Compiler
from jaxload.planning.plan import Plan
from jaxload.reports.plan import format_bytes, print_plan
from jaxload.runs.dataset import open_dataset
from jaxload.runs.planned import make_plan
from jaxload.runs.setup import Hardware, memory_budget


def dry_run(
    config: Config, hardware: Hardware, console: Console, *, plan_file: Path | None
) -> None:
    """Plans, compiles, and prints bytes and the first batch; allocates no model."""
    if hardware.compiler is None:
        raise InputError(
            f"--devices: expected as many as are here ({jax.device_count()} x "
            f"{hardware.target}), to compile for; name a GPU that is not here with "
            "--target"
        )
    manifest = _open_if_there(config, console)
    plan = make_plan(config, manifest, hardware, console, plan_file=plan_file)
    print_plan(plan, console)
    _print_bytes(config, plan, hardware, hardware.compiler, console)
    _print_first_batch(config, plan, manifest, console)


def _open_if_there(config: Config, console: Console) -> Manifest | None:
    """Opens the config's dataset; None if random shapes stand in for it."""
    there = (config.data.directory / FILE_NAME).exists() or config.synthetic is not None
    if there or not config.data.random_shapes:
        return open_dataset(config, console)
    console.print(
        f"no dataset in {config.data.path}: random latents of "
        f"{', '.join(config.data.random_shapes)} (data.random_shapes)",
        highlight=False,
        soft_wrap=True,
    )
    return None


def _print_bytes(
    config: Config,
    plan: Plan,
    hardware: Hardware,
    compiler: Compiler,
    console: Console,
) -> None:
    """Compiles what planning has not, and prints the bytes of every program."""
    requests = [*(bucket.program for bucket in plan.buckets), *OTHERS]
    with phase(console, "compiling", len(requests)) as advance:
        found = compiler.footprints(requests, on_done=advance)
    budget = memory_budget(config.balance, hardware.memory_bytes)
    table = Table(box=None)
    table.add_column("program")
    for name in ("bytes", "of the budget") if budget else ("bytes",):
        table.add_column(name, justify="right")
    for request, num_bytes in found.items():
        share = [f"{num_bytes / budget:.0%}"] if budget else []
        table.add_row(str(request), format_bytes(num_bytes), *share)
    console.print(f"bytes of each device, {hardware.target}:", highlight=False)
    console.print(table)
    peak = max(found.values())
    fits = ""
    if budget:
        fits = f" of {format_bytes(budget)}: {'fits' if peak <= budget else 'TOO MUCH'}"
    console.print(f"peak {format_bytes(peak)} ({peak:,} bytes){fits}", highlight=False)


def _print_first_batch(
    config: Config, plan: Plan, manifest: Manifest | None, console: Console
) -> None:
    """Reads the first micro-batch and prints the shapes and types of its arrays."""
    schedule = plan.schedule(config.train.seed)
    bucket = schedule.micro_batches(0, 0)[0].bucket
    arrays = {
        name: f"{spec.dtype}{list(spec.shape)}"
        for name, spec in batch_spec(config.model, schedule.programs[bucket]).items()
    }
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
        arrays = {n: f"{a.dtype}{list(a.shape)}" for n, a in first.arrays.items()}
    shapes = ", ".join(f"{name} {text}" for name, text in arrays.items())
    console.print(
        f"first batch ({schedule.programs[bucket]}): {shapes}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
