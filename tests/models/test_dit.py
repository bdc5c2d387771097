"""Tests of jaxload.models.dit."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxload.errors import InputError
from jaxload.models import DiT, DiTConfig
from jaxload.models.dit import DiTBlock, _from_patches, _to_patches
from jaxload.testing import assert_trees_close

CONFIG = DiTConfig(
    width=32,
    depth=2,
    num_heads=2,
    mlp_width=64,
    text_dim=8,
    num_text_tokens=4,
    compute_dtype="float32",
)


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def randomized(model: nnx.Module) -> nnx.Module:
    """The model with every parameter drawn anew, since many start at zero."""
    graphdef, state = nnx.split(model)
    leaves, structure = jax.tree.flatten(state)
    leaves = [0.2 * normal(i, *leaf.shape) for i, leaf in enumerate(leaves)]
    return nnx.merge(graphdef, jax.tree.unflatten(structure, leaves))


@pytest.fixture(scope="module")
def model() -> nnx.Module:
    return randomized(DiT(CONFIG, rngs=nnx.Rngs(0)))


def inputs(batch: int = 2, shape: tuple[int, int, int] = (3, 4, 6)):
    sigma = jnp.linspace(0.1, 0.9, batch)
    return normal(1, batch, *shape, 16), sigma, normal(2, batch, 4, 8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_untrained_block_is_the_identity(dtype: str):
    config = dataclasses.replace(CONFIG, compute_dtype=dtype)
    block = DiTBlock(config, rngs=nnx.Rngs(0))
    x_BSD, text_BTD = normal(0, 2, 6, 32).astype(dtype), normal(1, 2, 4, 32)
    with jax.numpy_dtype_promotion("standard"):  # Flax's norms mix the two types.
        y_BSD = block(x_BSD, jnp.zeros((2, 6, 32)), text_BTD, jnp.zeros((6, 8)))
    np.testing.assert_array_equal(y_BSD, x_BSD)


def test_a_block_is_three_branches():
    block: Any = randomized(DiTBlock(CONFIG, rngs=nnx.Rngs(0)))
    x_BSD, time_BMD = normal(0, 2, 6, 32), normal(1, 2, 6, 32)
    text_BTD, angles_SR = normal(2, 2, 4, 32), normal(3, 6, 8)

    def norm(x_BSD, scale_B1D, shift_B1D):
        centred_BSD = x_BSD - x_BSD.mean(-1, keepdims=True)
        std_BS1 = jnp.sqrt(x_BSD.var(-1, keepdims=True) + 1e-6)
        return centred_BSD / std_BS1 * (1 + scale_B1D) + shift_B1D

    def of_all_samples(param_D):
        return jnp.broadcast_to(param_D[None, None], (2, 1, 32))

    modulation_BMD = time_BMD + block.modulation[None]
    shift1, scale1, gate1, shift2, scale2, gate2 = jnp.split(modulation_BMD, 6, axis=1)
    y_BSD = x_BSD + gate1 * block.attn(norm(x_BSD, scale1, shift1), angles_SR)
    text_scale, text_shift = map(of_all_samples, (block.text_scale, block.text_shift))
    y_BSD += block.text_attn(norm(y_BSD, text_scale, text_shift), text_BTD)
    h_BSI = nnx.gelu(block.mlp_in(norm(y_BSD, scale2, shift2)))
    y_BSD += gate2 * block.mlp_out(h_BSI)
    np.testing.assert_allclose(
        block(x_BSD, time_BMD, text_BTD, angles_SR), y_BSD, rtol=1e-4, atol=1e-4
    )


def test_an_untrained_model_predicts_zero():
    velocity = DiT(CONFIG, rngs=nnx.Rngs(0))(*inputs())
    assert velocity.shape == (2, 3, 4, 6, 16)
    assert not velocity.any()


def test_samples_of_a_batch_do_not_mix(model: nnx.Module):
    latent, sigma, text = inputs()
    both = model(latent, sigma, text)
    alone = model(latent[1:], sigma[1:], text[1:])
    assert_trees_close(both[1:], alone)


def test_every_input_matters(model: nnx.Module):
    latent, sigma, text = inputs()
    velocity = model(latent, sigma, text)
    for changed in (
        model(latent.at[:, 2, 3, 5].add(1.0), sigma, text),
        model(latent, sigma + 0.1, text),
        model(latent, sigma, text.at[:, 3].add(1.0)),
    ):
        # The first corner is far from every change, so all of it was attended to.
        assert np.abs(changed - velocity)[:, 0, 0, 0].max() > 1e-4


def test_position_matters(model: nnx.Module):
    latent, sigma, text = inputs()
    flipped = model(latent[:, ::-1], sigma, text)[:, ::-1]
    assert np.abs(flipped - model(latent, sigma, text)).max() > 1e-3


def test_depth_is_a_scan_over_different_blocks(model: nnx.Module):
    latent, sigma, text = inputs()
    graphdef, state = nnx.split(model)
    swapped = jax.tree.map(lambda x: x, state)
    swapped["blocks"] = jax.tree.map(lambda x: x[::-1], state["blocks"])
    other = nnx.merge(graphdef, swapped)(latent, sigma, text)
    assert np.abs(other - model(latent, sigma, text)).max() > 1e-3


def test_bfloat16_is_near_float32(model: nnx.Module):
    graphdef, _ = nnx.split(
        DiT(dataclasses.replace(CONFIG, compute_dtype="bfloat16"), rngs=nnx.Rngs(0))
    )
    with jax.numpy_dtype_promotion("standard"):  # Flax's norms mix the two types.
        half = nnx.merge(graphdef, nnx.state(model))(*inputs())
    full = model(*inputs())
    assert half.dtype == jnp.float32
    assert np.abs(half - full).mean() < 0.05 * np.abs(full).mean()


def test_every_parameter_gets_a_gradient(model: nnx.Module):
    graphdef, state = nnx.split(model)

    def loss(state):
        return jnp.square(nnx.merge(graphdef, state)(*inputs())).sum()

    grads = jax.grad(loss)(state)
    for path, leaf in jax.tree.leaves_with_path(grads):
        assert np.abs(leaf).max() > 0, jax.tree_util.keystr(path)


def test_patches_round_trip():
    latent = normal(0, 2, 3, 4, 6, 16)
    patches = _to_patches(latent)
    assert patches.shape == (2, 3 * 2 * 3, 64)
    np.testing.assert_array_equal(_from_patches(patches, latent.shape), latent)
    # A token holds one 2x2 square: the second is the next along the width.
    np.testing.assert_array_equal(
        patches[0, 1].reshape(2, 2, 16), latent[0, 0, :2, 2:4]
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("depth", 0, r"model.depth=0: expected 1 or more"),
        ("num_heads", 3, r"model.width=32 with num_heads=3: .* multiple of 6"),
        ("width", 30, r"model.width=30 with num_heads=2: .* multiple of 4"),
        ("width", 8, r"model.width=8 with num_heads=2: .* from 12 on"),
        ("num_text_tokens", -1, r"model.num_text_tokens=-1: expected 1 or more"),
    ],
)
def test_rejects_sizes_that_do_not_fit(field, value, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(CONFIG, **{field: value})
