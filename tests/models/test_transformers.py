"""Tests of properties that all transformers have."""

import dataclasses
import math
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend import core

from jaxload.models import (
    MMDiTConfig,
    ModelConfig,
    WanConfig,
    family_of,
    layers,
    preset,
)
from jaxload.testing import assert_trees_close
from tests.models.golden import largest_error
from tests.models.tiny import CONFIGS, call, inputs, make, normal, randomized


@pytest.fixture(scope="module", params=CONFIGS)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return CONFIGS[request.param]


@pytest.fixture(scope="module")
def model(config: ModelConfig) -> Any:
    return randomized(make(config))


@pytest.fixture(scope="module")
def velocity(config: ModelConfig, model: Any) -> jax.Array:
    return call(model, inputs(config))


def num_parameters(config: ModelConfig) -> int:
    state = nnx.state(nnx.eval_shape(lambda: make(config)))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("wan2.1-t2v-1.3b", 1_418_996_800),
        ("wan2.1-t2v-14b", 14_288_491_584),
        ("hunyuan-video-13b", 12_821_012_544),
    ],
)
def test_presets_have_the_parameters_of_the_released_models(name: str, count: int):
    assert num_parameters(preset(name)) == count


def test_an_untrained_model_predicts_zero(config: ModelConfig):
    velocity = call(make(config), inputs(config))
    assert velocity.shape == (2, 3, 4, 6, 16)
    assert velocity.dtype == jnp.float32
    assert not velocity.any()


def test_samples_of_a_batch_do_not_see_each_other(
    config: ModelConfig, model: Any, velocity: jax.Array
):
    given = inputs(config)
    alone = call(model, {name: x[1:] for name, x in given.items()})
    assert_trees_close(velocity[1:], alone)
    # To the bit, in one program: nothing of a sample enters another.
    other = {name: x.at[0].set(x[1]) for name, x in given.items()}
    np.testing.assert_array_equal(call(model, other)[1], velocity[1])


def test_every_input_matters(config: ModelConfig, model: Any, velocity: jax.Array):
    for name, x in inputs(config).items():
        # Changes the last element of a latent, or the first token of a text.
        place = (slice(None), *(-1 for _ in x.shape[1:]))
        if name == "text_BTE":
            place = (slice(None), 0, -1)
        changed = x.at[place].add(1)
        difference = call(model, inputs(config) | {name: changed}) - velocity
        assert np.abs(difference)[:, 0, 0, 0].max() > 1e-4, name


def test_position_matters(config: ModelConfig, model: Any, velocity: jax.Array):
    given = inputs(config)
    for axis in (1, 2, 3):
        latent = jnp.flip(given["latent_BFHWC"], axis)
        flipped = call(model, given | {"latent_BFHWC": latent})
        assert np.abs(jnp.flip(flipped, axis) - velocity).max() > 1e-3


def test_a_single_frame_and_odd_sizes(config: ModelConfig, model: Any):
    for shape in ((1, 2, 2), (5, 6, 14)):
        velocity = call(model, inputs(config, batch=1, shape=shape))
        assert velocity.shape == (1, *shape, 16)
        assert np.isfinite(velocity).all()


def test_bfloat16_is_near_float32(config: ModelConfig, model: Any, velocity: jax.Array):
    half = make(dataclasses.replace(config, compute_dtype="bfloat16"))
    half = nnx.merge(nnx.split(half)[0], nnx.state(model))
    got = call(half, inputs(config))
    assert got.dtype == jnp.float32
    error = np.abs(got - velocity).mean() / np.abs(velocity).mean()
    assert 1e-4 < error < 0.05


def test_every_parameter_gets_a_gradient(config: ModelConfig, model: Any):
    grads = gradients(model, inputs(config))
    for path, leaf in jax.tree.leaves_with_path(grads):
        assert np.abs(leaf).max() > 0, jax.tree_util.keystr(path)


def gradients(model: Any, given: dict[str, jax.Array]) -> Any:
    graphdef, state = nnx.split(model)

    @jax.jit
    @jax.grad
    def loss(state):
        return jnp.square(nnx.merge(graphdef, state)(**given)).sum()

    return loss(state)


