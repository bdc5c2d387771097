"""Tests of jaxload.training.step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh

from jaxload.config import Config
from jaxload.models import make_model
from jaxload.parallel.mesh import batch_sharded, replica_mesh, replicated
from jaxload.testing import assert_trees_close
from jaxload.training.programs import make_trainer
from jaxload.training.step import Sums, Trainer, TrainState


@pytest.fixture(scope="module")
def trainer(debug_config: Config) -> Trainer:
    return make_trainer(debug_config)


@pytest.fixture(scope="module")
def start(debug_config: Config, trainer: Trainer) -> tuple[TrainState, Sums]:
    params = nnx.state(make_model(debug_config.model, rngs=nnx.Rngs(0)))
    # Away from the zeros of an untrained model, so that every gradient is something.
    params = jax.tree.map(lambda x: x + 0.05, params)
    return trainer.init(params, nnx.State({}))


@pytest.fixture(scope="module")
def micro_step(trainer: Trainer):
    return jax.jit(trainer.micro_step)


def make_batch(config: Config, ids: list[int]) -> dict[str, jax.Array]:
    model, count = config.model, max(ids) + 1
    latent = jax.random.normal(jax.random.key(1), (count, 2, 4, 4, model.channels))
    text = jax.random.normal(
        jax.random.key(2), (count, model.num_text_tokens, model.text_dim)
    )
    rows = jnp.array(ids)
    return {
        "latent": latent[rows].astype(jnp.bfloat16),
        "text": text[rows].astype(jnp.bfloat16),
        "id": rows.astype(jnp.int32),
    }


def test_every_sample_weighs_the_same_however_it_is_batched(
    debug_config: Config, micro_step, start: tuple[TrainState, Sums]
):
    state, zero = start
    whole = micro_step(state, zero, make_batch(debug_config, [0, 1, 2, 3]))
    parts = micro_step(state, zero, make_batch(debug_config, [0]))
    parts = micro_step(state, parts, make_batch(debug_config, [1, 2, 3]))
    assert int(whole.count) == int(parts.count) == 4
    assert_trees_close(parts.loss, whole.loss)
    assert_trees_close(parts.grads, whole.grads)


def test_replicas_sum_to_what_one_device_computes(
    debug_config: Config, micro_step, start: tuple[TrainState, Sums]
):
    batch = make_batch(debug_config, [0, 1, 2, 3])
    alone = micro_step(*start, batch)
    mesh = replica_mesh()
    assert mesh.size == 2
    together = micro_step(
        *jax.device_put(start, replicated(mesh)),
        jax.device_put(batch, batch_sharded(mesh)),
    )
    assert_trees_close(jax.device_get(together.loss), jax.device_get(alone.loss))
    assert_trees_close(together.grads, jax.device_get(alone.grads))


def test_update_divides_once_and_moves_downhill(
    debug_config: Config, trainer: Trainer, micro_step, start: tuple[TrainState, Sums]
):
    batch = make_batch(debug_config, [0, 1, 2])
    state, zero = start
    sums = micro_step(state, zero, batch)
    new, empty, scalars = jax.jit(trainer.update)(state, sums)
    np.testing.assert_allclose(scalars["loss"], sums.loss / 3, rtol=1e-6)
    # Adam hides the scale of a gradient, so the division is looked for in its norm.
    summed = np.sqrt(sum(np.square(g).sum() for g in jax.tree.leaves(sums.grads)))
    np.testing.assert_allclose(scalars["grad_norm"], summed / 3, rtol=1e-4)
    assert int(new.step) == 1
    assert not any(leaf.any() for leaf in jax.tree.leaves(empty))
    # The same noise as before, since it is keyed by the step.
    again = dataclasses.replace(new, step=state.step)
    assert micro_step(again, zero, batch).loss < sums.loss


def test_a_mesh_of_one_is_a_mesh(debug_config: Config, micro_step, start):
    mesh = Mesh(np.array(jax.devices()[:1]), ("replica",))
    batch = jax.device_put(make_batch(debug_config, [0, 1]), batch_sharded(mesh))
    sums = micro_step(*jax.device_put(start, replicated(mesh)), batch)
    assert int(sums.count) == 2
