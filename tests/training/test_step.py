"""Tests of jaxload.training.step."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxload.balance.form import Grid
from jaxload.balance.program import Program
from jaxload.config import Config
from jaxload.models import make_model
from jaxload.runs.setup import trainer_of
from jaxload.testing import assert_trees_close
from jaxload.training.objective import Metrics, Velocity
from jaxload.training.step import Sums, Trainer, TrainState

PROGRAM = Program(form=Grid(2, 4, 4), batch=1)
"""Form of all samples; batches have as many samples as a test wants."""


@pytest.fixture(scope="module")
def trainer(debug_config: Config) -> Trainer:
    return trainer_of(debug_config)


@pytest.fixture(scope="module")
def start(debug_config: Config, trainer: Trainer) -> tuple[TrainState, Sums]:
    params = nnx.state(make_model(debug_config.model, rngs=nnx.Rngs(0)))
    # Adds noise, since zeros of an untrained model would make gradients zero.
    params = jax.tree.map(lambda x: x + 0.05, params)
    return trainer.init(params, nnx.State({}))


@pytest.fixture(scope="module")
def micro_step(trainer: Trainer):
    run = jax.jit(trainer.micro_step, static_argnums=0)

    def micro_step(state: TrainState, sums: Sums, batch, remat="none") -> Sums:
        program = dataclasses.replace(PROGRAM, remat=remat)
        return run(program, state.step, state.model, sums, batch)[0]

    return micro_step


def make_batch(config: Config, ids: list[int]) -> dict[str, jax.Array]:
    model, count = config.model, max(ids) + 1
    width = math.prod(model.patch) * model.channels
    tokens = jax.random.normal(jax.random.key(1), (count, PROGRAM.tokens, width))
    text = jax.random.normal(
        jax.random.key(2), (count, model.num_text_tokens, model.text_dim)
    )
    rows = jnp.array(ids)
    return {
        "tokens": tokens[rows].astype(jnp.bfloat16),
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
    assert int(whole.count[0]) == int(parts.count[0]) == 4
    assert_trees_close(parts.loss, whole.loss)
    assert_trees_close(parts.grads, whole.grads)
    assert_trees_close(parts.metrics, whole.metrics)


@pytest.mark.parametrize("remat", ["attention", "full"])
def test_remat_changes_nothing_but_time_and_memory(
    debug_config: Config, micro_step, start: tuple[TrainState, Sums], remat: str
):
    batch = make_batch(debug_config, [0, 1])
    assert_trees_close(
        micro_step(*start, batch, remat).grads, micro_step(*start, batch).grads
    )


def test_update_divides_once_and_moves_downhill(
    debug_config: Config, trainer: Trainer, micro_step, start: tuple[TrainState, Sums]
):
    batch = make_batch(debug_config, [0, 1, 2])
    state, zero = start
    sums = micro_step(state, zero, batch)
    new, empty, scalars = jax.jit(trainer.update)(state, sums)
    np.testing.assert_allclose(scalars["loss"], sums.loss[0] / 3, rtol=1e-6)
    # Adam's update does not depend on the gradient's scale, so the norm is checked.
    summed = np.sqrt(sum(np.square(g).sum() for g in jax.tree.leaves(sums.grads)))
    np.testing.assert_allclose(scalars["grad_norm"], summed / 3, rtol=1e-4)
    assert int(new.step) == 1
    assert not any(leaf.any() for leaf in jax.tree.leaves(empty))
    # The noise is the same as before, since its key depends on the step.
    again = dataclasses.replace(new, step=state.step)
    assert micro_step(again, zero, batch).loss[0] < sums.loss[0]


def test_update_adds_up_the_groups(
    debug_config: Config, trainer: Trainer, micro_step, start: tuple[TrainState, Sums]
):
    state, zero = start
    whole = micro_step(state, zero, make_batch(debug_config, [0, 1, 2]))
    parts = [
        micro_step(state, zero, make_batch(debug_config, i)) for i in ([0], [1, 2])
    ]
    grouped = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
    update = jax.jit(trainer.update)
    new, empty, scalars = update(state, grouped)
    expected, _, expected_scalars = update(state, whole)
    for name in ("loss", "grad_norm"):
        assert_trees_close(scalars[name], expected_scalars[name])
    assert_trees_close(new.params, expected.params)
    assert_trees_close(new.statistics, expected.statistics)
    assert empty.count.shape == (2,)


def test_statistics_are_the_losses_by_noise_level(
    debug_config: Config, trainer: Trainer, micro_step, start: tuple[TrainState, Sums]
):
    state, zero = start
    sums = micro_step(state, zero, make_batch(debug_config, list(range(16))))
    loss, count = sums.metrics["loss_by_noise"][0], sums.metrics["count_by_noise"][0]
    assert int(count.sum()) == 16
    assert (count > 0).sum() > 2
    np.testing.assert_allclose(loss.sum(), sums.loss[0], rtol=1e-5)
    new, _, scalars = jax.jit(trainer.update)(state, sums)
    seen = count > 0
    np.testing.assert_allclose(
        scalars["loss_by_noise"][seen], (loss / jnp.maximum(count, 1))[seen], rtol=1e-5
    )
    again, _, _ = jax.jit(trainer.update)(new, sums)
    np.testing.assert_allclose(
        again.statistics["count_by_noise"], 1.98 * count, rtol=1e-6
    )


@dataclasses.dataclass(frozen=True)
class SquaredLosses:
    """Objective whose statistics differ in structure from a step's metrics."""

    def __call__(
        self, model: Velocity, batch: Mapping[str, jax.Array], keys_B: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        tokens_BSP = batch["tokens"].astype(jnp.float32)
        time_B = jnp.zeros(tokens_BSP.shape[:1])
        error = model(tokens_BSP, time_B, batch["text"]) - tokens_BSP
        loss_B = jnp.mean(jnp.square(error), axis=(1, 2))
        return loss_B, {"squared": jnp.square(loss_B).sum()}

    def init_metrics(self) -> Metrics:
        return {"squared": jnp.zeros(())}

    def init_statistics(self) -> dict[str, tuple[jax.Array, jax.Array]]:
        return {"ema": (jnp.zeros(()), jnp.zeros(3))}

    def advance_statistics(self, statistics: Any, metrics: Metrics) -> Any:
        ema, recent = statistics["ema"]
        squared = metrics["squared"]
        recent = jnp.concatenate([squared[None], recent[:-1]])
        return {"ema": (0.9 * ema + 0.1 * squared, recent)}

    def report(self, statistics: Any) -> dict[str, jax.Array]:
        return {"ema": statistics["ema"][0]}


def shapes(tree: Any) -> tuple[Any, list[Any]]:
    """Returns the structure of a tree, and shapes and types of its leaves."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def test_an_objective_may_count_one_thing_and_remember_another(
    debug_config: Config, trainer: Trainer
):
    trainer = dataclasses.replace(trainer, objective=SquaredLosses())
    state, zero = jax.eval_shape(trainer.init_random)
    assert jax.tree.map(jnp.shape, zero.metrics) == {"squared": (1,)}
    assert jax.tree.map(jnp.shape, state.statistics) == {"ema": ((), (3,))}
    micro_step = functools.partial(trainer.micro_step, PROGRAM)
    batch = make_batch(debug_config, [0, 1])
    sums, _ = jax.eval_shape(micro_step, state.step, state.model, zero, batch)
    assert shapes(sums) == shapes(zero)
    new, again, _ = jax.eval_shape(trainer.update, state, sums)
    assert shapes((new, again)) == shapes((state, zero))

    # Checks the values, with one parameter and two groups.
    state, zero = trainer.init({"one": jnp.ones(1)}, {}, num_groups=2)
    count, metrics = jnp.ones(2, jnp.int32), {"squared": jnp.array([1.0, 3.0])}
    sums = dataclasses.replace(zero, count=count, metrics=metrics)
    state, zero, _ = trainer.update(state, sums)
    state, zero, scalars = trainer.update(state, sums)
    ema, recent = state.statistics["ema"]
    np.testing.assert_allclose(ema, 0.1 * 4 + 0.9 * 0.1 * 4, rtol=1e-6)
    np.testing.assert_array_equal(recent, [4, 4, 0])
    np.testing.assert_array_equal(scalars["ema"], ema)
    np.testing.assert_array_equal(zero.metrics["squared"], [0, 0])
