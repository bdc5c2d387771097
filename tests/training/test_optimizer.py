"""Tests of jaxload.training.optimizer."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from jaxload import config as config_lib
from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.models import ModelConfig, make_model, preset
from jaxload.parallel.sharding_rules import param_shardings
from jaxload.testing import assert_trees_close
from jaxload.training.config import OptimizerConfig, ParamGroup
from jaxload.training.optimizer import (
    check_param_groups,
    learning_rate_schedule,
    make_optimizer,
    param_group_of,
    param_name,
)

CONFIG = OptimizerConfig(learning_rate=0.1, num_warmup_steps=4, weight_decay=0.5)
GROUPS = (
    ParamGroup(pattern="head.bias", learning_rate=0.3),
    ParamGroup(pattern="head.*", weight_decay=0.25),
    ParamGroup(pattern="*.lora_?", learning_rate=0.05, weight_decay=2.0),
    ParamGroup(pattern="text.*", learning_rate=0.0),
)
GROUPED = dataclasses.replace(CONFIG, groups=GROUPS)
# Learning rate and weight decay of each parameter of PARAMS with GROUPED.
EXPECTED = {
    "blocks.q.kernel": (0.1, 0.5),
    "blocks.q.lora_a": (0.05, 2.0),
    "blocks.norm.scale": (0.1, 0.0),
    "head.bias": (0.3, 0.0),
    "head.kernel": (0.1, 0.25),
    "text.kernel": (0.0, 0.5),
}
SHAPES = {
    "blocks": {
        "q": {"kernel": (2, 3, 4), "lora_a": (2, 3, 1)},
        "norm": {"scale": (2, 4)},
    },
    "head": {"bias": (5,), "kernel": (4, 5)},
    "text": {"kernel": (3, 3)},
}


def random_tree(seed: int, scale: float = 1.0) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(scale * rng.normal(size=shape), jnp.float32),
        SHAPES,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def gradients(num_steps: int) -> list[Any]:
    """Returns gradients, only some of which exceed the clipping norm."""
    scales = (3.0, 0.01, 0.1, 10.0, 0.02)
    return [random_tree(7 + i, scales[i % 5]) for i in range(num_steps)]


def by_name(tree: Any) -> dict[str, Any]:
    return {param_name(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def as_float64(tree: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf, np.float64) for name, leaf in by_name(tree).items()}


def train(optimizer: optax.GradientTransformation, num_steps: int) -> list[Any]:
    """Returns the parameters after each step of a compiled update."""
    params = random_tree(0)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    found = []
    for grads in gradients(num_steps):
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
        found.append(params)
    return found


def reference_adamw(
    config: OptimizerConfig, num_steps: int
) -> list[dict[str, np.ndarray]]:
    """Runs AdamW as in its paper, in float64, with the rates and decays in EXPECTED."""
    params = as_float64(random_tree(0))
    mu = {name: np.zeros_like(p) for name, p in params.items()}
    nu = {name: np.zeros_like(p) for name, p in params.items()}
    found = []
    for step, grads in enumerate(map(as_float64, gradients(num_steps)), start=1):
        norm = np.sqrt(sum(np.square(g).sum() for g in grads.values()))
        clip = min(1.0, config.max_grad_norm / norm)
        warm_up = min(step / (config.num_warmup_steps + 1), 1.0)
        for name, (rate, decay) in EXPECTED.items():
            g = clip * grads[name]
            mu[name] = config.beta1 * mu[name] + (1 - config.beta1) * g
            nu[name] = config.beta2 * nu[name] + (1 - config.beta2) * g**2
            mu_hat = mu[name] / (1 - config.beta1**step)
            nu_hat = nu[name] / (1 - config.beta2**step)
            direction = mu_hat / (np.sqrt(nu_hat) + 1e-8) + decay * params[name]
            params[name] = params[name] - warm_up * rate * direction
        found.append(dict(params))
    return found


def abstract_params(config: ModelConfig, kind: type[nnx.Param] = nnx.Param) -> Any:
    model = nnx.eval_shape(lambda: make_model(config, rngs=nnx.Rngs(0)))
    return nnx.state(model, kind)


def test_warm_up_rises_and_stays():
    rate = learning_rate_schedule(CONFIG)
    rates = [np.asarray(rate(jnp.int32(step))) for step in range(7)]
    np.testing.assert_allclose(
        rates, [0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1], rtol=1e-6
    )


def test_only_matrices_decay():
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones((3, 2))}
    optimizer = make_optimizer(CONFIG)
    zeros = {"kernel": jnp.zeros((2, 2)), "bias": jnp.zeros((3, 2))}
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    leaves = jax.tree.leaves(optax.apply_updates(params, updates))
    np.testing.assert_array_equal(leaves[0], np.ones((3, 2)))  # bias
    np.testing.assert_allclose(leaves[1], np.full((2, 2), 1 - 0.02 * 0.5))  # kernel


def test_large_gradients_are_clipped():
    params = {"kernel": jnp.zeros(4)}
    config = dataclasses.replace(CONFIG, weight_decay=0.0)
    optimizer = make_optimizer(config)
    state = optimizer.init(params)
    large, _ = optimizer.update({"kernel": jnp.full(4, 100.0)}, state, params)
    larger, _ = optimizer.update({"kernel": jnp.full(4, 1e6)}, state, params)
    np.testing.assert_allclose(*map(jax.tree.leaves, (large, larger)), rtol=1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0.0),
        ("max_grad_norm", -1.0),
        ("num_warmup_steps", -1),
        ("beta2", 1.0),
    ],
)
def test_rejects_values_out_of_range(field, value):
    with pytest.raises(InputError, match=f"optimizer.{field}={value}: expected"):
        dataclasses.replace(CONFIG, **{field: value})


# Without groups.


def plain_adamw(config: OptimizerConfig) -> optax.GradientTransformation:
    """Returns AdamW built only from optax."""

    def is_decayed(params: Any) -> Any:
        return jax.tree.map_with_path(
            lambda path, _: any(
                part in param_name(path) for part in ("kernel", "lora_")
            ),
            params,
        )

    chain = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adamw(
            learning_rate_schedule(config),
            b1=config.beta1,
            b2=config.beta2,
            weight_decay=config.weight_decay,
            mask=is_decayed,
        ),
    )

    def update(updates, state, params=None):
        with jax.numpy_dtype_promotion("standard"):
            return chain.update(updates, state, params)

    return optax.GradientTransformation(chain.init, update)


@pytest.mark.parametrize("weight_decay", [0.5, 0.0])
def test_without_groups_every_bit_is_that_of_optax(weight_decay: float):
    config = dataclasses.replace(CONFIG, weight_decay=weight_decay)
    found = train(make_optimizer(config), 7)
    expected = train(plain_adamw(config), 7)
    for leaf, expected_leaf in zip(
        *map(jax.tree.leaves, (found, expected)), strict=True
    ):
        np.testing.assert_array_equal(leaf, expected_leaf)


@pytest.mark.parametrize("config", [CONFIG, GROUPED], ids=["plain", "groups"])
def test_the_state_has_the_paths_of_optax(config: OptimizerConfig):
    def paths(optimizer: optax.GradientTransformation) -> list[Any]:
        leaves = jax.tree.leaves_with_path(optimizer.init(random_tree(0)))
        return [(path, leaf.shape, leaf.dtype) for path, leaf in leaves]

    assert paths(make_optimizer(config)) == paths(plain_adamw(config))


# Groups.


def test_groups_have_their_own_rates_and_decays():
    for found, expected in zip(
        train(make_optimizer(GROUPED), 5), reference_adamw(GROUPED, 5), strict=True
    ):
        assert_trees_close(by_name(found), expected)


def test_the_first_group_that_matches_wins():
    resolved = {name: param_group_of(GROUPED, name) for name in EXPECTED}
    assert {name: group.pattern for name, group in resolved.items()} == {
        "blocks.q.kernel": "*",
        "blocks.q.lora_a": "*.lora_?",
        "blocks.norm.scale": "*",
        "head.bias": "head.bias",
        "head.kernel": "head.*",
        "text.kernel": "text.*",
    }
    assert resolved["head.bias"].learning_rate == 0.3
    assert resolved["head.bias"].weight_decay == 0.5  # The section's.
    swapped = dataclasses.replace(CONFIG, groups=(GROUPS[1], GROUPS[0]))
    assert param_group_of(swapped, "head.bias").learning_rate == 0.1


def test_a_rate_of_zero_freezes():
    start, end = by_name(random_tree(0)), by_name(train(make_optimizer(GROUPED), 5)[-1])
    for name, (rate, _) in EXPECTED.items():
        changed = np.any(np.asarray(start[name]) != np.asarray(end[name]))
        assert changed == (rate > 0), name


def test_adapters_decay_in_groups_too():
    config = dataclasses.replace(preset("wan-tiny"), lora_rank=2)
    params = nnx.state(make_model(config, rngs=nnx.Rngs(0)), nnx.LoRAParam)
    params = jax.tree.map(jnp.ones_like, params)
    group = ParamGroup(pattern="*.lora_b", learning_rate=0.2, weight_decay=0.25)
    optimizer = make_optimizer(
        OptimizerConfig(learning_rate=0.1, weight_decay=0.5, groups=(group,))
    )
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    for name, update in by_name(updates).items():
        expected = -0.2 * 0.25 if name.endswith("lora_b") else -0.1 * 0.5
        np.testing.assert_allclose(update, expected, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("wan-tiny", {"blocks.self_attention.q.kernel", "blocks.modulation"}),
        ("mmdit-tiny", {"double_blocks.video.k_norm.scale", "refiner.time_in.bias"}),
    ],
)
def test_names_are_dotted(name: str, names: set[str]):
    params = abstract_params(preset(name))
    assert names < by_name(params).keys()
    variables = jax.tree.leaves_with_path(
        params, is_leaf=lambda x: isinstance(x, nnx.Variable)
    )
    assert [param_name(path) for path, _ in variables] == list(by_name(params))


def test_moments_of_a_group_are_sharded_as_its_parameters():
    params = abstract_params(preset("wan-tiny"))
    group = ParamGroup(pattern="blocks.*.kernel", learning_rate=1e-4)
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-3, groups=(group,)))
    mesh = Mesh(np.array(jax.devices()), ("fsdp",))
    of_params = by_name(param_shardings(params, mesh))
    state = jax.eval_shape(optimizer.init, params)
    updates, after = jax.eval_shape(optimizer.update, params, state, params)
    assert by_name(param_shardings(updates, mesh)) == of_params
    for opt_state in (state, after):
        _, (adam, _, _) = param_shardings(opt_state, mesh)
        assert by_name(adam.mu) == of_params
        assert by_name(adam.nu) == of_params
    kernel = of_params["blocks.self_attention.q.kernel"]
    assert kernel.spec == PartitionSpec(None, "fsdp", None)


# Patterns.


def test_a_pattern_without_parameters_names_the_nearest():
    group = ParamGroup(pattern="*.self_atention.q.kernal", learning_rate=0.0)
    config = dataclasses.replace(CONFIG, groups=(group,))
    params = abstract_params(preset("wan-tiny"))
    message = (
        r"optimizer\.groups, pattern '\*\.self_atention\.q\.kernal': .* no match; "
        r"nearest: blocks\.self_attention\.q\.kernel, "
    )
    with pytest.raises(InputError, match=message):
        check_param_groups(config, params)
    with pytest.raises(InputError, match=message):
        jax.eval_shape(make_optimizer(config).init, params)


def test_parameters_that_are_not_trained_match_nothing():
    model = dataclasses.replace(preset("wan-tiny"), lora_rank=2)
    config = dataclasses.replace(CONFIG, groups=(ParamGroup(pattern="*.q.kernel"),))
    check_param_groups(config, abstract_params(model))
    with pytest.raises(InputError, match=r"no match; nearest: blocks\.\S+\.lora_"):
        check_param_groups(config, abstract_params(model, nnx.LoRAParam))


def test_a_pattern_behind_a_wider_one_is_refused():
    groups = (ParamGroup(pattern="head.*"), ParamGroup(pattern="head.bias"))
    config = dataclasses.replace(CONFIG, groups=groups)
    with pytest.raises(InputError, match=r"'head\.bias'.* move it before 'head\.\*'"):
        check_param_groups(config, random_tree(0))
    check_param_groups(dataclasses.replace(CONFIG, groups=groups[::-1]), random_tree(0))


def test_the_same_pattern_twice_is_refused():
    groups = (ParamGroup(pattern="*.bias"), ParamGroup(pattern="*.bias"))
    with pytest.raises(InputError, match=r"pattern '\*\.bias': expected it once, got"):
        dataclasses.replace(CONFIG, groups=groups)


def test_an_empty_pattern_is_refused():
    with pytest.raises(InputError, match="expected a pattern, got an empty one"):
        ParamGroup(pattern="")


@pytest.mark.parametrize("field", ["learning_rate", "weight_decay"])
def test_a_negative_value_of_a_group_is_refused(field: str):
    expected = rf"pattern 'x': {field}=-0\.5: expected 0 or more, or -1 for optimizer"
    with pytest.raises(InputError, match=expected):
        ParamGroup(pattern="x", **{field: -0.5})


def test_groups_are_part_of_a_config_file(debug_config: Config):
    optimizer = dataclasses.replace(debug_config.optimizer, groups=GROUPS)
    config = dataclasses.replace(debug_config, optimizer=optimizer)
    content = json.loads(json.dumps(config_lib.to_dict(config)))
    assert config_lib.from_dict(content) == config
    assert list(config_lib.differences(debug_config, config)) == ["optimizer.groups"]
