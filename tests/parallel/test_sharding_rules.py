"""Tests of jaxload.parallel.sharding_rules with all models."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled

from jaxload.errors import InputError
from jaxload.models import ModelConfig, all_presets, axes, preset
from jaxload.models import make_model as make_model_of
from jaxload.parallel.mesh import make_mesh
from jaxload.parallel.sharding_rules import (
    METADATA,
    RULES,
    param_shardings,
    rules_on,
    sharded,
)
from jaxload.training.config import OptimizerConfig
from jaxload.training.optimizer import make_optimizer

CUTS = ("fsdp", "tensor")


def make_model(config: ModelConfig) -> nnx.Module:
    return make_model_of(config, rngs=nnx.Rngs(0))


def abstract_params(config: ModelConfig) -> nnx.State:
    return nnx.state(nnx.eval_shape(lambda: make_model(config)))


def variables(state: nnx.State) -> list[tuple[str, nnx.Variable]]:
    leaves = jax.tree.leaves_with_path(
        state, is_leaf=lambda x: isinstance(x, nnx.Variable)
    )
    return [(jax.tree_util.keystr(path), variable) for path, variable in leaves]


def specs(config: ModelConfig, mesh: Mesh) -> dict[str, P]:
    shardings = param_shardings(abstract_params(config), mesh)
    return {path: v.get_value().spec for path, v in variables(shardings)}


def abstract_mesh(**sizes: int) -> Any:
    """Returns a mesh without devices."""
    return jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes))


# Names.


def documented_names() -> set[str]:
    """Returns the axis names in the table of models/axes.py."""
    rows = re.findall(r"^\| ([a-z_, ]+) \|", axes.__doc__ or "", re.M)
    return {name for row in rows for name in row.split(", ")} - {"name"}


def with_lora(config: ModelConfig) -> ModelConfig:
    return dataclasses.replace(config, lora_rank=4)


@pytest.mark.parametrize("adapt", [lambda c: c, with_lora], ids=["whole", "lora"])
@pytest.mark.parametrize("name", all_presets())
def test_every_axis_of_every_parameter_has_a_known_name(name: str, adapt):
    found = variables(abstract_params(adapt(preset(name))))
    assert found
    for path, variable in found:
        names = variable.get_metadata()[METADATA]
        assert len(names) == len(variable.get_value().shape), path
        assert set(names) <= documented_names(), path


def test_rules_and_table_name_the_same_axes():
    assert set(RULES) == documented_names()


def test_an_unknown_name_is_refused():
    state = nnx.State({"w": axes.param(jnp.zeros((2, 2)), "embed", "x")})
    with pytest.raises(InputError, match=r"\['w'\].*got x; add a rule"):
        param_shardings(state, make_mesh(jax.devices(), fsdp=2))


def test_too_few_names_are_refused():
    state = nnx.State({"w": axes.param(jnp.zeros((2, 2)), "embed")})
    with pytest.raises(InputError, match=r"a name for each axis, got embed"):
        param_shardings(state, make_mesh(jax.devices(), fsdp=2))


# Meshes.


def test_a_mesh_of_another_size_is_refused():
    with pytest.raises(InputError, match=r"number of devices, 2, got 3"):
        make_mesh(jax.devices(), tensor=3)


def test_axes_that_cut_nothing_are_dropped():
    mesh = make_mesh(jax.devices(), fsdp=2)
    assert rules_on(mesh)["batch"] == ("fsdp",)
    assert rules_on(mesh)["heads"] is None
    assert rules_on(Mesh(np.array(jax.devices()), ("replica",)))["embed"] is None


# Parameters.


def test_fsdp_cuts_the_rows_of_every_matrix():
    found = specs(preset("wan2.1-t2v-14b"), abstract_mesh(fsdp=8))
    for path, spec in found.items():
        matrix = "kernel" in path
        rows = 1 if "blocks" in path else 0
        expected: list[str | None] = [None] * len(spec)
        if matrix:
            expected[rows] = "fsdp"
        assert spec == P(*expected), path


def test_tensor_cuts_heads_and_mlp():
    found = specs(preset("wan2.1-t2v-14b"), abstract_mesh(fsdp=2, tensor=4))
    block = "['blocks']"
    attention = f"{block}['self_attention']"
    assert found[f"{attention}['q']['kernel']"] == P(None, "fsdp", "tensor")
    assert found[f"{attention}['q']['bias']"] == P(None, "tensor")
    assert found[f"{attention}['q_norm']['scale']"] == P(None, "tensor")
    assert found[f"{attention}['out']['kernel']"] == P(None, ("tensor", "fsdp"), None)
    assert found[f"{attention}['out']['bias']"] == P(None, None)
    assert found[f"{block}['mlp_in']['kernel']"] == P(None, "fsdp", "tensor")
    assert found[f"{block}['mlp_out']['kernel']"] == P(None, ("tensor", "fsdp"), None)
    assert found[f"{block}['modulation']"] == P(None, None, None)


def test_what_does_not_divide_stays_whole():
    found = specs(preset("wan-tiny"), abstract_mesh(fsdp=5, tensor=3))
    assert all(set(spec) <= {None} for spec in found.values())


def test_the_optimizers_state_lies_as_its_parameters():
    params = abstract_params(preset("wan-tiny"))
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-3))
    mesh = make_mesh(jax.devices(), fsdp=2)
    of_params = jax.tree.leaves(param_shardings(params, mesh))
    state = param_shardings(jax.eval_shape(optimizer.init, params), mesh)
    leaves = jax.tree.leaves(state)
    counts = [leaf for leaf in leaves if leaf.spec == P()]
    assert [leaf for leaf in leaves if leaf.spec != P()] == 2 * of_params
    assert 1 <= len(counts) <= 2


# Results.


def inputs(config: ModelConfig, batch: int = 2) -> tuple[jax.Array, ...]:
    keys = jax.random.split(jax.random.key(1), 2)
    latent = jax.random.normal(keys[0], (batch, 2, 4, 8, config.channels))
    text = jax.random.normal(keys[1], (batch, config.num_text_tokens, config.text_dim))
    return latent, jnp.linspace(100.0, 900.0, batch), text


def value_and_grads(graphdef: nnx.GraphDef, params: nnx.State, *arrays: jax.Array):
    def loss(params):
        y = nnx.merge(graphdef, params)(*arrays)
        return jnp.square(y - 0.5).mean(), y

    (_, y), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return y, grads


def num_flops(compiled: Compiled) -> float:
    """Returns XLA's FLOP count of one device."""
    analysis = compiled.cost_analysis()
    assert analysis is not None
    return analysis["flops"]


