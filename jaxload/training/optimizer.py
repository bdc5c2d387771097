"""AdamW with warm-up and clipping."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from jaxload.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How gradients become updates."""

    learning_rate: float
    """After warm-up; constant from there on."""

    num_warmup_steps: int = 0
    """Steps over which the rate rises from zero."""

    weight_decay: float = 0.01
    """Of AdamW; pulls matrices towards zero, not biases, norms and modulations."""

    beta1: float = 0.9
    """Memory of the gradient's mean."""

    beta2: float = 0.99
    """Memory of the gradient's square."""

    max_grad_norm: float = 1.0
    """Gradients of a larger norm are scaled down to it."""

    def __post_init__(self):
        for name in ("learning_rate", "max_grad_norm"):
            if getattr(self, name) <= 0:
                raise InputError(
                    f"optimizer.{name}={getattr(self, name)}: expected more than 0"
                )
        for name in ("num_warmup_steps", "weight_decay"):
            if getattr(self, name) < 0:
                raise InputError(
                    f"optimizer.{name}={getattr(self, name)}: expected 0 or more"
                )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"optimizer.{name}={getattr(self, name)}: expected 0 or more and "
                    "less than 1"
                )


def learning_rate_schedule(config: OptimizerConfig) -> optax.Schedule:
    """The rate at each step; the first step of a warm-up already moves."""
    rate, warmup = config.learning_rate, config.num_warmup_steps
    return lambda step: rate * jnp.minimum((step + 1) / (warmup + 1), 1.0)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """AdamW behind clipping by the global norm."""
    chain = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adamw(
            learning_rate_schedule(config),
            b1=config.beta1,
            b2=config.beta2,
            weight_decay=config.weight_decay,
            mask=_decayed,
        ),
    )

    def update(updates, state, params=None):
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes ints and floats.
            return chain.update(updates, state, params)

    return optax.GradientTransformation(chain.init, update)


def _decayed(params: optax.Params) -> optax.Params:
    """Matrices decay; biases, norms and modulations do not."""
    # By name: parameters of stacked blocks have one axis more than they are used with.
    return jax.tree.map_with_path(
        lambda path, _: any(
            name in jax.tree_util.keystr(path) for name in ("kernel", "lora_")
        ),
        params,
    )