@pytest.mark.parametrize("kind", ["wan", "mmdit"])
def test_remat_trades_memory_for_work_and_changes_nothing(kind: str):
    config = CONFIGS[kind]
    depth = {"wan": "depth", "mmdit": "num_double_blocks"}[kind]
    config = dataclasses.replace(config, **{depth: 4})
    given = inputs(config, batch=1, shape=(4, 16, 16))
    state = nnx.state(randomized(make(config)))

    def run(remat: str) -> tuple[int, int, Any]:
        model = make(dataclasses.replace(config, remat=remat))
        graphdef, _ = nnx.split(model)

        @jax.jit
        @jax.grad
        def loss(state):
            return jnp.square(nnx.merge(graphdef, state)(**given)).sum()

        compiled = loss.lower(state).compile()
        memory, text = compiled.memory_analysis(), compiled.as_text()
        assert memory is not None
        assert text is not None
        # Each softmax of scores has an exponential, so these count attentions.
        return memory.temp_size_in_bytes, text.count("exponential"), compiled(state)

    none, attention, full = map(run, ("none", "attention", "full"))
    assert full[0] < attention[0] < none[0]
    # Cross-attention is recomputed, which is cheap; self-attention is not.
    assert none[1] <= attention[1] < full[1]
    leaves = jax.tree.leaves(none[2])
    largest = max(np.abs(leaf).max() for leaf in leaves)
    for other in (attention, full):
        for got, expected in zip(jax.tree.leaves(other[2]), leaves, strict=True):
            # Zero except for rounding: a bias of all keys changes no softmax.
            noise = np.abs(expected).max() < 1e-6 * largest
            assert noise or largest_error(got, expected) < 1e-5


@pytest.mark.parametrize("kind", ["wan", "mmdit"])
@pytest.mark.parametrize("rank", [0, 2])
def test_without_remat_no_matmul_runs_twice(
    kind: str, rank: int, monkeypatch: pytest.MonkeyPatch
):
    config = dataclasses.replace(CONFIGS[kind], lora_rank=rank, remat="none")
    given = inputs(config, batch=1)
    graphdef, state = nnx.split(make(config))

    def count() -> int:
        def loss(state):
            return jnp.square(nnx.merge(graphdef, state)(**given)).sum()

        return num_matmuls(jax.make_jaxpr(jax.grad(loss))(state).jaxpr)

    with_policy = count()
    monkeypatch.setattr(layers, "rematerialized", lambda block, remat: block)
    assert with_policy == count() > 0


