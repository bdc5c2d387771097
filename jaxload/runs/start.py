"""Initial state of a run: from given weights, random, or from its checkpoint."""

import jax
from flax import nnx
from jax.stages import Compiled

from jaxload.config import Config
from jaxload.console import Console, phase
from jaxload.errors import InputError
from jaxload.models import ModelConfig, family_of, weights
from jaxload.runs.workdir import WorkDir
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.intact import check_frozen, newest_intact
from jaxload.training.lowering import Lowering, Origin
from jaxload.training.step import Sums, TrainState, split_trained


def find_start(
    config: Config, workdir: WorkDir, console: Console
) -> tuple[Origin, int]:
    """Returns the source of the run's initial state, and the number of steps done.

    Checks all files of the checkpoint; if one is damaged, takes an earlier checkpoint.
    """
    done = newest_intact(workdir.checkpoints, console)
    if done is None:
        return "weights" if config.train.weights else "noise", 0
    if config.model.lora_rank:
        check_frozen(workdir.checkpoints, console)
    return "checkpoint", done


def check_start(config: Config, origin: Origin) -> None:
    """Refuses a model that cannot be trained, or weights of another model."""
    check_trainable(config, origin)
    if origin == "weights":
        try:
            weights.check(config.train.weights, config.model)
        except InputError as error:
            raise InputError(f"train.weights: {error}") from error


def check_trainable(config: Config, origin: Origin) -> None:
    """Refuses a model that cannot be trained from this origin."""
    _check_conditions(config.model)
    model = config.model
    if model.lora_rank and origin == "noise":
        raise InputError(
            f"model.lora_rank={model.lora_rank}: expected weights to adapt; set "
            "train.weights, or model.lora_rank=0 to train the whole model"
        )
    if model.param_dtype != "float32" and not model.lora_rank:
        raise InputError(
            f"model.param_dtype={model.param_dtype}: expected float32 to train the "
            "whole model: small updates would be lost; set model.param_dtype=float32"
        )


def _check_conditions(model: ModelConfig) -> None:
    """Refuses a model with inputs other than latents and text."""
    for name, expected in family_of(model).required_to_train(model).items():
        got = getattr(model, name)
        if got != expected:
            raise InputError(
                f"model.{name}={got}: expected {expected} to train, because datasets "
                f"hold only latents and text; set model.{name}={expected}"
            )


def begin(
    origin: Origin,
    done: int,
    init: Compiled,
    config: Config,
    lowering: Lowering,
    checkpoints: Checkpoints,
    console: Console,
) -> tuple[TrainState, Sums]:
    """Returns the initial state and zero sums, on the devices.

    Args:
        origin: Source of the state.
        done: Steps done: the checkpoint to restore, if it is the origin.
        init: Compiled `Lowering.init` of the same origin.
        config: Config of the run.
        lowering: Programs of the run.
        checkpoints: Checkpoints of the run.
        console: Shows progress.
    """
    if origin == "checkpoint":
        sums = init()
        return checkpoints.restore(done, lowering.state), sums
    given = load_start(config, lowering, console) if origin == "weights" else ()
    state, sums = init(*given)  # Donates the arrays of `given`.
    if jax.tree.leaves(state.frozen):
        with phase(console, "saving frozen parameters", 1) as advance:
            checkpoints.save_frozen(state)
            advance()
    return state, sums


def load_start(
    config: Config, lowering: Lowering, console: Console
) -> tuple[nnx.State, nnx.State]:
    """Reads the initial weights of a run; returns trained and frozen parameters."""
    like = nnx.merge_state(*lowering.state.model)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
    with phase(console, "loading weights", 1) as advance:
        model = weights.load(
            config.train.weights,
            config.model,
            shardings=shardings,
            rngs=nnx.Rngs(config.train.seed),
        )
        advance()
    return split_trained(model)
