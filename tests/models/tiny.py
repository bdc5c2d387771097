"""Small models with random parameters, and inputs for them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxload.models import ModelConfig, family_of, make_model, preset

CONFIGS: dict[str, ModelConfig] = {
    "wan": preset("wan-tiny"),
    "wan-image": dataclasses.replace(
        preset("wan-tiny"), condition_channels=20, image_dim=10, num_image_positions=4
    ),
    "mmdit": dataclasses.replace(preset("mmdit-tiny"), guidance=True, pooled_dim=8),
}


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def make(config: ModelConfig) -> Any:
    """Returns a freshly initialized model."""
    return make_model(config, rngs=nnx.Rngs(0))


def randomized(module: nnx.Module, size: float = 0.2) -> Any:
    """Redraws every parameter at random, since many start at zero."""
    graphdef, state = nnx.split(module)
    leaves, structure = jax.tree.flatten(state)
    leaves = [size * normal(i, *leaf.shape) for i, leaf in enumerate(leaves)]
    return nnx.merge(graphdef, jax.tree.unflatten(structure, leaves))


def inputs(
    config: ModelConfig,
    batch: int = 2,
    shape: tuple[int, int, int] = (3, 4, 6),
    num_text_tokens: int | None = None,
) -> dict[str, jax.Array]:
    """Returns all inputs of a model of the config, by name."""
    num_text_tokens = num_text_tokens or config.num_text_tokens
    given = {
        "latent_BFHWC": normal(1, batch, *shape, config.in_channels),
        "timestep_B": jnp.linspace(100.0, 900.0, batch),
        "text_BTE": normal(2, batch, num_text_tokens, config.text_dim),
    }
    extra = family_of(config).extra_inputs(config)
    if "image" in extra:
        given["image"] = normal(3, batch, *extra["image"])
    if "pooled" in extra:
        given["text_lengths"] = 3 + jnp.arange(batch, dtype=jnp.int32)
        given["pooled"] = normal(4, batch, *extra["pooled"])
        given["guidance"] = jnp.linspace(1000.0, 6000.0, batch)
    return given


def call(model: Any, given: dict[str, jax.Array]) -> jax.Array:
    """Calls a model under jit, since a scan of blocks is compiled anyway."""
    graphdef, state = nnx.split(model)

    @jax.jit
    def forward(state, given):
        return nnx.merge(graphdef, state)(**given)

    return forward(state, given)
