"""Checks of model inputs, with one-line error messages."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxload.errors import InputError
from jaxload.models.embeddings import Grid
from jaxload.models.transformer_config import TransformerConfig


def check_latent(model: str, config: TransformerConfig, latent: jax.Array) -> None:
    """Checks that the shape of a batch of latents matches the config.

    Raises:
        InputError: The shape does not match; the message states what was expected.
    """
    if latent.ndim != 5:
        raise InputError(
            f"{model}: expected latents of shape [batch, frames, height, width, "
            f"channels], got {latent.shape}"
        )
    batch, *sizes, channels = latent.shape
    if batch < 1:
        raise InputError(f"{model}: expected 1 sample or more, got {latent.shape}")
    for name, size, patch in zip(
        ("frames", "height", "width"), sizes, config.patch, strict=True
    ):
        check_divides(f"{model}: latent {name}", size, patch)
    if channels != config.in_channels:
        raise InputError(
            f"{model}: expected latents of {config.in_channels} channels, got "
            f"{channels}; change the latents or the config"
        )


def check_inputs(
    model: str,
    config: TransformerConfig,
    tokens: jax.Array,
    grid: Grid,
    timestep: jax.Array,
    text: jax.Array,
) -> None:
    """Checks that the shapes of the inputs match the config.

    Raises:
        InputError: A shape does not match; the message states what was expected.
    """
    channels = math.prod(config.patch) * config.in_channels
    if tokens.ndim != 3 or 0 in tokens.shape or tokens.shape[2] != channels:
        raise InputError(
            f"{model}: expected patches of shape [batch, tokens, {channels}], got "
            f"{tokens.shape}"
        )
    batch, num_tokens, _ = tokens.shape
    if not isinstance(grid, tuple):
        check_shape(model, "grid", grid, (batch, 3))
    elif math.prod(grid) != num_tokens:
        raise InputError(
            f"{model}: expected the {math.prod(grid)} tokens of the grid {grid}, got "
            f"{num_tokens}"
        )
    check_shape(model, "timestep", timestep, (batch,))
    if text.ndim != 3 or text.shape[0] != batch or text.shape[2] != config.text_dim:
        raise InputError(
            f"{model}: expected text of shape [{batch}, tokens, {config.text_dim}], "
            f"got {text.shape}"
        )
    if not 1 <= text.shape[1] <= config.num_text_tokens:
        raise InputError(
            f"{model}: expected 1 to {config.num_text_tokens} text tokens, got "
            f"{text.shape[1]}; cut the text, or raise num_text_tokens"
        )


def check_config(model: str, config: object, expected: type) -> None:
    """Checks that a config is of the given type."""
    if not isinstance(config, expected):
        raise InputError(
            f"{model}: expected a {expected.__name__}, got a {type(config).__name__}"
        )


def check_divides(name: str, size: int, divisor: int) -> None:
    """Checks that a size is a positive multiple of a divisor."""
    if size < 1 or size % divisor:
        below, above = size // divisor * divisor, -(-size // divisor) * divisor
        nearest = [str(n) for n in dict.fromkeys((below, above)) if n] or [str(divisor)]
        raise InputError(
            f"{name} is {size}: expected a multiple of {divisor}; the nearest is "
            f"{' or '.join(nearest)}"
        )


def check_shape(
    model: str, name: str, array: jax.Array, expected: Sequence[int]
) -> None:
    """Checks that an array has the expected shape."""
    shape = jnp.shape(array)
    if shape != tuple(expected):
        raise InputError(
            f"{model}: expected {name} of shape {tuple(expected)}, got {shape}"
        )
