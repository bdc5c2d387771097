"""Tests of jaxload.training.checkpoint."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jaxload.config import Config
from jaxload.models import make_model
from jaxload.parallel.mesh import replica_mesh, replicated
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.programs import abstract_state, make_trainer
from jaxload.training.step import TrainState

DATA = {"micro_step": 28}


@pytest.fixture(scope="module")
def state(debug_config: Config) -> TrainState:
    params = nnx.state(make_model(debug_config.model, rngs=nnx.Rngs(3)))
    state, _ = make_trainer(debug_config).init(params, nnx.State({}))
    return jax.device_put(state, replicated(replica_mesh()))


def latest(directory: Path) -> int | None:
    with Checkpoints(directory, keep=2) as checkpoints:
        return checkpoints.latest_step()


def test_round_trip_bit_for_bit(
    debug_config: Config, state: TrainState, tmp_path: Path
):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(7, state, DATA)
    assert latest(tmp_path) == 7
    like = abstract_state(debug_config, make_trainer(debug_config), replica_mesh())
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        restored = checkpoints.restore(7, like)
        model = checkpoints.restore_model(7, like)
        assert checkpoints.restore_data(7) == DATA
    assert_same(restored, state)
    assert_same(model, state.model)


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, two)
        assert one.sharding == two.sharding


def test_keeps_the_newest(state: TrainState, tmp_path: Path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state, DATA)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.isdigit()) == ["2", "3"]


def test_an_error_does_not_lose_the_checkpoint_being_written(
    state: TrainState, tmp_path: Path
):
    def save_and_fail() -> None:
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            checkpoints.save(5, state, DATA)
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        save_and_fail()
    assert latest(tmp_path) == 5


def test_a_checkpoint_that_was_not_finished_does_not_count(
    state: TrainState, tmp_path: Path
):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(1, state, DATA)
    (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
    assert latest(tmp_path) == 1


def test_nothing_saved_is_nothing_to_resume(tmp_path: Path):
    assert latest(tmp_path) is None
