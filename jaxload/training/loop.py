"""The training loop."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax

from jaxload.balance.schedule import Lockstep
from jaxload.errors import InputError
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.compile import CompileCounter
from jaxload.training.events import StepMetrics
from jaxload.training.step import Sums, TrainState


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length of a run, and how often it reports and saves."""

    num_steps: int
    """Optimizer updates of the whole run; a resumed run may raise it."""

    seed: int = 0
    """Of the parameters, the order of the samples and their noise."""

    accumulate: int = 1
    """Micro-batches that each replica runs in a step."""

    log_every: int = 20
    """Steps between two lines of a log; a terminal shows every step."""

    checkpoint_every: int = 100
    """Steps between two checkpoints; the last step always has one."""

    keep_checkpoints: int = 2
    """Checkpoints that are kept; older ones are removed."""

    weights: str = ""
    """Safetensors that the model starts from, file or directory; empty: from noise."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if field.name == "weights":
                continue
            least = 0 if field.name == "seed" else 1
            value = getattr(self, field.name)
            if value < least:
                raise InputError(
                    f"train.{field.name}={value}: expected {least} or more"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """Everything that runs on devices during training, compiled."""

    micro_steps: Sequence[Callable[..., Any]]
    """One for each bucket of the catalogue: (state, sums, batch) -> sums."""

    update: Callable[..., Any]
    """(state, sums) -> state, empty sums, scalars."""


@runtime_checkable
class Batches(Protocol):
    """Micro-batches on the devices, from an iterator that knows where it is."""

    def __next__(self) -> Mapping[str, jax.Array]: ...

    def get_state(self) -> dict[str, Any]:
        """What a resume sets it to."""
        ...


@dataclasses.dataclass(frozen=True)
class _Running:
    """A step that was handed to the devices and has not been waited for."""

    step: int
    scalars: Mapping[str, jax.Array]
    data_wait: float


def fit(
    state: TrainState,
    sums: Sums,
    batches: Batches,
    *,
    start: int,
    config: TrainConfig,
    programs: Programs,
    schedule: Lockstep,
    checkpoints: Checkpoints,
    on_step: Callable[[StepMetrics], None],
) -> TrainState:
    """Trains from step `start` to the end and returns the last state."""
    clock = _StepClock(schedule, on_step)
    # Every transfer is one that was asked for, and every compile is behind us.
    with jax.transfer_guard("disallow"), CompileCounter() as compiles:
        allowed = None
        for step in range(start, config.num_steps):
            data_wait = 0.0
            for bucket in schedule.step_buckets(step):
                asked = time.perf_counter()
                batch = next(batches)
                # While the devices have work, nobody waits but the loop.
                if all(leaf.is_ready() for leaf in jax.tree.leaves(sums)):
                    data_wait += time.perf_counter() - asked
                sums = programs.micro_steps[bucket](state, sums, batch)
            state, sums, scalars = programs.update(state, sums)
            clock.started(_Running(step, scalars, data_wait))
            done = step + 1
            if done % config.checkpoint_every == 0 or done == config.num_steps:
                clock.drain()  # A checkpoint never runs ahead of its metrics.
                checkpoints.save(done, state, batches.get_state())
            if allowed is not None and compiles.count > allowed:
                _fail_on_compile(schedule, step, compiles.count - allowed)
            allowed = compiles.count
    return state


def _fail_on_compile(schedule: Lockstep, step: int, count: int) -> None:
    names = " + ".join(str(schedule.buckets[i]) for i in schedule.step_buckets(step))
    raise RuntimeError(
        f"step {step} (bucket {names}) compiled {count} programs; everything was to be "
        "compiled before the first step. JAX_LOG_COMPILES=1 shows what it was"
    )


class _StepClock:
    """Reads the results of each step while the next one is already running.

    The devices always have work queued, and still every step has a time of its own:
    from the moment that the one before was done.
    """

    def __init__(self, schedule: Lockstep, on_step: Callable[[StepMetrics], None]):
        self._schedule = schedule
        self._on_step = on_step
        self._running: _Running | None = None
        self._last_end = time.perf_counter()

    def started(self, running: _Running) -> None:
        self.drain()
        self._running = running

    def drain(self) -> None:
        """Waits for the step that is running, if one is, and reports it."""
        if self._running is None:
            return
        running, self._running = self._running, None
        scalars = jax.device_get(running.scalars)
        end = time.perf_counter()
        seconds, self._last_end = end - self._last_end, end
        buckets = [
            self._schedule.buckets[i] for i in self._schedule.step_buckets(running.step)
        ]
        for name in ("loss", "grad_norm"):
            if not math.isfinite(scalars[name]):
                raise InputError(
                    f"step {running.step} (bucket {' + '.join(map(str, buckets))}): "
                    f"{name} is {scalars[name]}; train in another --workdir with a "
                    "lower optimizer.learning_rate or a longer warm-up"
                )
        replicas = self._schedule.num_replicas
        self._on_step(
            StepMetrics(
                step=running.step,
                epoch=self._schedule.epoch(running.step + 1),
                loss=float(scalars["loss"]),
                learning_rate=float(scalars["learning_rate"]),
                grad_norm=float(scalars["grad_norm"]),
                bucket="+".join(str(bucket.shape) for bucket in buckets),
                batch=replicas * sum(b.batch for b in buckets),
                tokens=replicas * sum(b.batch * b.shape.tokens for b in buckets),
                seconds=seconds,
                data_wait_seconds=running.data_wait,
            )
        )
