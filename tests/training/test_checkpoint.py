"""Tests of jaxload.training.checkpoint."""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from jaxload.config import Config
from jaxload.models import DiT
from jaxload.parallel.mesh import replica_mesh, replicated
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.programs import abstract_state, make_trainer
from jaxload.training.step import TrainState


@pytest.fixture(scope="module")
def state(debug_config: Config) -> TrainState:
    params = nnx.state(DiT(debug_config.model, rngs=nnx.Rngs(3)))
    state, _ = make_trainer(debug_config).init(params)
    return jax.device_put(state, replicated(replica_mesh()))


def test_round_trip_bit_for_bit(
    debug_config: Config, state: TrainState, tmp_path: Path
):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(7, state)
    checkpoints.close()
    again = Checkpoints(tmp_path, keep=2)
    assert again.latest_step() == 7
    trainer = make_trainer(debug_config)
    like = abstract_state(debug_config, trainer, replica_mesh())
    restored = again.restore(7, like)
    again.close()
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for one, two in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(one, two)
        assert one.sharding == two.sharding


def test_keeps_the_newest(state: TrainState, tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step, state)
    checkpoints.close()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.isdigit()) == ["2", "3"]


def test_a_checkpoint_that_was_not_finished_does_not_count(
    state: TrainState, tmp_path: Path
):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, state)
    checkpoints.close()
    (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
    again = Checkpoints(tmp_path, keep=2)
    assert again.latest_step() == 1
    again.close()


def test_nothing_saved_is_nothing_to_resume(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert checkpoints.latest_step() is None
    checkpoints.close()
