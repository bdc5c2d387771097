"""Tests of jaxload.training.loop, with programs that only pretend to train."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxload.balance.bucket import Bucket
from jaxload.balance.schedule import Lockstep
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.events import StepMetrics
from jaxload.training.loop import Programs, TrainConfig, fit
from jaxload.training.step import Sums, TrainState

BUCKETS = tuple(
    Bucket(
        shape=Shape(frames, 2, 2),
        batch=batch,
        num_samples=60,
        cost=1.0,
        over_budget=False,
    )
    for frames, batch in ((1, 3), (4, 1))
)
NO_SUMS = Sums(grads=None, loss=None, count=None)
CONFIG = TrainConfig(num_steps=10, checkpoint_every=4)


class FakeCheckpoints(Checkpoints):
    """Remembers what was saved, and how many steps had been reported by then."""

    def __init__(self, rows: list[StepMetrics], accumulate: int):
        self.rows = rows
        self.accumulate = accumulate
        self.saved: list[tuple[int, int]] = []

    def save(self, step: int, state: TrainState, data: dict[str, Any]) -> None:
        assert state.step == step
        assert data == {"micro_step": self.accumulate * step}
        self.saved.append((step, len(self.rows)))


class FakeBatches:
    """Counts the micro-batches that were asked for."""

    def __init__(self, micro_step: int):
        self.micro_step = micro_step

    def __next__(self) -> dict[str, jax.Array]:
        self.micro_step += 1
        return {}

    def get_state(self) -> dict[str, int]:
        return {"micro_step": self.micro_step}


def scalars(step: int) -> dict[str, jax.Array]:
    values = {"loss": 1.0 / (step + 1), "grad_norm": 1.0, "learning_rate": 0.1}
    return {name: jax.device_put(np.float32(v)) for name, v in values.items()}


def run(
    *,
    accumulate: int = 1,
    start: int = 0,
    update: Callable[[int], dict[str, jax.Array]] = scalars,
    sums: Sums = NO_SUMS,
):
    """Runs the loop; returns rows, checkpoints and the buckets that were called."""
    rows: list[StepMetrics] = []
    called: list[int] = []
    checkpoints = FakeCheckpoints(rows, accumulate)

    def micro(bucket: int):
        def call(state: TrainState, sums: Sums, batch: dict) -> Sums:
            called.append(bucket)
            return sums

        return call

    def run_update(state: TrainState, sums: Sums):
        return at(state.step + 1), sums, update(state.step)

    fit(
        at(start),
        sums,
        FakeBatches(start * accumulate),
        start=start,
        config=dataclasses.replace(CONFIG, accumulate=accumulate),
        programs=Programs(micro_steps=[micro(0), micro(1)], update=run_update),
        schedule=Lockstep(
            buckets=BUCKETS, seed=0, num_replicas=2, accumulate=accumulate
        ),
        checkpoints=checkpoints,
        on_step=rows.append,
    )
    return rows, checkpoints, called


def at(step: int) -> TrainState:
    return TrainState(step=step, params=None, frozen=None, opt_state=None)


def test_every_step_is_reported_once_and_in_order():
    rows, _, _ = run()
    assert [row.step for row in rows] == list(range(10))
    assert [row.loss for row in rows] == pytest.approx([1 / (s + 1) for s in range(10)])


def test_a_checkpoint_never_runs_ahead_of_its_metrics():
    _, checkpoints, _ = run()
    assert checkpoints.saved == [(4, 4), (8, 8), (10, 10)]


def test_starts_where_it_is_told():
    rows, checkpoints, _ = run(start=6)
    assert [row.step for row in rows] == [6, 7, 8, 9]
    assert [step for step, _ in checkpoints.saved] == [8, 10]


def test_runs_the_buckets_that_the_schedule_names():
    rows, _, called = run(accumulate=3)
    schedule = Lockstep(buckets=BUCKETS, seed=0, num_replicas=2, accumulate=3)
    expected = [bucket for step in range(10) for bucket in schedule.step_buckets(step)]
    assert called == expected
    for row in rows:
        buckets = [BUCKETS[i] for i in schedule.step_buckets(row.step)]
        assert row.bucket == "+".join(str(b.shape) for b in buckets)
        assert row.batch == 2 * sum(b.batch for b in buckets)
        assert row.tokens == 2 * sum(b.batch * b.shape.tokens for b in buckets)


def test_a_compile_after_the_first_step_is_an_error_that_names_the_bucket():
    def compiles_at_five(step: int) -> dict[str, jax.Array]:
        if step == 5:
            with jax.transfer_guard("allow"):
                jax.jit(lambda x: jnp.sin(x) * 1.25)(jnp.zeros(11))
        return scalars(step)

    with pytest.raises(RuntimeError, match=r"step 5 \(bucket \dx2x2@\d\) compiled"):
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

    with pytest.raises(InputError, match=rf"step 3 .*{name} is (nan|inf); train in"):
        run(update=broken)


def test_a_hidden_transfer_is_an_error():
    def transfers(step: int) -> dict[str, jax.Array]:
        return scalars(step) | {"loss": jnp.zeros(()) + np.float32(1.0)}

    with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        run(update=transfers)


class Busy:
    """What a program gives back before it is done."""

    def __init__(self, ready: bool):
        self.ready = ready

    def is_ready(self) -> bool:
        return self.ready


@pytest.mark.parametrize("ready", [True, False])
def test_waiting_counts_only_while_the_devices_have_no_work(ready: bool):
    rows = run(sums=Sums(grads=None, loss=Busy(ready), count=None))[0]
    waits = [row.data_wait_seconds for row in rows]
    assert all(wait > 0 for wait in waits) if ready else not any(waits)
