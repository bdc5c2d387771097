"""Tests of rows of different lengths in one batch: a row equals its sample alone."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxload.models import ModelConfig
from jaxload.models.embeddings import to_patches
from jaxload.models.mmdit import blocks as mmdit_blocks
from jaxload.models.wan import blocks as wan_blocks
from jaxload.ops import attention
from tests.models.tiny import CONFIGS, inputs, make, normal, randomized

GRIDS = [(1, 1, 1), (5, 1, 2), (3, 2, 3)]
NUM_TOKENS = max(map(math.prod, GRIDS))
KINDS = ["wan", "mmdit"]

pytestmark = pytest.mark.slow


@functools.cache
def config_of(kind: str, **changes: Any) -> ModelConfig:
    """Returns a small config with adapters, whose gradients are compared as well."""
    return dataclasses.replace(CONFIGS[kind], lora_rank=2, **changes)


@functools.cache
def state_of(kind: str) -> nnx.State:
    return nnx.state(randomized(make(config_of(kind))))


def model_of(config: ModelConfig, state: nnx.State) -> Any:
    return nnx.merge(nnx.split(nnx.eval_shape(lambda: make(config)))[0], state)


def samples(config: ModelConfig) -> tuple[list[jax.Array], list[jax.Array], dict]:
    """Returns tokens and a target of each sample, and the other inputs of all."""
    given = inputs(config, batch=len(GRIDS))
    del given["latent_BFHWC"]
    tokens, targets = [], []
    for i, grid in enumerate(GRIDS):
        shape = [n * step for n, step in zip(grid, config.patch, strict=True)]
        latent = normal(10 + i, 1, *shape, config.in_channels)
        tokens.append(to_patches(latent, config.patch))
        width = math.prod(config.patch) * config.channels
        targets.append(normal(20 + i, 1, math.prod(grid), width))
    return tokens, targets, given


def rows_of(arrays: list[jax.Array]) -> jax.Array:
    """Pads arrays `[1, L, P]` with zeros to one array `[B, S, P]`."""
    widths = [((0, 0), (0, NUM_TOKENS - x.shape[1]), (0, 0)) for x in arrays]
    return jnp.concatenate([jnp.pad(x, w) for x, w in zip(arrays, widths, strict=True)])


def own_means(errors_BSP: jax.Array) -> jax.Array:
    """Returns the mean over each row's own elements."""
    is_own_BS1 = ~is_padding()[..., None]
    lengths_B = jnp.array([math.prod(grid) for grid in GRIDS], jnp.float32)
    totals_B = jnp.where(is_own_BS1, errors_BSP, 0.0).sum(axis=(1, 2))
    return totals_B / (lengths_B * errors_BSP.shape[2])


def is_padding() -> jax.Array:
    """Returns which tokens of the batch are padding, `[B, S]`."""
    lengths_B = jnp.array([math.prod(grid) for grid in GRIDS])
    return jnp.arange(NUM_TOKENS)[None] >= lengths_B[:, None]


@functools.cache
def alone(kind: str) -> tuple[jax.Array, Any]:
    """Returns the loss of each sample, and the gradients of their sum, in float32."""
    config = config_of(kind)
    tokens, targets, given = samples(config)

    def total(state: nnx.State) -> tuple[jax.Array, jax.Array]:
        model, found = model_of(config, state), []
        for i, grid in enumerate(GRIDS):
            one = {name: x[i : i + 1] for name, x in given.items()}
            velocity = model.velocity(tokens[i], grid, **one)
            found.append(jnp.square(velocity - targets[i]).mean())
        return sum(found, jnp.zeros(())), jnp.stack(found)

    run = jax.jit(jax.value_and_grad(total, has_aux=True))
    (_, losses_B), gradients = run(state_of(kind))
    return losses_B, gradients


@functools.cache
def program(kind: str, dtype: str = "float32", remat: str = "none") -> Any:
    """Compiles the losses and gradients of all samples as rows of one batch.

    The arguments are the state, the padding of the tokens, and the values that replace
    the padding after the patch embedding.
    """
    config = config_of(kind, compute_dtype=dtype, remat=remat)
    tokens, targets, given = samples(config)
    tokens_BSP, target_BSP = rows_of(tokens), rows_of(targets)
    is_padding_BS1 = is_padding()[..., None]

    def total(state: nnx.State, padding: float, value: float) -> Any:
        model = model_of(config, state)
        embed = model.patch_in
        model.patch_in = lambda x: jnp.where(is_padding_BS1, value, embed(x))
        padded_BSP = jnp.where(is_padding_BS1, padding, tokens_BSP)
        grid = jnp.array(GRIDS, jnp.int32)
        velocity = model.velocity(padded_BSP, grid, **given)
        losses_B = own_means(jnp.square(velocity - target_BSP))
        return losses_B.sum(), losses_B

    return jax.jit(jax.value_and_grad(total, has_aux=True))


def together(
    kind: str, *options: str, padding: float = 0.0, value: float = 0.0
) -> tuple[jax.Array, Any]:
    """Returns the losses of the rows, and the gradients of their sum."""
    run = program(kind, *options)
    (_, losses_B), gradients = run(state_of(kind), padding, value)
    return losses_B, gradients


def assert_equal_samples(got: Any, expected: Any, tolerance: float) -> None:
    """Compares gradients relative to each tensor's largest value."""
    scale = max(np.abs(x).max() for x in jax.tree.leaves(expected[1]))
    np.testing.assert_allclose(got[0], expected[0], rtol=tolerance, atol=tolerance)
    for (path, x), y in zip(
        jax.tree.leaves_with_path(got[1]), jax.tree.leaves(expected[1]), strict=True
    ):
        # A bias of all keys changes no softmax: its gradient is rounding alone.
        largest = np.abs(y).max()
        largest = scale if largest < 1e-6 * scale else largest
        error = np.abs(np.asarray(x, np.float32) - np.asarray(y, np.float32)).max()
        assert error <= 10 * tolerance * largest, jax.tree_util.keystr(path)


@pytest.mark.parametrize("remat", ["none", "attention", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_equals_its_sample_alone(kind: str, remat: str):
    assert_equal_samples(together(kind, "float32", remat), alone(kind), 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_in_bfloat16_is_near_its_sample_alone(kind: str):
    # Alone, samples in bfloat16 differ as much from those in float32.
    assert_equal_samples(together(kind, "bfloat16"), alone(kind), 2e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_in_padded_input_never_leaks(kind: str):
    assert num_different(together(kind), together(kind, padding=math.nan)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_values_in_padded_rows_change_no_bit(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    assert num_different(together(kind), together(kind, value=-3e4)) == 0
    # Control: without the lengths of keys, other rows attend to the padding.
    for blocks in (wan_blocks, mmdit_blocks):
        monkeypatch.setattr(blocks, "attention", ignore_lengths)
    unmasked = program.__wrapped__(kind)
    state = state_of(kind)
    assert num_different(unmasked(state, 0.0, 0.0), unmasked(state, 0.0, -3e4)) > 10


def num_different(one: Any, other: Any) -> int:
    """Counts the arrays of two trees that differ in any bit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return sum(not np.array_equal(x, y) for x, y in pairs)


def ignore_lengths(*args: Any, key_lengths: Any = None, **options: Any) -> jax.Array:
    return attention(*args, **options)