@pytest.fixture(scope="module", params=["wan-tiny", "mmdit-tiny"])
def on_one_device(request: pytest.FixtureRequest):
    """Runs a model on one device; returns parameters, inputs, outputs and FLOPs."""
    config = dataclasses.replace(preset(request.param), remat="attention")
    graphdef, params = nnx.split(make_model(config))
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    leaves = [
        leaf + 0.1 * jax.random.normal(key, leaf.shape)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    params, arrays = jax.tree.unflatten(structure, leaves), inputs(config)
    run = jax.jit(value_and_grads, static_argnums=0)
    compiled = run.lower(graphdef, params, *arrays).compile()
    return graphdef, params, arrays, compiled(params, *arrays), num_flops(compiled)


@pytest.mark.parametrize("axis", CUTS)
def test_a_cut_model_gives_the_same(on_one_device, axis: str):
    graphdef, params, arrays, expected, one_device_flops = on_one_device
    mesh = make_mesh(jax.devices(), **{axis: 2})
    shardings = param_shardings(params, mesh)
    params = jax.device_put(params, shardings)
    arrays = jax.device_put(arrays, NamedSharding(mesh, P("fsdp")))
    whole = NamedSharding(mesh, P())
    with sharded(mesh):
        run = jax.jit(
            value_and_grads, static_argnums=0, out_shardings=(whole, shardings)
        )
        compiled = run.lower(graphdef, params, *arrays).compile()
    y, grads = compiled(params, *arrays)
    assert num_flops(compiled) < 0.8 * one_device_flops
    np.testing.assert_allclose(y, expected[0], rtol=1e-4, atol=1e-5)
    # Relative to the largest gradient, since gradients of key biases are nearly zero.
    size = max(float(jnp.abs(want).max()) for want in jax.tree.leaves(expected[1]))
    for (path, grad), want in zip(
        jax.tree.leaves_with_path(grads), jax.tree.leaves(expected[1]), strict=True
    ):
        np.testing.assert_allclose(
            grad,
            want,
            rtol=1e-4,
            atol=1e-6 * size,
            err_msg=jax.tree_util.keystr(path),
        )
