"""What a run starts from: weights of others, adapters, or noise."""

import jax
from flax import nnx
from jax.sharding import Mesh
from rich.console import Console

from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.models import MMDiTConfig, ModelConfig, weights
from jaxload.progress import phase
from jaxload.training.programs import abstract_state, split_trained
from jaxload.training.step import Trainer


def check_start(config: Config, *, from_weights: bool) -> None:
    """Refuses a model that cannot be trained, or weights that are of another one."""
    _check_conditions(config.model)
    model = config.model
    if model.lora_rank and not config.train.weights:
        raise InputError(
            f"model.lora_rank={model.lora_rank}: expected weights to adapt; set "
            "train.weights, or model.lora_rank=0 to train the whole model"
        )
    if model.param_dtype != "float32" and not model.lora_rank:
        raise InputError(
            f"model.param_dtype={model.param_dtype}: expected float32 to train the "
            "whole model: small updates would be lost; set model.param_dtype=float32"
        )
    if from_weights:
        weights.check(config.train.weights, model)


def _check_conditions(model: ModelConfig) -> None:
    """Refuses a model that asks for more than latents and text."""
    if isinstance(model, MMDiTConfig):
        asked = {
            "guidance": (model.guidance, False),
            "pooled_dim": (model.pooled_dim, model.text_dim),
        }
    else:
        asked = {
            "condition_channels": (model.condition_channels, 0),
            "image_dim": (model.image_dim, 0),
        }
    for name, (got, expected) in asked.items():
        if got != expected:
            raise InputError(
                f"model.{name}={got}: expected {expected} to train: data sets hold "
                f"latents and text alone; set model.{name}={expected}"
            )


def load_start(
    config: Config, trainer: Trainer, mesh: Mesh, console: Console
) -> tuple[nnx.State, nnx.State]:
    """The parameters that a run starts from: trained ones, and frozen ones."""
    like = abstract_state(config, trainer, mesh).model
    shardings = jax.tree.map(lambda leaf: leaf.sharding, nnx.merge_state(*like))
    with phase(console, "loading weights", 1) as advance:
        model = weights.load(
            config.train.weights,
            config.model,
            shardings=shardings,
            rngs=nnx.Rngs(config.train.seed),
        )
        advance()
    return split_trained(model)
