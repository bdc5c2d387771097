"""The programs of a run, each ready to be compiled with its exact shapes."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.stages import Compiled, Lowered

from jaxload.config import Config
from jaxload.models import MMDiT, WanTransformer, make_model
from jaxload.parallel.mesh import batch_sharded, replicated
from jaxload.planning.plan import Plan
from jaxload.sampling.sampler import make_sampler
from jaxload.shapes.shape import Shape
from jaxload.training.loop import Programs
from jaxload.training.optimizer import learning_rate_schedule, make_optimizer
from jaxload.training.step import Sums, Trainer, TrainState

INIT, UPDATE, SAMPLE = "init", "update", "sample"

Origin = Literal["noise", "weights", "checkpoint"]
"""What the first state of a run is made of."""


def make_trainer(config: Config) -> Trainer:
    """The pure functions of a run."""
    graphdef, _ = nnx.split(nnx.eval_shape(lambda: _make_model(config)))
    return Trainer(
        graphdef=graphdef,
        optimizer=make_optimizer(config.optimizer),
        learning_rate=learning_rate_schedule(config.optimizer),
        flow=config.flow,
        seed=config.train.seed,
    )


def lowerings(
    config: Config,
    plan: Plan,
    mesh: Mesh,
    trainer: Trainer,
    *,
    origin: Origin,
) -> dict[str, Callable[[], Lowered]]:
    """Everything that runs on devices, by name: a bucket's program has its name."""
    everywhere = replicated(mesh)
    state, sums = _abstract_init(config, trainer, mesh)
    jit_update = jax.jit(
        trainer.update, donate_argnums=(0, 1), out_shardings=everywhere
    )
    named: dict[str, Callable[[], Lowered]] = {
        INIT: lambda: lower_init(config, trainer, mesh, origin),
        UPDATE: lambda: jit_update.lower(state, sums),
        SAMPLE: lambda: lower_sampler(config, trainer, state.model, mesh),
    }
    for bucket in plan.buckets:
        named[str(bucket)] = lambda bucket=bucket: lower_micro_step(
            config, trainer, mesh, bucket.shape, bucket.batch
        )
    return named


def lower_init(config: Config, trainer: Trainer, mesh: Mesh, origin: Origin) -> Lowered:
    """The program before the first step.

    It makes the state and the empty sums: of noise, or of the parameters that it is
    given, and takes. Of a checkpoint, which is read, it makes the sums alone: a state
    of its own would lie on the devices beside the one that is read.
    """
    everywhere = replicated(mesh)
    if origin == "weights":
        state = abstract_state(config, trainer, mesh)
        take = jax.jit(trainer.init, donate_argnums=(0, 1), out_shardings=everywhere)
        return take.lower(*state.model)
    if origin == "checkpoint":
        sums = jax.jit(lambda: _init(config, trainer)[1], out_shardings=everywhere)
        return sums.lower()
    return jax.jit(lambda: _init(config, trainer), out_shardings=everywhere).lower()


def lower_micro_step(
    config: Config, trainer: Trainer, mesh: Mesh, shape: Shape, batch: int
) -> Lowered:
    """The program of a bucket: `batch` samples of a shape on each replica."""
    state, sums = _abstract_init(config, trainer, mesh)
    micro_step = jax.jit(
        trainer.micro_step, donate_argnums=1, out_shardings=replicated(mesh)
    )
    return micro_step.lower(state, sums, _abstract_batch(config, mesh, shape, batch))


def init_state(config: Config, trainer: Trainer, mesh: Mesh) -> tuple[TrainState, Sums]:
    """The state and the empty sums before the first step, on the devices."""
    return jax.jit(lambda: _init(config, trainer), out_shardings=replicated(mesh))()


def lower_sampler(
    config: Config, trainer: Trainer, model: tuple[Any, Any], mesh: Mesh
) -> Lowered:
    """The program that draws the config's sample."""
    sampler = make_sampler(
        trainer.graphdef,
        config.sample,
        channels=config.model.channels,
        shift=config.flow.shift,
    )
    everywhere = replicated(mesh)
    text = jax.ShapeDtypeStruct(
        (config.model.num_text_tokens, config.model.text_dim),
        jnp.float32,
        sharding=everywhere,
    )
    seed = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    return jax.jit(sampler, out_shardings=everywhere).lower(model, text, seed)


def training_programs(compiled: Mapping[str, Compiled], plan: Plan) -> Programs:
    """The compiled programs that the loop calls."""
    return Programs(
        micro_steps=[compiled[str(bucket)] for bucket in plan.buckets],
        update=compiled[UPDATE],
    )


def abstract_state(config: Config, trainer: Trainer, mesh: Mesh) -> TrainState:
    """The training state's shapes, types and shardings, without its values."""
    return _abstract_init(config, trainer, mesh)[0]


def _abstract_init(
    config: Config, trainer: Trainer, mesh: Mesh
) -> tuple[TrainState, Sums]:
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh)),
        jax.eval_shape(lambda: _init(config, trainer)),
    )


def _init(config: Config, trainer: Trainer) -> tuple[TrainState, Sums]:
    return trainer.init(*split_trained(_make_model(config)))


def split_trained(model: nnx.Module) -> tuple[nnx.State, nnx.State]:
    """A model's parameters: those that are trained, and those that are not.

    Adapters are trained alone; a model without is trained whole.
    """
    params = nnx.state(model)
    adapters, rest = nnx.split_state(params, nnx.LoRAParam, ...)
    return (adapters, rest) if adapters else (rest, adapters)


def _make_model(config: Config) -> WanTransformer | MMDiT:
    return make_model(config.model, rngs=nnx.Rngs(config.train.seed))


def _abstract_batch(
    config: Config, mesh: Mesh, shape: Shape, batch: int
) -> dict[str, jax.ShapeDtypeStruct]:
    model = config.model
    size = batch * mesh.size
    leaves = {
        "latent": (
            (size, shape.frames, shape.height, shape.width, model.channels),
            jnp.bfloat16,
        ),
        "text": ((size, model.num_text_tokens, model.text_dim), jnp.bfloat16),
        "id": ((size,), jnp.int32),
    }
    return {
        name: jax.ShapeDtypeStruct(dims, dtype, sharding=batch_sharded(mesh))
        for name, (dims, dtype) in leaves.items()
    }
