"""Tests of jaxload.training.loop, with a fake engine."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxload.balance.form import Grid
from jaxload.balance.program import Program
from jaxload.balance.schedule import Lockstep
from jaxload.data.source import HostBatch
from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig
from jaxload.parallel.placement import Group, place
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.config import TrainConfig
from jaxload.training.engine import Engine
from jaxload.training.events import Event
from jaxload.training.loop import run_steps
from tests.balance.grid_samples import grid_bucket

BUCKETS = tuple(
    grid_bucket(Program(form=Grid(frames, 2, 2), batch=batch), 60)
    for frames, batch in ((1, 3), (4, 1))
)
CONFIG = TrainConfig(num_steps=10, checkpoint_every=4)
PLACEMENT = place(MeshConfig(), jax.devices())


class FakeCheckpoints(Checkpoints):
    """Records each save, and the number of steps reported before it."""

    def __init__(self, events: list[Event]):
        self.events = events
        self.saved: list[tuple[int, int]] = []

    def save(self, step: int, state: Any, data: dict[str, Any]) -> None:
        assert state == step
        assert data == {"step": step}
        self.saved.append((step, len(self.events)))


def batches_without_arrays(schedule: Lockstep, start: int) -> Iterator[HostBatch]:
    """Yields micro-batches without arrays, in the order of a schedule."""
    for step in range(start, CONFIG.num_steps):
        for turn in range(schedule.accumulate):
            for replica in range(schedule.num_replicas):
                yield HostBatch(step, replica, schedule.step_buckets(step)[turn], {})


class FakeEngine(Engine):
    """Records its micro-steps; its state is the step."""

    def __init__(self, start: int, update: Callable[[int], dict], *, idle: bool):
        self._step = start
        self._scalars = update
        self._idle = idle
        self.called: list[tuple[int, Program]] = []

    @property
    def state(self) -> Any:
        return self._step

    def micro_step(self, group: Group, program: Program, batch: Any) -> None:
        self.called.append((group.index, program))

    def update(self) -> dict[str, jax.Array]:
        self._step += 1
        return self._scalars(self._step - 1)

    def is_idle(self, group: Group) -> bool:
        return self._idle


class Recorder:
    """A sink that keeps events."""

    def __init__(self):
        self.events: list[Event] = []

    def write(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass


def scalars(step: int) -> dict[str, jax.Array]:
    values = {"loss": 1.0 / (step + 1), "grad_norm": 1.0, "learning_rate": 0.1}
    return {name: jax.device_put(np.float32(v)) for name, v in values.items()}


def run(
    *,
    accumulate: int = 1,
    start: int = 0,
    update: Callable[[int], dict[str, jax.Array]] = scalars,
    idle: bool = True,
):
    """Runs the loop; returns events, checkpoints and the micro-steps that ran."""
    schedule = Lockstep(buckets=BUCKETS, seed=0, num_replicas=2, accumulate=accumulate)
    sink = Recorder()
    checkpoints = FakeCheckpoints(sink.events)
    engine = FakeEngine(start, update, idle=idle)
    run_steps(
        engine,
        batches_without_arrays(schedule, start),
        start=start,
        config=dataclasses.replace(CONFIG, accumulate=accumulate),
        schedule=schedule,
        placement=PLACEMENT,
        checkpoints=checkpoints,
        sink=sink,
    )
    return sink.events, checkpoints, engine.called


def test_every_step_is_reported_once_and_in_order():
    rows, _, _ = run()
    assert [row.step for row in rows] == list(range(1, 11))
    assert [row.values["loss"] for row in rows] == pytest.approx(
        [1 / (s + 1) for s in range(10)]
    )


def test_a_checkpoint_never_runs_ahead_of_its_metrics():
    _, checkpoints, _ = run()
    assert checkpoints.saved == [(4, 4), (8, 8), (10, 10)]


def test_starts_where_it_is_told():
    rows, checkpoints, _ = run(start=6)
    assert [row.step for row in rows] == [7, 8, 9, 10]
    assert [step for step, _ in checkpoints.saved] == [8, 10]


def test_each_group_runs_the_programs_that_the_schedule_names():
    rows, _, called = run(accumulate=3)
    schedule = Lockstep(buckets=BUCKETS, seed=0, num_replicas=2, accumulate=3)
    assert called == [
        (group, BUCKETS[bucket].program)
        for step in range(10)
        for bucket in schedule.step_buckets(step)
        for group in range(2)
    ]
    for row in rows:
        buckets = [BUCKETS[i] for i in schedule.step_buckets(row.step - 1)]
        ran = sorted(buckets, key=BUCKETS.index)
        assert row.values["bucket"] == "+".join(str(b.form) for b in ran)
        assert row.values["batch"] == 2 * sum(b.batch for b in buckets)


def test_a_compile_after_the_first_step_is_an_error_that_names_the_program():
    def compiles_at_five(step: int) -> dict[str, jax.Array]:
        if step == 5:
            with jax.transfer_guard("allow"):
                jax.jit(lambda x: jnp.sin(x) * 1.25)(jnp.zeros(11))
        return scalars(step)

    with pytest.raises(RuntimeError, match=r"step 6 \(program \dx2x2@\d\) compiled"):
        run(update=compiles_at_five)


def test_the_first_step_may_compile():
    def compiles_at_zero(step: int) -> dict[str, jax.Array]:
        if step == 0:
            with jax.transfer_guard("allow"):
                jax.jit(lambda x: jnp.cos(x) * 1.25)(jnp.zeros(13))
        return scalars(step)

    rows, _, _ = run(update=compiles_at_zero)
    assert len(rows) == 10


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_none_stops_the_run_before_it_is_saved(name, value):
    def broken(step: int) -> dict[str, jax.Array]:
        broken_scalars = scalars(step)
        if step == 3:
            broken_scalars[name] = jax.device_put(np.float32(value))
        return broken_scalars

    with pytest.raises(InputError, match=rf"step 4 .*{name} is (nan|inf); train in"):
        run(update=broken)


def test_a_hidden_transfer_is_an_error():
    def transfers(step: int) -> dict[str, jax.Array]:
        return scalars(step) | {"loss": jnp.zeros(()) + np.float32(1.0)}

    with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        run(update=transfers)


@pytest.mark.parametrize("idle", [True, False])
def test_waiting_counts_only_while_the_devices_have_no_work(idle: bool):
    rows, _, _ = run(idle=idle)
    waits = [row.values["data_wait_seconds"] for row in rows]
    assert all(wait > 0 for wait in waits) if idle else not any(waits)
