"""The training loop."""

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping

import jax
import numpy as np

from jaxload.balance.schedule import Schedule
from jaxload.data.source import HostBatch
from jaxload.errors import InputError
from jaxload.parallel.placement import Placement
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.compile import CompileCounter
from jaxload.training.config import TrainConfig
from jaxload.training.engine import Engine
from jaxload.training.events import STEP, Event, Sink


@dataclasses.dataclass(frozen=True)
class _Running:
    """A step that was started on the devices and may not be complete."""

    step: int
    scalars: Mapping[str, jax.Array]
    data_wait: float


def run_steps(
    engine: Engine,
    batches: Iterator[HostBatch],
    *,
    start: int,
    config: TrainConfig,
    schedule: Schedule,
    placement: Placement,
    checkpoints: Checkpoints,
    sink: Sink,
) -> None:
    """Trains from step `start` to the last, after which the engine holds the state.

    `batches` yields the micro-batches of this process in the order of execution.
    """
    clock = _StepClock(schedule, sink)
    replicas = placement.local_replicas(schedule.num_replicas)
    # Implicit transfers are errors, as are compilations after the first step.
    with jax.transfer_guard("disallow"), CompileCounter() as compiles:
        allowed = None
        for step in range(start, config.num_steps):
            data_wait = 0.0
            for _ in range(int(schedule.step_counts(step)[replicas].sum())):
                asked = time.perf_counter()
                batch = next(batches)
                assert batch.step == step, (batch.step, step)
                group = placement.group_of(batch.replica)
                # Otherwise the group still had work, and no device waited for data.
                if engine.is_idle(group):
                    data_wait += time.perf_counter() - asked
                engine.micro_step(group, schedule.programs[batch.bucket], batch.arrays)
            clock.started(_Running(step, engine.update(), data_wait))
            done = step + 1
            if done % config.checkpoint_every == 0 or done == config.num_steps:
                clock.drain()  # Metrics are written before their checkpoint.
                # Not the loader's own state: a process with no micro-batch in this step
                # would be one step behind the others.
                checkpoints.save(done, engine.state, {"step": done})
            if allowed is not None and compiles.count > allowed:
                _fail_on_compile(schedule, step, compiles.count - allowed)
            allowed = compiles.count


def _fail_on_compile(schedule: Schedule, step: int, count: int) -> None:
    counts = schedule.step_counts(step).sum(axis=0)
    names = " + ".join(str(schedule.programs[i]) for i in np.flatnonzero(counts))
    raise RuntimeError(
        f"step {step + 1} (program {names}) compiled {count} programs: expected all to "
        "be compiled before the first step; JAX_LOG_COMPILES=1 logs their names"
    )


class _StepClock:
    """Reads the results of each step while the next step is already running.

    The devices always have work queued, and each step is still timed separately, from
    the end of the previous step to its own end.
    """

    def __init__(self, schedule: Schedule, sink: Sink):
        self._schedule = schedule
        self._sink = sink
        self._running: _Running | None = None
        self._last_end = time.perf_counter()

    def started(self, running: _Running) -> None:
        """Records a step that has just started, and reports the previous one."""
        self.drain()
        self._running = running

    def drain(self) -> None:
        """Waits for the running step, if there is one, and reports it."""
        if self._running is None:
            return
        running, self._running = self._running, None
        scalars = jax.device_get(running.scalars)
        end = time.perf_counter()
        seconds, self._last_end = end - self._last_end, end
        counts = self._schedule.step_counts(running.step).sum(axis=0)
        buckets = self._schedule.buckets
        ran = [
            bucket
            for bucket, count in zip(buckets, counts.tolist(), strict=True)
            for _ in range(-(-count // self._schedule.num_replicas))
        ]
        _check_finite(running.step, " + ".join(map(str, ran)), scalars)
        batch = np.array([bucket.batch for bucket in buckets])
        values = {
            "epoch": self._schedule.epoch(running.step + 1),
            **{name: value.tolist() for name, value in scalars.items()},
            "bucket": "+".join(str(bucket.form) for bucket in ran),
            "batch": int(counts @ batch),
            "seconds": seconds,
            "data_wait_seconds": running.data_wait,
        }
        self._sink.write(Event(STEP, running.step + 1, values))


def _check_finite(step: int, buckets: str, scalars: Mapping[str, np.ndarray]) -> None:
    for name in ("loss", "grad_norm"):
        if not math.isfinite(scalars[name]):
            raise InputError(
                f"step {step + 1} (bucket {buckets}): {name} is {scalars[name]}; train "
                "in another --workdir with a lower optimizer.learning_rate or a longer "
                "warm-up"
            )
