"""The training state and the pure functions that advance it."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxload.balance.program import Program, Remat
from jaxload.models import ModelConfig, make_model
from jaxload.models.embeddings import Grid, row_lengths
from jaxload.training.config import FlowConfig, OptimizerConfig
from jaxload.training.objective import FlowMatching, Objective, sample_keys
from jaxload.training.optimizer import learning_rate_schedule, make_optimizer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainState:
    """State that a resumed run starts from, as arrays or as their abstract shapes."""

    step: Any
    params: Any
    """Trained parameters."""

    frozen: Any
    """Parameters that are not trained: the model's own, if it has adapters."""

    opt_state: Any
    statistics: Any
    """Running statistics of the objective; no gradient depends on them."""

    @property
    def model(self) -> tuple[Any, Any]:
        """Trained and frozen parameters, for `nnx.merge(graphdef, *model)`."""
        return self.params, self.frozen

    def without_frozen(self) -> "TrainState":
        """Returns the part of the state that an update reads and writes."""
        return dataclasses.replace(self, frozen=())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sums:
    """Sums over the samples of a step, with a leading axis of groups.

    Sums, unlike means, are divided once, by the global count. Every sample then has the
    same weight, in any bucket and replica.
    """

    grads: Any
    loss: Any
    count: Any
    """Number of samples."""

    num_tokens: Any
    """Number of tokens, without padding and text."""

    metrics: Any
    """Metrics of the objective."""


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Pure functions of state and batch, which are compiled to programs."""

    model: ModelConfig
    objective: Objective
    optimizer: optax.GradientTransformation
    learning_rate: optax.Schedule
    seed: int

    def init(
        self, params: Any, frozen: Any, *, num_groups: int = 1
    ) -> tuple[TrainState, Sums]:
        """Returns the state before the first step, and zero sums."""
        state = TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            frozen=frozen,
            opt_state=self.optimizer.init(params),
            statistics=self.objective.init_statistics(),
        )
        return state, self.zero_sums(params, num_groups)

    def init_random(self, *, num_groups: int = 1) -> tuple[TrainState, Sums]:
        """Returns the state of a model with random parameters, and zero sums."""
        rngs = nnx.Rngs(self.seed)
        params, frozen = split_trained(make_model(self._concrete("none"), rngs=rngs))
        return self.init(params, frozen, num_groups=num_groups)

    def micro_step(
        self,
        program: Program,
        step: jax.Array,
        model: tuple[Any, Any],
        sums: Sums,
        batch: Mapping[str, jax.Array],
    ) -> tuple[Sums, jax.Array]:
        """Adds a micro-batch's losses and gradients to the sums of one group.

        Args:
            program: Form of the samples, and remat policy.
            step: Step of the run, which the noise depends on.
            model: Trained and frozen parameters.
            sums: Sums before.
            batch: Arrays of `jaxload.data.batch_spec.batch_spec`.

        Returns:
            The sums, and the micro-batch's own loss. The loss is never donated, and is
            ready when the micro-step is done.
        """
        params, frozen = model
        keys_B, batch_size = sample_keys(self.seed, step, batch["id"]), len(batch["id"])

        # A grid of all samples alike is static: no sample has padding.
        grid = program.form.token_grid or batch["grid"]

        def loss_sum(params):
            model = nnx.merge(self.graphdef(program.remat), params, frozen)

            def velocity(tokens_BSP, timestep_B, text_BTE):
                return model.velocity(tokens_BSP, grid, timestep_B, text_BTE)

            loss_B, metrics = self.objective(velocity, batch, keys_B)
            return loss_B.sum(), metrics

        grad = jax.value_and_grad(loss_sum, has_aux=True)
        (loss, metrics), grads = grad(params)
        more = Sums(
            grads=grads,
            loss=loss,
            count=jnp.asarray(batch_size, jnp.int32),
            num_tokens=_count_tokens(grid, batch_size),
            metrics=metrics,
        )
        sums = jax.tree.map(lambda total, one: total + one[None], sums, more)
        return sums, loss

    def update(
        self, state: TrainState, sums: Sums
    ) -> tuple[TrainState, Sums, dict[str, jax.Array]]:
        """Applies the mean gradient of all groups.

        Args:
            state: State without frozen parameters: see `TrainState.without_frozen`.
            sums: Sums of the step.

        Returns:
            The new state, zero sums for the next step, and the scalars of this one.
        """
        num_groups = sums.count.shape[0]
        sums = jax.tree.map(lambda part: part.sum(axis=0), sums)
        grads = jax.tree.map(lambda g: g / sums.count.astype(g.dtype), sums.grads)
        updates, opt_state = self.optimizer.update(grads, state.opt_state, state.params)
        statistics = self.objective.advance_statistics(state.statistics, sums.metrics)
        scalars = {
            "loss": sums.loss / sums.count.astype(jnp.float32),
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": jnp.asarray(self.learning_rate(state.step), jnp.float32),
            "tokens": sums.num_tokens,
            **self.objective.report(statistics),
        }
        state = TrainState(
            step=state.step + 1,
            params=optax.apply_updates(state.params, updates),
            frozen=state.frozen,
            opt_state=opt_state,
            statistics=statistics,
        )
        return state, self.zero_sums(state.params, num_groups), scalars

    def zero_sums(self, params: Any, num_groups: int) -> Sums:
        """Returns the zero sums before the first micro-batch of a step."""

        def zeros(like: Any) -> jax.Array:
            return jnp.zeros((num_groups, *like.shape), like.dtype)

        return Sums(
            grads=jax.tree.map(zeros, params),
            loss=jnp.zeros(num_groups, jnp.float32),
            count=jnp.zeros(num_groups, jnp.int32),
            num_tokens=jnp.zeros(num_groups, jnp.int32),
            metrics=jax.tree.map(zeros, self.objective.init_metrics()),
        )

    def graphdef(self, remat: Remat) -> nnx.GraphDef:
        """Returns the model's graph; every remat policy has the same parameters."""
        if remat not in self._graphdefs:
            model = nnx.eval_shape(
                lambda: make_model(self._concrete(remat), rngs=nnx.Rngs(self.seed))
            )
            self._graphdefs[remat] = nnx.graphdef(model)
        return self._graphdefs[remat]

    @functools.cached_property
    def _graphdefs(self) -> dict[Remat, nnx.GraphDef]:
        return {}

    def _concrete(self, remat: Remat) -> ModelConfig:
        return dataclasses.replace(self.model, remat=remat)


def _count_tokens(grid: Grid, batch: int) -> jax.Array:
    lengths_B = row_lengths(grid)
    if lengths_B is None:
        return jnp.asarray(batch * math.prod(grid), jnp.int32)
    return lengths_B.sum()


def make_trainer(
    model: ModelConfig, flow: FlowConfig, optimizer: OptimizerConfig, *, seed: int
) -> Trainer:
    """Builds the trainer of a model with the flow-matching objective."""
    return Trainer(
        model=model,
        objective=FlowMatching(flow),
        optimizer=make_optimizer(optimizer),
        learning_rate=learning_rate_schedule(optimizer),
        seed=seed,
    )


def split_trained(model: nnx.Module) -> tuple[nnx.State, nnx.State]:
    """Splits a model's parameters into trained and frozen ones.

    A model with adapters trains only the adapters; a model without them trains all
    parameters.
    """
    params = nnx.state(model)
    adapters, rest = nnx.split_state(params, nnx.LoRAParam, ...)
    return (adapters, rest) if adapters else (rest, adapters)
