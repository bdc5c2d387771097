"""A training run from config to picture, phase by phase."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence

import grain
import jax
from jax.sharding import Mesh
from jax.stages import Compiled, Lowered
from rich.console import Console

from jaxload.balance.schedule import Lockstep
from jaxload.config import Config
from jaxload.console import phase
from jaxload.data.loader import ReadAhead, micro_batch_dataset
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.files import read_json, write_atomically
from jaxload.parallel.mesh import local_replicas, place_batch, replica_mesh
from jaxload.planning import plan as plan_lib
from jaxload.planning.footprint import check_capacity
from jaxload.planning.memory import plan_within_memory
from jaxload.planning.plan import Plan
from jaxload.planning.planner import MemoryLimit, check_plan, cover_prepared, plan_run
from jaxload.reports.plan import print_plan
from jaxload.reports.training import draw_figure
from jaxload.runs.dataset import open_dataset
from jaxload.runs.outputs import draw_sample
from jaxload.runs.start import begin, check_start, find_origin
from jaxload.runs.workdir import RESTORE, WorkDir
from jaxload.training.checkpoint import Checkpoints, check_frozen
from jaxload.training.compile import compile_ahead, enable_compile_cache
from jaxload.training.events import (
    MetricsFile,
    ProgressLine,
    StepMetrics,
    read_metrics,
)
from jaxload.training.loop import fit
from jaxload.training.programs import (
    INIT,
    SAMPLE,
    lowerings,
    make_trainer,
    training_programs,
)

_DEVICE_PREFETCH = 2  # Micro-batches that lie on the devices ahead of their use.
_MAX_COMPILE_THREADS = 8  # Each may take gigabytes for a large model.


def train(config: Config, workdir: WorkDir, console: Console) -> None:
    """Trains from the newest checkpoint, or from the start, to the last step."""
    # --- Data and plan: all that can be wrong with the input is found here ---
    _check_policy(config)
    mesh = replica_mesh()
    check_capacity(config.balance.max_bytes, mesh.local_devices)
    origin = find_origin(config, workdir)
    check_start(config, origin)
    if origin == "checkpoint" and config.model.lora_rank:
        check_frozen(workdir.checkpoints)
    manifest = open_dataset(config, console)
    check_model_fits(config, manifest, console)
    plan = _settle_plan(config, manifest, mesh, workdir, console)
    rows = read_metrics(workdir.metrics)
    workdir.begin(config)
    write_atomically(workdir.plan, plan_lib.to_json(plan))
    print_plan(plan, console)

    # --- Programs: after this, nothing is compiled any more ---
    trainer = make_trainer(config)
    named = lowerings(config, plan, mesh, trainer, origin=origin)
    compiled = _compile(named, workdir, console)

    # --- State and loop ---
    with Checkpoints(
        workdir.checkpoints, keep=config.train.keep_checkpoints
    ) as checkpoints:
        schedule = Lockstep(
            buckets=plan.buckets,
            seed=config.train.seed,
            num_replicas=mesh.size,
            accumulate=config.train.accumulate,
        )
        batches = _device_batches(config, manifest, schedule, mesh)
        start = checkpoints.latest_step() or 0
        state, sums = begin(
            origin, compiled[INIT], config, trainer, mesh, checkpoints, console
        )
        if start:
            batches.set_state(checkpoints.restore_data(start))
            console.print(f"resuming at step {start}", highlight=False)
        with (
            contextlib.closing(batches),
            _Reporter(config, workdir, console, rows, start) as reporter,
        ):
            state = fit(
                state,
                sums,
                batches,
                start=start,
                config=config.train,
                programs=training_programs(compiled, plan),
                schedule=schedule,
                checkpoints=checkpoints,
                on_step=reporter,
            )

    # --- What people look at ---
    draw_sample(config, compiled[SAMPLE], state.model, mesh, workdir.sample)
    draw_figure(read_metrics(workdir.metrics), workdir.figure)
    workdir.mark_finished(config)


class _Reporter:
    """Tells of each step, in the metrics file and on screen."""

    def __init__(
        self,
        config: Config,
        workdir: WorkDir,
        console: Console,
        rows: Sequence[StepMetrics],
        start: int,
    ):
        # Steps after the checkpoint are run again, and written again.
        kept = [row for row in rows if row.step < start]
        self._metrics = MetricsFile(workdir.metrics, kept)
        self._line = ProgressLine(
            console,
            start=start,
            num_steps=config.train.num_steps,
            every=config.train.log_every,
        )

    def __enter__(self) -> "_Reporter":
        self._line.__enter__()
        return self

    def __exit__(self, *exception):
        self._line.__exit__(*exception)
        self._metrics.close()

    def __call__(self, row: StepMetrics) -> None:
        self._metrics.append(row)
        self._line.update(row)


def _check_policy(config: Config) -> None:
    if config.balance.policy != "lockstep":
        raise InputError(
            f"balance.policy={config.balance.policy}: expected lockstep; a mixed run "
            "can be planned and simulated, and not yet trained"
        )


def check_model_fits(config: Config, manifest: Manifest, console: Console) -> None:
    """Refuses a data set that was made for another model; tells of cut captions."""
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
                f"{section}.{field}={wanted}: data set {manifest.directory} was made "
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


def _settle_plan(
    config: Config,
    manifest: Manifest,
    mesh: Mesh,
    workdir: WorkDir,
    console: Console,
) -> Plan:
    """The plan that a resumed run already has, or a new one."""
    if workdir.plan.exists():
        content = read_json(workdir.plan, remedy=RESTORE)
        plan = plan_lib.from_dict(content, name=str(workdir.plan))
        check_plan(plan, manifest, num_replicas=mesh.size)
        return plan

    def make(memory: MemoryLimit) -> Plan:
        return plan_run(config, manifest, memory, num_replicas=mesh.size)

    chosen = cover_prepared(manifest, config.balance, num_replicas=mesh.size)
    return plan_within_memory(config, chosen.shapes, make, console)


def _compile(
    named: Mapping[str, Callable[[], Lowered]], workdir: WorkDir, console: Console
) -> dict[str, Compiled]:
    enable_compile_cache(workdir.compile_cache)
    with phase(console, "compiling", len(named)) as advance:
        return compile_ahead(
            named,
            num_threads=min(os.cpu_count() or 1, _MAX_COMPILE_THREADS),
            on_done=lambda _: advance(),
        )


def _device_batches(
    config: Config, manifest: Manifest, schedule: Lockstep, mesh: Mesh
) -> grain.DatasetIterator[dict[str, jax.Array]]:
    """The run's micro-batches, read ahead onto the devices."""
    on_host = ReadAhead(
        micro_batch_dataset(
            manifest,
            schedule,
            replicas=local_replicas(mesh),
            num_micro_steps=config.train.num_steps * config.train.accumulate,
            num_text_tokens=config.model.num_text_tokens,
        ),
        config.data,
    )
    on_device = on_host.map(lambda batch: place_batch(batch, mesh))
    return iter(
        grain.experimental.ThreadPrefetchIterDataset(
            on_device, prefetch_buffer_size=_DEVICE_PREFETCH
        )
    )
