"""The programs of a run, each ready to be compiled with its exact shapes."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.stages import Compiled, Lowered

from jaxload.balance.plan import Plan
from jaxload.balance.shape import Shape
from jaxload.config import Config
from jaxload.models import MMDiT, WanTransformer, make_model
from jaxload.parallel.mesh import batch_sharded, replicated
from jaxload.training.loop import Programs
from jaxload.training.optimizer import learning_rate_schedule, make_optimizer
from jaxload.training.sampling import make_sampler
from jaxload.training.step import Sums, Trainer, TrainState

INIT, UPDATE, SAMPLE = "init", "update", "sample"


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
    from_weights: bool = False,
) -> dict[str, Callable[[], Lowered]]:
    """Everything that runs on devices, by name: a bucket's program has its name.

    The first one makes the state: of noise, or of the parameters that it is given.
    """
    everywhere = replicated(mesh)
    state, sums = _abstract_init(config, trainer, mesh)

    init = trainer.init if from_weights else lambda: _init(config, trainer)
    jit_init = jax.jit(init, out_shardings=everywhere)
    jit_update = jax.jit(
        trainer.update, donate_argnums=(0, 1), out_shardings=everywhere
    )
    named: dict[str, Callable[[], Lowered]] = {
        INIT: lambda: jit_init.lower(*(state.model if from_weights else ())),
        UPDATE: lambda: jit_update.lower(state, sums),
        SAMPLE: lambda: lower_sampler(config, trainer, state.model, mesh),
    }
    for bucket in plan.buckets:
        named[str(bucket)] = lambda bucket=bucket: lower_micro_step(
            config, trainer, mesh, bucket.shape, bucket.batch
        )
    return named


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
