"""The training state and the two programs that advance it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxload.training.objective import FlowConfig, flow_matching_loss, sample_keys


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainState:
    """What a resume starts from: arrays, or their shapes where no value is needed."""

    step: Any
    params: Any
    """What is trained."""

    frozen: Any
    """Parameters that are not: those of a model that is trained by its adapters."""

    opt_state: Any

    @property
    def model(self) -> tuple[Any, Any]:
        """All parameters, as `nnx.merge(graphdef, *model)` takes them."""
        return self.params, self.frozen


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sums:
    """Sums over the samples of a step, gathered micro-batch by micro-batch.

    Sums and not means: divided once by the global count, every sample then weighs the
    same, whatever bucket or replica it landed on.
    """

    grads: Any
    loss: Any
    count: Any


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Pure functions of state and batch; the loop compiles and calls them."""

    graphdef: nnx.GraphDef
    optimizer: optax.GradientTransformation
    learning_rate: optax.Schedule
    flow: FlowConfig
    seed: int

    def init(self, params: Any, frozen: Any) -> tuple[TrainState, Sums]:
        """The state before the first step."""
        state = TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            frozen=frozen,
            opt_state=self.optimizer.init(params),
        )
        return state, self._zero_sums(params)

    def micro_step(
        self, state: TrainState, sums: Sums, batch: Mapping[str, jax.Array]
    ) -> Sums:
        """Adds a micro-batch's losses and gradients to the sums."""
        keys_B = sample_keys(self.seed, state.step, batch["id"])

        def loss_sum(params):
            model = nnx.merge(self.graphdef, params, state.frozen)
            return flow_matching_loss(
                model, batch["latent"], batch["text"], keys_B, self.flow
            ).sum()

        loss, grads = jax.value_and_grad(loss_sum)(state.params)
        return Sums(
            grads=jax.tree.map(jnp.add, sums.grads, grads),
            loss=sums.loss + loss,
            count=sums.count + batch["id"].shape[0],
        )

    def update(
        self, state: TrainState, sums: Sums
    ) -> tuple[TrainState, Sums, dict[str, jax.Array]]:
        """Applies the mean gradient; returns empty sums for the next step."""
        grads = jax.tree.map(lambda g: g / sums.count.astype(g.dtype), sums.grads)
        updates, opt_state = self.optimizer.update(grads, state.opt_state, state.params)
        scalars = {
            "loss": sums.loss / sums.count.astype(jnp.float32),
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": jnp.asarray(self.learning_rate(state.step), jnp.float32),
        }
        state = TrainState(
            step=state.step + 1,
            params=optax.apply_updates(state.params, updates),
            frozen=state.frozen,
            opt_state=opt_state,
        )
        return state, self._zero_sums(state.params), scalars

    def _zero_sums(self, params: Any) -> Sums:
        return Sums(
            grads=jax.tree.map(jnp.zeros_like, params),
            loss=jnp.zeros((), jnp.float32),
            count=jnp.zeros((), jnp.int32),
        )
