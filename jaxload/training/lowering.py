"""Lowers the programs of a run with their exact shapes and shardings."""

import dataclasses
import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.stages import Lowered

from jaxload.balance.program import Program
from jaxload.data.batch_spec import batch_spec
from jaxload.parallel.placement import Group, Placement
from jaxload.parallel.sharding_rules import sharded
from jaxload.sampling.config import SampleConfig
from jaxload.sampling.sampler import make_sampler
from jaxload.training.step import Sums, Trainer, TrainState

Origin = Literal["noise", "weights", "checkpoint"]
"""Source of a run's initial state."""


@dataclasses.dataclass(frozen=True)
class Lowering:
    """Lowers the programs of a trainer for a placement.

    Micro-steps and the sampler are local programs: each is lowered for one group, on
    the group's own mesh. Initialisation and update are global.
    """

    trainer: Trainer
    placement: Placement

    @functools.cached_property
    def state(self) -> TrainState:
        """Shapes, types and shardings of the training state on the global mesh."""
        return self._abstract[0]

    @functools.cached_property
    def sums(self) -> Sums:
        """Shapes, types and shardings of the sums on the global mesh."""
        return self._abstract[1]

    def init(self, origin: Origin) -> Lowered:
        """Lowers the program that runs before the first step.

        The program returns the state and zero sums. Parameters are random, or, for
        given weights, arguments that the program donates. For a checkpoint, the program
        returns only the sums, because a second state beside the restored one would
        exceed the memory.
        """
        num_groups = len(self.placement.groups)
        state, sums = (jax.tree.map(_sharding, x) for x in (self.state, self.sums))
        if origin == "weights":
            init = functools.partial(self.trainer.init, num_groups=num_groups)
            take = jax.jit(init, donate_argnums=(0, 1), out_shardings=(state, sums))
            return take.lower(*self.state.model)
        make = functools.partial(self.trainer.init_random, num_groups=num_groups)
        if origin == "checkpoint":
            return jax.jit(lambda: make()[1], out_shardings=sums).lower()
        return jax.jit(make, out_shardings=(state, sums)).lower()

    def micro_step(self, program: Program, group: Group) -> Lowered:
        """Lowers the micro-step of a program for one group."""
        state = _abstract(self._shapes[0], group.state(self._shapes[0]))
        sums = _abstract(self._local_sums, group.sums(self._state_like_sums))
        batch = {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=group.batch)
            for name, array in batch_spec(self.trainer.model, program).items()
        }
        run = jax.jit(
            functools.partial(self.trainer.micro_step, program),
            donate_argnums=2,
            out_shardings=(jax.tree.map(_sharding, sums), group.replicated),
        )
        with sharded(group.mesh):
            return run.lower(state.step, state.model, sums, batch)

    def update(self) -> Lowered:
        """Lowers the update, the only program of a step in which groups communicate."""
        state, sums = self.state.without_frozen(), self.sums
        shardings = (jax.tree.map(_sharding, x) for x in (state, sums))
        update = jax.jit(
            self.trainer.update,
            donate_argnums=(0, 1),
            out_shardings=(*shardings, self.placement.replicated),
        )
        return update.lower(state, sums)

    def sampler(self, config: SampleConfig, group: Group, *, shift: float) -> Lowered:
        """Lowers the program that draws a sample, (model, text, seed) -> latent."""
        model = self.trainer.model
        sample = make_sampler(
            self.trainer.graphdef("none"),
            config,
            channels=model.channels,
            patch=model.patch,
            shift=shift,
        )
        state = _abstract(self._shapes[0], group.state(self._shapes[0]))
        text = jax.ShapeDtypeStruct(
            (model.num_text_tokens, model.text_dim),
            jnp.float32,
            sharding=group.replicated,
        )
        seed = jax.ShapeDtypeStruct((), jnp.int32, sharding=group.replicated)
        with sharded(group.mesh, split_batch=False):
            draw = jax.jit(sample, out_shardings=group.replicated)
            return draw.lower(state.model, text, seed)

    @functools.cached_property
    def idle_bytes(self) -> int:
        """Bytes per device of the state that a micro-step does not read."""
        beside = (self.state.opt_state, self.state.statistics)
        return bytes_per_device(beside)

    @functools.cached_property
    def _shapes(self) -> tuple[TrainState, Sums]:
        make = functools.partial(
            self.trainer.init_random, num_groups=len(self.placement.groups)
        )
        return jax.eval_shape(make)

    @functools.cached_property
    def _state_like_sums(self) -> Sums:
        """Shapes of the sums without their group axis, which shard like parameters."""
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self._shapes[1]
        )

    @functools.cached_property
    def _local_sums(self) -> Sums:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), self._shapes[1]
        )

    @functools.cached_property
    def _abstract(self) -> tuple[TrainState, Sums]:
        state, sums = self._shapes
        return (
            _abstract(state, self.placement.state(state)),
            _abstract(sums, self.placement.sums(self._state_like_sums)),
        )


def bytes_per_device(tree: Any) -> int:
    """Returns the bytes of abstract arrays on each device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _abstract(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        tree,
        shardings,
    )


def _sharding(leaf: jax.ShapeDtypeStruct) -> Any:
    return leaf.sharding
