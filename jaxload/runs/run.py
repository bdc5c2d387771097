"""A training run from config to picture, phase by phase."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import grain
from rich.console import Console

from jaxload.balance.schedule import Schedule
from jaxload.config import Config
from jaxload.data.loader import Loader
from jaxload.data.manifest import Manifest
from jaxload.data.source import HostBatch
from jaxload.errors import InputError
from jaxload.files import write_atomically
from jaxload.parallel.placement import Placement
from jaxload.planning.footprint import (
    DEVICE_PREFETCH,
    LocalCompiler,
    check_capacity,
)
from jaxload.planning.plan import to_json
from jaxload.reports.plan import print_plan
from jaxload.reports.training import draw_figure
from jaxload.runs.dataset import open_dataset
from jaxload.runs.outputs import draw_sample
from jaxload.runs.planned import settle_plan
from jaxload.runs.programs import check_bytes, compile_run
from jaxload.runs.setup import local_hardware, this_placement
from jaxload.runs.start import begin, check_start, find_origin
from jaxload.runs.workdir import WorkDir
from jaxload.training.checkpoint import Checkpoints, check_frozen
from jaxload.training.compile import enable_compile_cache
from jaxload.training.engine import Engine
from jaxload.training.events import STEP, JsonlSink, ScreenSink, Sinks, read_events
from jaxload.training.loop import DeviceBatch, run_steps
from jaxload.training.optimizer import check_groups


def train(
    config: Config, workdir: WorkDir, console: Console, *, plan_file: Path | None = None
) -> None:
    """Trains from the newest checkpoint, or from the start, to the last step."""
    # --- Data and plan: every mistake in the input is found here ---
    enable_compile_cache(workdir.compile_cache)
    placement = this_placement(config)
    check_capacity(config.balance.max_bytes, placement.mesh.local_devices)
    origin = find_origin(config, workdir)
    check_start(config, origin)
    if origin == "checkpoint" and config.model.lora_rank:
        check_frozen(workdir.checkpoints)
    hardware = local_hardware(config, placement)
    lowering, compiler = hardware.lowering, hardware.compiler
    assert lowering is not None
    assert isinstance(compiler, LocalCompiler)
    check_groups(config.optimizer, lowering.state.params)
    manifest = open_dataset(config, console)
    check_model_fits(config, manifest, console)
    plan = settle_plan(
        config, manifest, hardware, workdir, console, plan_file=plan_file
    )
    events = read_events(workdir.metrics)
    workdir.begin(config)
    write_atomically(workdir.plan, to_json(plan))
    print_plan(plan, console)

    # --- Programs: after this, nothing is compiled any more ---
    programs = compile_run(compiler, lowering, plan, origin=origin, console=console)
    check_bytes(plan, compiler, hardware.memory_bytes)

    # --- State and loop ---
    schedule = plan.schedule(config.train.seed)
    with Checkpoints(
        workdir.checkpoints, keep=config.train.keep_checkpoints
    ) as checkpoints:
        start = checkpoints.latest_step() or 0
        state, sums = begin(
            origin, programs.init, config, lowering, checkpoints, console
        )
        engine = Engine(placement, programs.micro_steps, programs.update, state, sums)
        del state, sums  # The engine donates them.
        with (
            _device_batches(config, manifest, schedule, placement) as batches,
            JsonlSink(workdir.metrics, [e for e in events if e.step < start]) as file,
            ScreenSink(
                console,
                start=start,
                num_steps=config.train.num_steps,
                every=config.train.log_every,
            ) as screen,
        ):
            if start:
                batches.set_state(checkpoints.restore_data(start))
                console.print(f"resuming at step {start}", highlight=False)
            run_steps(
                engine,
                batches,
                start=start,
                config=config.train,
                schedule=schedule,
                placement=placement,
                checkpoints=checkpoints,
                sink=Sinks([file, screen]),
            )

    # --- Files that people look at ---
    group = placement.local_groups[0]
    model = placement.state_view(engine.state.model, group)
    draw_sample(config, programs.sample, model, group, workdir.sample)
    draw_figure(read_events(workdir.metrics, STEP), workdir.figure)
    workdir.mark_finished(config)


def check_model_fits(config: Config, manifest: Manifest, console: Console) -> None:
    """Refuses a dataset that was made for another model; tells of cut captions."""
    for section, field in (
        ("data", "codec"),
        ("data", "text_encoder"),
        ("model", "channels"),
        ("model", "text_dim"),
    ):
        wanted = getattr(getattr(config, section), field)
        found = manifest.fingerprint.get(field)
        if found != wanted:
            raise InputError(
                f"{section}.{field}={wanted}: dataset {manifest.directory} was made "
                f"with {found}; set {section}.{field}={found}"
            )
    lengths = manifest.read_column("text_tokens").to_numpy()
    num_cut = int((lengths > config.model.num_text_tokens).sum())
    if num_cut:
        console.print(
            f"{num_cut:,} of {len(lengths):,} captions are cut to "
            f"model.num_text_tokens={config.model.num_text_tokens}; the longest has "
            f"{lengths.max()} tokens",
            highlight=False,
        )


@contextlib.contextmanager
def _device_batches(
    config: Config, manifest: Manifest, schedule: Schedule, placement: Placement
) -> Iterator[grain.DatasetIterator[DeviceBatch]]:
    """Opens the run's micro-batches, prefetched to the devices of their groups."""
    num_groups = len(placement.local_groups)
    on_host = Loader(
        manifest,
        schedule,
        config.data,
        replicas=placement.local_replicas(schedule.num_replicas),
        num_at_once=num_groups,
        num_steps=config.train.num_steps,
        num_text_tokens=config.model.num_text_tokens,
    )

    def move(batch: HostBatch) -> DeviceBatch:
        group = placement.group_of(batch.replica)
        return DeviceBatch(*batch[:-1], group.place_batch(batch.arrays))

    ahead = grain.experimental.ThreadPrefetchIterDataset(
        on_host.map(move), prefetch_buffer_size=DEVICE_PREFETCH * num_groups
    )
    with contextlib.closing(iter(ahead)) as batches:
        yield batches