def num_matmuls(jaxpr: core.Jaxpr) -> int:
    """Counts matmuls, also in sub-programs; the body of a loop counts once."""
    return sum(
        (eqn.primitive.name == "dot_general")
        + sum(map(num_matmuls, core.jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def test_depth_is_a_scan_over_different_blocks(
    config: ModelConfig, model: Any, velocity: jax.Array
):
    graphdef, state = nnx.split(model)
    name = {"wan": "blocks", "mmdit": "double_blocks"}[family_of(config).name]
    if isinstance(config, MMDiTConfig):
        deep = dataclasses.replace(config, num_double_blocks=2)
        model = randomized(make(deep))
        graphdef, state = nnx.split(model)
        velocity = call(model, inputs(config))
    swapped = jax.tree.map(lambda x: x, state)
    swapped[name] = jax.tree.map(lambda x: x[::-1], state[name])
    other = call(nnx.merge(graphdef, swapped), inputs(config))
    assert np.abs(other - velocity).max() > 1e-3


def test_text_is_padded_as_the_reference_pads_it():
    config = preset("wan-tiny")
    model = randomized(make(config))
    short = inputs(config, num_text_tokens=5)
    zeros = jnp.zeros((2, config.num_text_tokens - 5, config.text_dim))
    padded = short | {"text_BTE": jnp.concatenate([short["text_BTE"], zeros], axis=1)}
    np.testing.assert_array_equal(call(model, short), call(model, padded))
    # Padding is attended to, so that the result differs without it.
    bare = dataclasses.replace(config, num_text_tokens=5)
    bare = nnx.merge(nnx.split(make(bare))[0], nnx.state(model))
    assert np.abs(call(bare, short) - call(model, short)).max() > 1e-3


def test_what_is_no_text_changes_nothing():
    config = CONFIGS["mmdit"]
    model, given = randomized(make(config)), inputs(CONFIGS["mmdit"])
    velocity, grads = call(model, given), gradients(model, given)
    for filling in (7.0, jnp.nan):
        filled = given["text_BTE"].at[0, 3:].set(filling).at[1, 4:].set(filling)
        filled = given | {"text_BTE": filled}
        np.testing.assert_array_equal(call(model, filled), velocity)
        assert_trees_close(gradients(model, filled), grads)
    longer = jnp.pad(given["text_BTE"][:, :5], ((0, 0), (0, 2), (0, 0)))
    assert_trees_close(call(model, given | {"text_BTE": longer}), velocity)
    # Invalid lengths are clipped to valid ones, and a sample may have no text.
    none, less, all_of_it, more = (
        call(model, given | {"text_lengths": jnp.full(2, length, jnp.int32)})
        for length in (0, -3, 12, 99)
    )
    assert np.isfinite(none).all()
    np.testing.assert_array_equal(less, none)
    np.testing.assert_array_equal(more, all_of_it)


def test_zeros_behind_the_text_are_padding_where_no_lengths_are_given():
    config = CONFIGS["mmdit"]
    model, given = randomized(make(config)), inputs(config)
    text = given["text_BTE"].at[0, 3:].set(0.0).at[1, 4:].set(0.0)
    velocity = call(model, given | {"text_BTE": text})
    del given["text_lengths"]
    got = call(model, given | {"text_BTE": text[:, :7]})
    assert_trees_close(got, velocity)


def test_the_text_is_pooled_where_nothing_pooled_is_given():
    config = preset("mmdit-tiny")
    model = randomized(make(config))
    given = {
        name: inputs(config)[name]
        for name in ("latent_BFHWC", "timestep_B", "text_BTE")
    }
    pooled = given["text_BTE"].mean(axis=1)
    assert_trees_close(call(model, given), call(model, given | {"pooled": pooled}))


def zeroed(block: nnx.Module, *names: str) -> Any:
    """Returns a block with random parameters, and zeros where a name is in the path."""
    block = randomized(block)
    graphdef, state = nnx.split(block)
    state = jax.tree.map_with_path(
        lambda path, x: (
            jnp.zeros_like(x)
            if any(name in jax.tree_util.keystr(path) for name in names)
            else x
        ),
        state,
    )
    return nnx.merge(graphdef, state)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wan_block_with_zeroed_gates_is_the_identity(dtype: str):
    from jaxload.models.wan.blocks import WanBlock

    config = dataclasses.replace(CONFIGS["wan"], compute_dtype=dtype)
    assert isinstance(config, WanConfig)
    # Cross-attention has no gate, so its output projection is zeroed.
    block = zeroed(
        WanBlock(config, rngs=nnx.Rngs(0)), "modulation", "cross_attention']['out"
    )
    x_BSD, text_BTD = (normal(i, 2, 6, 32).astype(dtype) for i in (0, 1))
    time_BMD = normal(2, 2, 6, 32).at[:, jnp.array([2, 5])].set(0.0)
    rotary = (jnp.ones((1, 6, 8)), jnp.zeros((1, 6, 8)))
    y_BSD = block(x_BSD, time_BMD, text_BTD, None, rotary, None)
    np.testing.assert_array_equal(y_BSD, x_BSD)
    ungated = block(x_BSD, time_BMD + 1.0, text_BTD, None, rotary, None)
    assert np.abs(ungated - x_BSD).max() > 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mmdit_blocks_with_zeroed_gates_are_the_identity(dtype: str):
    from jaxload.models.mmdit.blocks import DoubleBlock, SingleBlock
    from jaxload.models.mmdit.keys import Keys

    config = dataclasses.replace(CONFIGS["mmdit"], compute_dtype=dtype)
    assert isinstance(config, MMDiTConfig)
    video, text = normal(0, 2, 6, 32).astype(dtype), normal(1, 2, 4, 32).astype(dtype)
    condition, rotary = normal(2, 2, 32), (jnp.ones((1, 6, 8)), jnp.zeros((1, 6, 8)))
    for names, same in ((("modulation",), True), (("nothing",), False)):
        double = zeroed(DoubleBlock(config, rngs=nnx.Rngs(0)), *names)
        got = double(video, text, condition, rotary, Keys(jnp.array([10, 8])))
        single = zeroed(SingleBlock(config, rngs=nnx.Rngs(0)), *names)
        got = (*got, single(video, condition, rotary, Keys(jnp.array([6, 6]))))
        for after, before in zip(got, (video, text, video), strict=True):
            assert bool((after == before).all()) == same


def test_models_need_neither_the_trainer_nor_the_extension():
    code = (
        "import sys; sys.modules['jaxload._ffi'] = None\n"
        "from flax import nnx; import jax.numpy as jnp\n"
        "from jaxload.models import WanTransformer, preset, weights\n"
        "model = WanTransformer(preset('wan-tiny'), rngs=nnx.Rngs(0))\n"
        "text = jnp.ones((1, 12, 16))\n"
        "y = model(jnp.ones((1, 1, 2, 2, 16)), jnp.ones(1), text)\n"
        "parts = {name.split('.')[1] for name in sys.modules if 'jaxload.' in name}\n"
        "print(y.shape, parts & {'training', 'data', 'config', 'train', 'planning'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "(1, 1, 2, 2, 16) set()"
