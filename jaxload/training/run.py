"""A training run from config to picture, phase by phase."""

import os
from collections.abc import Iterator
from pathlib import Path

import grain
import jax
import numpy as np
from jax.sharding import Mesh
from jax.stages import Compiled
from rich.console import Console

from jaxload.balance import plan as plan_lib
from jaxload.balance.plan import Plan
from jaxload.balance.schedule import Schedule
from jaxload.config import Config
from jaxload.data.codec import CODECS
from jaxload.data.dataset import open_dataset
from jaxload.data.manifest import Manifest
from jaxload.data.media import write_gif
from jaxload.data.source import MicroBatchSource, micro_batches
from jaxload.data.text import HashedNgramEncoder, pad_text
from jaxload.errors import InputError
from jaxload.files import write_atomically
from jaxload.parallel.mesh import local_replicas, place_batch, replica_mesh, replicated
from jaxload.planning import check_plan, plan_run
from jaxload.progress import phase
from jaxload.report import draw_figure, print_plan
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.compile import compile_ahead
from jaxload.training.loop import fit
from jaxload.training.programs import (
    INIT,
    SAMPLE,
    abstract_state,
    lower_sampler,
    lowerings,
    make_trainer,
    training_programs,
)
from jaxload.training.step import Trainer, TrainState
from jaxload.training.telemetry import (
    MetricsFile,
    ProgressLine,
    StepMetrics,
    read_metrics,
)
from jaxload.training.workdir import WorkDir

_DEVICE_PREFETCH = 2  # Micro-batches that lie on the devices ahead of their use.
_MAX_COMPILE_THREADS = 8  # Each may take gigabytes for a large model.
_FPS = 8
_ENLARGE = 4


def train(config: Config, workdir: WorkDir, console: Console) -> None:
    """Trains from the newest checkpoint, or from the start, to the last step."""
    # --- Data and plan ---
    manifest = open_dataset(config.data, config.synthetic, console)
    _check_model_fits(config, manifest)
    mesh = replica_mesh()
    plan = _settle_plan(config, manifest, mesh, workdir)
    print_plan(plan, console)

    # --- Programs: after this, nothing is compiled any more ---
    trainer = make_trainer(config)
    compiled = _compile(config, plan, mesh, trainer, workdir, console)

    # --- State ---
    checkpoints = Checkpoints(workdir.checkpoints, keep=config.train.keep_checkpoints)
    state, sums = compiled[INIT]()
    start = checkpoints.latest_step() or 0
    if start:
        state = checkpoints.restore(start, abstract_state(config, trainer, mesh))
        console.print(f"resuming at step {start}", highlight=False)

    # --- Loop ---
    schedule = Schedule(
        buckets=plan.buckets,
        seed=config.train.seed,
        num_replicas=mesh.size,
        accumulate=config.train.accumulate,
    )
    num_steps = config.train.num_steps
    line = ProgressLine(
        console, start=start, num_steps=num_steps, every=config.train.log_every
    )

    def report(row: StepMetrics) -> None:
        metrics.append(row)
        line.update(row)

    with MetricsFile(workdir.metrics, start=start) as metrics, line:
        with jax.transfer_guard("disallow"):  # Every transfer is one we asked for.
            state = fit(
                state,
                sums,
                _device_batches(config, manifest, schedule, mesh, start),
                start=start,
                config=config.train,
                programs=training_programs(compiled, plan),
                schedule=schedule,
                checkpoints=checkpoints,
                on_step=report,
            )
        checkpoints.close()

    # --- What people look at ---
    _draw_sample(config, compiled[SAMPLE], state, mesh, workdir.sample)
    draw_figure(read_metrics(workdir.metrics), workdir.figure)


def sample(config: Config, workdir: WorkDir, path: Path, console: Console) -> None:
    """Draws the config's sample from the newest checkpoint of a run."""
    mesh = replica_mesh()
    trainer = make_trainer(config)
    state = abstract_state(config, trainer, mesh)
    with phase(console, "compiling", 1) as advance:
        sampler = lower_sampler(config, trainer, state.params, mesh).compile()
        advance()
    checkpoints = Checkpoints(workdir.checkpoints, keep=config.train.keep_checkpoints)
    step = checkpoints.latest_step()
    if step is None:
        raise InputError(
            f"work directory {workdir.path}: expected a checkpoint, found none; train "
            "the run further first"
        )
    state = checkpoints.restore(step, state)
    checkpoints.close()
    _draw_sample(config, sampler, state, mesh, path)


def _check_model_fits(config: Config, manifest: Manifest) -> None:
    for field in ("text_dim", "channels"):
        found, wanted = manifest.fingerprint[field], getattr(config.model, field)
        if found != wanted:
            raise InputError(
                f"model.{field}={wanted}: data set {manifest.directory} was made with "
                f"{found}; set model.{field}={found}"
            )


def _settle_plan(
    config: Config, manifest: Manifest, mesh: Mesh, workdir: WorkDir
) -> Plan:
    """The plan that a resumed run already has, or a new one."""
    if workdir.plan.exists():
        plan = plan_lib.from_json(workdir.plan.read_text(), name=str(workdir.plan))
        check_plan(plan, manifest, num_replicas=mesh.size)
        return plan
    plan = plan_run(config, manifest, num_replicas=mesh.size)
    write_atomically(workdir.plan, plan_lib.to_json(plan))
    return plan


def _compile(
    config: Config,
    plan: Plan,
    mesh: Mesh,
    trainer: Trainer,
    workdir: WorkDir,
    console: Console,
) -> dict[str, Compiled]:
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(workdir.compile_cache))
    named = lowerings(config, plan, mesh, trainer)
    with phase(console, "compiling", len(named)) as advance:
        return compile_ahead(
            named,
            num_threads=min(os.cpu_count() or 1, _MAX_COMPILE_THREADS),
            on_done=lambda _: advance(),
        )


def _device_batches(
    config: Config, manifest: Manifest, schedule: Schedule, mesh: Mesh, start: int
) -> Iterator[dict[str, jax.Array]]:
    """The run's micro-batches from a step on, read ahead onto the devices."""
    accumulate = config.train.accumulate
    source = MicroBatchSource(
        manifest,
        schedule,
        replicas=local_replicas(mesh),
        num_micro_steps=config.train.num_steps * accumulate,
        num_text_tokens=config.model.num_text_tokens,
    )
    on_host = micro_batches(source, config.data, start=start * accumulate)
    on_device = on_host.map(lambda batch: place_batch(batch, mesh))
    return iter(
        grain.experimental.ThreadPrefetchIterDataset(
            on_device, prefetch_buffer_size=_DEVICE_PREFETCH
        )
    )


def _draw_sample(
    config: Config, sampler: Compiled, state: TrainState, mesh: Mesh, path: Path
) -> None:
    """Draws the config's sample and writes it as an animation."""
    text = HashedNgramEncoder(config.model.text_dim).encode(config.sample.caption)
    latent = sampler(
        state.params,
        jax.device_put(pad_text(text, config.model.num_text_tokens), replicated(mesh)),
        jax.device_put(np.int32(config.sample.seed), replicated(mesh)),
    )
    video = CODECS["haar"].decode(np.asarray(jax.device_get(latent)))
    write_gif(path, video, fps=_FPS, enlarge=_ENLARGE)
