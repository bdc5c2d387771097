"""Tests of LoRA adapters on models, in training and in exports."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxload.models import ModelConfig, WanConfig, weights
from tests.models.golden import largest_error
from tests.models.tiny import CONFIGS, call, inputs, make, normal, randomized


def with_lora(config: ModelConfig, **changes: Any) -> ModelConfig:
    return dataclasses.replace(config, lora_rank=3, **changes)


def adapters(model: nnx.Module) -> dict[str, jax.Array]:
    leaves = jax.tree.leaves_with_path(nnx.state(model, nnx.LoRAParam))
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


@pytest.fixture(scope="module", params=["wan", "mmdit"])
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return CONFIGS[request.param]


@pytest.fixture(scope="module")
def base(config: ModelConfig) -> Any:
    return randomized(make(config))


def adapted(base: Any, config: ModelConfig, *, trained: bool) -> Any:
    """Returns the base model with adapters, whose values are random if `trained`."""
    model = make(with_lora(config, lora_targets=("q", "mlp_in", "out")))
    nnx.update(model, nnx.state(base))
    if trained:
        state = nnx.state(model, nnx.LoRAParam)
        leaves, structure = jax.tree.flatten(state)
        leaves = [0.1 * normal(i, *leaf.shape) for i, leaf in enumerate(leaves)]
        nnx.update(model, jax.tree.unflatten(structure, leaves))
    return model


def test_an_untrained_adapter_changes_nothing(config: ModelConfig, base: Any):
    given = inputs(config)
    got = call(adapted(base, config, trained=False), given)
    assert largest_error(got, call(base, given)) < 1e-6


def test_the_export_is_the_model_with_its_adapters_in_it(
    config: ModelConfig, base: Any, tmp_path: Path
):
    model, given = adapted(base, config, trained=True), inputs(config)
    path = tmp_path / "merged.safetensors"
    weights.save(model, path)
    merged = weights.load(path, config)
    assert not adapters(merged)
    velocity = call(merged, given)
    assert largest_error(velocity, call(model, given)) < 1e-5
    assert np.abs(velocity - call(base, given)).max() > 1e-2


@pytest.mark.parametrize(
    ("targets", "count"),
    [(("q",), 2), (("q", "k", "v", "out"), 8), (("mlp_in", "mlp_out"), 2)],
)
def test_adapters_are_where_the_config_says(targets: tuple[str, ...], count: int):
    config = with_lora(CONFIGS["wan"], lora_targets=targets)
    assert isinstance(config, WanConfig)
    found = adapters(nnx.eval_shape(lambda: make(config)))
    # Each target has a pair of matrices, stacked over the layers.
    assert len(found) == 2 * count
    assert all(any(f"['{t}']" in name for t in targets) for name in found)
    assert all(leaf.shape[0] == config.depth for leaf in found.values())
    assert {min(leaf.shape[1:]) for leaf in found.values()} == {3}


def test_alpha_over_rank_is_how_much_they_count(tmp_path: Path):
    config = CONFIGS["wan"]
    base = randomized(make(config))
    given = inputs(config)
    one, two = (
        adapted(base, dataclasses.replace(config, lora_alpha=alpha), trained=True)
        for alpha in (6.0, 12.0)
    )
    adapter = one.blocks.mlp_in
    product = jnp.matmul(adapter.lora_a[...], adapter.lora_b[...])
    for model, alpha in ((one, 6.0), (two, 12.0)):
        weights.save(model, tmp_path / "merged.safetensors")
        merged: Any = weights.load(tmp_path / "merged.safetensors", config)
        added = merged.blocks.mlp_in.kernel[...] - base.blocks.mlp_in.kernel[...]
        np.testing.assert_allclose(added, product * (alpha / 3), atol=1e-6)
    assert np.abs(call(one, given) - call(two, given)).max() > 1e-3
