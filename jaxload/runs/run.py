"""A training run, phase by phase: plan, programs, steps and result files."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from jaxload.balance.schedule import Schedule
from jaxload.config import Config
from jaxload.console import Console
from jaxload.data.loader import Loader, LoaderIterator
from jaxload.data.manifest import Manifest
from jaxload.files import write_atomically
from jaxload.parallel.placement import Placement
from jaxload.planning.footprint import LocalCompiler, check_capacity
from jaxload.planning.plan import to_json
from jaxload.reports.plan import print_plan
from jaxload.reports.run import draw_figure
from jaxload.runs.dataset import check_dataset_matches, open_dataset
from jaxload.runs.outputs import draw_sample
from jaxload.runs.planned import recorded_plan, settle_plan
from jaxload.runs.programs import check_bytes, compile_run
from jaxload.runs.setup import local_hardware, this_placement
from jaxload.runs.start import begin, check_start, find_start
from jaxload.runs.workdir import WorkDir
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.compile import enable_compile_cache
from jaxload.training.engine import Engine
from jaxload.training.events import (
    MESSAGE,
    STEP,
    Event,
    JsonlSink,
    ScreenSink,
    Sinks,
    read_events,
)
from jaxload.training.intact import clear_the_way
from jaxload.training.loop import run_steps
from jaxload.training.optimizer import check_param_groups


def train(
    config: Config, workdir: WorkDir, console: Console, *, plan_file: Path | None = None
) -> None:
    """Trains to the last step, from the newest checkpoint or from the start."""
    # --- Data and plan: every error in the input is found here ---
    enable_compile_cache(workdir.compile_cache)
    placement = this_placement(config)
    check_capacity(config.balance.max_bytes, placement.mesh.local_devices)
    origin, start = find_start(config, workdir, console)
    check_start(config, origin)
    hardware = local_hardware(config, placement)
    lowering, compiler = hardware.lowering, hardware.compiler
    assert lowering is not None
    assert isinstance(compiler, LocalCompiler)
    check_param_groups(config.optimizer, lowering.state.params)
    recorded = recorded_plan(workdir)
    digest = None if recorded is None else recorded.dataset
    manifest = open_dataset(config, console, digest=digest)
    check_dataset_matches(config, manifest, console)
    plan = settle_plan(
        config,
        manifest,
        hardware,
        workdir,
        console,
        recorded=recorded,
        plan_file=plan_file,
    )
    events = read_events(workdir.metrics)
    print_plan(plan, console)

    # --- Programs: nothing is compiled after this phase ---
    programs = compile_run(compiler, lowering, plan, origin=origin, console=console)
    check_bytes(plan, compiler, config.balance.max_bytes or hardware.memory_bytes)

    # --- State and loop: from here on, the work directory holds a run ---
    workdir.begin(config)
    write_atomically(workdir.plan, to_json(plan))
    clear_the_way(workdir.checkpoints, start)
    schedule = plan.schedule(config.train.seed)
    with Checkpoints(
        workdir.checkpoints, keep=config.train.keep_checkpoints
    ) as checkpoints:
        state, sums = begin(
            origin, start, programs.init, config, lowering, checkpoints, console
        )
        engine = Engine(placement, programs.micro_steps, programs.update, state, sums)
        del state, sums  # The engine donates their arrays.
        with (
            contextlib.closing(_read(config, manifest, schedule, placement)) as batches,
            _open_sinks(config, workdir, events, start, console) as sink,
        ):
            if start:
                batches.set_state(checkpoints.restore_data(start))
                message = {MESSAGE: f"resuming at step {start}"}
                sink.write(Event("resume", start, message))
            run_steps(
                engine,
                batches,
                start=start,
                config=config.train,
                schedule=schedule,
                placement=placement,
                checkpoints=checkpoints,
                sink=sink,
            )

    # --- Result files ---
    group = placement.local_groups[0]
    model = placement.state_view(engine.state.model, group)
    draw_sample(config, programs.sample, model, group, workdir.sample)
    draw_figure(read_events(workdir.metrics, STEP), workdir.figure)
    workdir.mark_finished(config)


def _open_sinks(
    config: Config,
    workdir: WorkDir,
    events: Sequence[Event],
    start: int,
    console: Console,
) -> Sinks:
    """Opens the sinks of a run; the metrics file keeps the events up to `start`.

    An earlier resume at `start` is dropped, because its steps are run again.
    """
    kept = [
        event
        for event in events
        if event.step < start or (event.step == start and event.name == STEP)
    ]
    screen = ScreenSink(
        console,
        start=start,
        num_steps=config.train.num_steps,
        every=config.train.log_every,
    )
    return Sinks([JsonlSink(workdir.metrics, kept), screen])


def _read(
    config: Config, manifest: Manifest, schedule: Schedule, placement: Placement
) -> LoaderIterator:
    """Returns an iterator over the micro-batches of this process."""
    loader = Loader(
        manifest,
        schedule,
        config.data,
        replicas=placement.local_replicas(schedule.num_replicas),
        num_at_once=len(placement.local_groups),
        num_steps=config.train.num_steps,
        num_text_tokens=config.model.num_text_tokens,
    )
    return iter(loader)
