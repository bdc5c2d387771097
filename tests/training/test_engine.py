"""Tests of jaxload.training.engine: one step on several placements of two devices."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from jaxload.balance.form import Grid, Length
from jaxload.balance.program import Program
from jaxload.config import Config
from jaxload.data.batch_spec import batch_spec, random_batch
from jaxload.parallel.config import MeshConfig
from jaxload.parallel.placement import Placement, place
from jaxload.runs.setup import trainer_of
from jaxload.testing import assert_trees_close
from jaxload.training.engine import MAX_QUEUED, Engine
from jaxload.training.lowering import Lowering
from jaxload.training.step import Sums, TrainState

BATCH = 4
FORMS = (Grid(2, 4, 4), Length(8))
"""Form of the micro-batch of each logical replica."""

LENGTHS = (1, 3, 6, 8)
"""Tokens of the samples of the second replica."""

PROGRAM = Program(form=FORMS[0], batch=BATCH)
PLACEMENTS = {
    "one device": (MeshConfig(), 1),
    "replica": (MeshConfig(replica=2), 2),
    "fsdp": (MeshConfig(fsdp=2), 2),
    "tensor": (MeshConfig(tensor=2), 2),
}


def programs_of(placement: Placement) -> list[Program]:
    """Returns the program of each logical replica."""
    return [Program(form=f, batch=BATCH, layout=placement.layout) for f in FORMS]


def make_engine(config: Config, placement: Placement) -> Engine:
    lowering = Lowering(trainer_of(config), placement)
    micro_steps = {}
    for replica, program in enumerate(programs_of(placement)):
        group = placement.group_of(replica)
        compiled = lowering.micro_step(program, group).compile()
        micro_steps[group.index, program] = compiled
    state, sums = lowering.init("noise").compile()()
    # Adds noise, since zeros of an untrained model would make gradients zero.
    params = jax.tree.map(
        lambda x, sharding: jax.device_put(x + 0.05, sharding),
        state.params,
        jax.tree.map(lambda x: x.sharding, state.params),
    )
    state = dataclasses.replace(state, params=params)
    update = lowering.update().compile()
    return Engine(placement, micro_steps, update, state, sums)


def micro_batch(
    config: Config, program: Program, replica: int
) -> dict[str, np.ndarray]:
    """Returns the samples of a logical replica; ids differ between replicas."""
    spec = batch_spec(config.model, program)
    arrays = random_batch(spec, seed=replica, lengths=LENGTHS)
    return arrays | {"id": arrays["id"] + BATCH * replica}


def run_step(engine: Engine, config: Config, placement: Placement):
    """Runs the micro-batches of two logical replicas, and the update."""
    for replica, program in enumerate(programs_of(placement)):
        group = placement.group_of(replica)
        engine.micro_step(group, program, micro_batch(config, program, replica))
    return jax.device_get(engine.update())


@pytest.fixture(scope="module")
def results(debug_config: Config) -> dict[str, tuple[dict[str, Any], TrainState]]:
    """Runs two steps per placement; returns the last scalars and state."""
    found = {}
    for name, (mesh, num_devices) in PLACEMENTS.items():
        placement = place(mesh, jax.devices()[:num_devices])
        engine = make_engine(debug_config, placement)
        run_step(engine, debug_config, placement)
        scalars = run_step(engine, debug_config, placement)
        found[name] = (scalars, engine.state)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLACEMENTS if name != "one device"])
def test_a_step_is_the_same_wherever_it_runs(results: dict, name: str):
    scalars, state = results[name]
    expected, expected_state = results["one device"]
    assert int(state.step) == 2
    assert int(scalars["tokens"]) == BATCH * FORMS[0].tokens + sum(LENGTHS)
    for key, value in expected.items():
        np.testing.assert_allclose(scalars[key], value, rtol=2e-5, err_msg=key)
    found, wanted = jax.device_get((state, expected_state))
    assert_trees_close(found.statistics, wanted.statistics)
    # Loose, because Adam divides by tiny moments. A missing group would change 1e-3.
    for one, two in zip(
        jax.tree.leaves(found.params), jax.tree.leaves(wanted.params), strict=True
    ):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=2e-5)


@pytest.mark.slow
def test_every_group_holds_the_same_parameters_after_an_update(results: dict):
    _, state = results["replica"]
    for leaf in jax.tree.leaves(state.params):
        first, second = (shard.data for shard in leaf.addressable_shards)
        np.testing.assert_array_equal(first, second)


@pytest.mark.slow
def test_the_state_keeps_its_shardings(results: dict, debug_config: Config):
    for name, (mesh, num_devices) in PLACEMENTS.items():
        placement = place(mesh, jax.devices()[:num_devices])
        lowering = Lowering(trainer_of(debug_config), placement)
        _, state = results[name]
        for leaf, wanted in zip(
            jax.tree.leaves(state), jax.tree.leaves(lowering.state), strict=True
        ):
            assert isinstance(leaf.sharding, NamedSharding)
            assert leaf.sharding.is_equivalent_to(wanted.sharding, leaf.ndim), name


class FakeLoss:
    """Fake loss of a micro-step, which is ready after block_until_ready()."""

    is_done = False

    def block_until_ready(self) -> None:
        self.is_done = True


def make_fake_engine(placement: Placement) -> tuple[Engine, dict[int, list[FakeLoss]]]:
    """Returns an engine without a model, and its fake losses by group."""
    losses: dict[int, list[FakeLoss]] = {g.index: [] for g in placement.groups}

    def start(step: Any, model: Any, sums: Sums, batch: Any, *, index: int) -> Any:
        losses[index].append(FakeLoss())
        return sums, losses[index][-1]

    state = TrainState(
        step=jnp.zeros((), jnp.int32), params={}, frozen={}, opt_state={}, statistics={}
    )
    zero = jnp.zeros(())
    sums = Sums(grads={}, loss=zero, count=zero, num_tokens=zero, metrics={})
    shardings = placement.sums(sums)
    sums = jax.tree.map(lambda x: jnp.zeros(len(placement.groups)), sums)
    engine = Engine(
        placement,
        {(i, PROGRAM): functools.partial(start, index=i) for i in losses},
        lambda state, sums: (state, sums, {}),
        jax.device_put(state, placement.state(state)),
        jax.device_put(sums, shardings),
    )
    return engine, losses


def test_few_micro_batches_wait_on_a_group_however_long_a_step_is():
    placement = place(MeshConfig(replica=2), jax.devices()[:2])
    engine, losses = make_fake_engine(placement)
    first, second = placement.groups
    engine.micro_step(second, PROGRAM, {})
    for turn in range(1, 4 * MAX_QUEUED):
        engine.micro_step(first, PROGRAM, {})
        num_waiting = min(turn, MAX_QUEUED)
        done = [loss.is_done for loss in losses[first.index]]
        # The engine waits for the oldest, and for no more than necessary.
        assert done == [True] * (turn - num_waiting) + [False] * num_waiting
        if turn == 2 * MAX_QUEUED:
            engine.update()
    assert [loss.is_done for loss in losses[second.index]] == [False]
