"""layer_norm_modulate: both forms against float64, then the kernel inside of JAX."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from jaxload.ops import _ffi
from jaxload.ops.layer_norm_modulate import (
    layer_norm_modulate,
    layer_norm_modulate_reference,
)
from jaxload.testing import assert_trees_close

EPS = 1e-6

SHAPES = [
    pytest.param((2, 16, 64), id="aligned"),
    pytest.param((3, 7, 1023), id="odd-width"),
    pytest.param((3, 37, 20), id="odd-tokens"),
    pytest.param((2, 3, 5), id="below-one-vector"),
    pytest.param((1, 1, 1), id="one-element"),
]

DTYPES = [  # Of x and of scale.
    pytest.param(jnp.float32, jnp.float32, id="float32"),
    pytest.param(jnp.bfloat16, jnp.bfloat16, id="bfloat16"),
    pytest.param(jnp.float16, jnp.float16, id="float16"),
    pytest.param(jnp.bfloat16, jnp.float32, id="bfloat16-float32"),
    pytest.param(jnp.float16, jnp.float32, id="float16-float32"),
]

FORMS = [
    pytest.param(layer_norm_modulate, id="kernel"),
    pytest.param(layer_norm_modulate_reference, id="plain"),
]

needs_kernel = pytest.mark.skipif(
    "cpu" not in _ffi.platforms(), reason="jaxload._ffi was not built"
)


def _inputs(shape, dtype=jnp.float32, modulation_dtype=None):
    """Returns x, scale, shift and dy."""
    rng = np.random.default_rng(0)
    shape_BD = (*shape[:-2], shape[-1])

    def normal(shape, dtype):
        return jnp.asarray(rng.standard_normal(shape), dtype)

    x_BSD, dy_BSD = normal(shape, dtype), normal(shape, dtype)
    scale_BD, shift_BD = (normal(shape_BD, modulation_dtype or dtype) for _ in range(2))
    return x_BSD, scale_BD, shift_BD, dy_BSD


def _large_mean(shape, dtype):
    """Returns x with a mean near 1024, which float32 can hold exactly if asked to.

    Every x is a whole number of steps, so that sums are exact. Sums of squares are not.
    """
    step = max(0.125, 1024 * float(jnp.finfo(dtype).eps))
    steps = np.random.default_rng(0).integers(-16, 16, shape)
    return jnp.asarray(1024 + step * steps, dtype)


def _float64_reference(x_BSD, scale_BD, shift_BD, dy_BSD):
    """Returns y and the gradients of x, scale and shift, written out in numpy."""
    x_BSD, scale_BD, shift_BD, dy_BSD = (
        np.asarray(array).astype(np.float64)
        for array in (x_BSD, scale_BD, shift_BD, dy_BSD)
    )
    rstd_BS1 = 1 / np.sqrt(x_BSD.var(axis=-1, keepdims=True) + EPS)
    x_hat_BSD = (x_BSD - x_BSD.mean(axis=-1, keepdims=True)) * rstd_BS1
    gain_B1D = 1 + scale_BD[:, None]
    g_BSD = dy_BSD * gain_B1D
    dx_BSD = rstd_BS1 * (
        g_BSD
        - g_BSD.mean(axis=-1, keepdims=True)
        - x_hat_BSD * (g_BSD * x_hat_BSD).mean(axis=-1, keepdims=True)
    )
    y_BSD = x_hat_BSD * gain_B1D + shift_BD[:, None]
    return y_BSD, (dx_BSD, (dy_BSD * x_hat_BSD).sum(axis=1), dy_BSD.sum(axis=1))


@functools.partial(jax.jit, static_argnums=0)
def _value_and_grads(form, x_BSD, scale_BD, shift_BD, dy_BSD):
    y_BSD, vjp = jax.vjp(form, x_BSD, scale_BD, shift_BD)
    return y_BSD, vjp(dy_BSD)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "modulation_dtype"), DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_float64(shape, dtype, modulation_dtype, form):
    inputs = _inputs(shape, dtype, modulation_dtype)
    y, grads = _value_and_grads(form, *inputs)
    assert (y.dtype, grads[0].dtype) == (dtype, dtype)
    assert (grads[1].dtype, grads[2].dtype) == (modulation_dtype, modulation_dtype)
    assert_trees_close((y, grads), _float64_reference(*inputs))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8), (2, 3, 0)])
def test_accepts_empty_arrays(shape, form):
    y_BSD, (dx_BSD, dscale_BD, dshift_BD) = _value_and_grads(form, *_inputs(shape))
    assert y_BSD.shape == dx_BSD.shape == shape
    assert not dscale_BD.any()  # No tokens: a sum of nothing, for each sample.
    assert not dshift_BD.any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_matches_float64_for_a_large_mean(dtype, form):
    _, *others = _inputs((2, 3, 64), dtype)
    inputs = (_large_mean((2, 3, 64), dtype), *others)
    assert_trees_close(_value_and_grads(form, *inputs), _float64_reference(*inputs))


@pytest.mark.parametrize("form", FORMS)
def test_gradients_match_finite_differences(form):
    *arguments, _ = _inputs((2, 3, 8))
    check_grads(jax.jit(form), arguments, order=1, modes=["rev"])


@needs_kernel
def test_repeats_to_the_bit():
    inputs = _inputs((3, 37, 1023))
    first, second = (_value_and_grads(layer_norm_modulate, *inputs) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)


# With a scale of -1 the result is the shift, converted from its dtype to that of x.


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_returns_every_16_bit_shift(dtype):
    shift_BD = jnp.asarray(np.arange(2**16, dtype=np.uint16).view(dtype)[None])
    x_BSD, *_ = _inputs((1, 1, shift_BD.size), dtype)
    y_BSD = layer_norm_modulate(x_BSD, jnp.full_like(shift_BD, -1), shift_BD)
    np.testing.assert_allclose(
        np.asarray(y_BSD).astype(np.float32)[0],
        np.asarray(shift_BD).astype(np.float32),
        rtol=0,
        atol=float(jnp.finfo(jnp.float32).tiny),  # Below this, XLA may flush to zero.
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_rounds_to_nearest_even(dtype):
    # From 1 on in eighths of the last bit, and from 0 on in eighths of 2**-24, which is
    # the smallest number in float16: both contain ties.
    eighths_BD = jnp.arange(256, dtype=jnp.float32)[None] / 8
    normal_BD = 1 + eighths_BD * float(jnp.finfo(dtype).eps)
    shift_BD = jnp.concatenate([normal_BD, -normal_BD, eighths_BD * 2**-24], axis=1)
    x_BSD, *_ = _inputs((1, 1, shift_BD.size), dtype)
    y_BSD = layer_norm_modulate(x_BSD, jnp.full_like(shift_BD, -1), shift_BD)
    np.testing.assert_array_equal(
        np.asarray(y_BSD).astype(np.float32)[0],
        np.asarray(shift_BD).astype(dtype).astype(np.float32),
    )


# Inside of JAX.


def _loss(form, x_BSD, scale_BD, shift_BD, dy_BSD):
    return jnp.vdot(form(x_BSD, scale_BD, shift_BD), dy_BSD)


def _grads(form):
    return jax.jit(jax.grad(functools.partial(_loss, form), argnums=(0, 1, 2)))


@needs_kernel
@pytest.mark.parametrize("in_axes", [(0, 0, 0, 0), (0, None, None, 0), (None, 0, 0, 0)])
def test_vmap_is_one_call(in_axes):
    inputs = [
        array if axis == 0 else array[0]
        for array, axis in zip(_inputs((4, 2, 3, 8)), in_axes, strict=True)
    ]
    mapped, desired = (
        jax.jit(jax.vmap(_grads(form), in_axes))
        for form in (layer_norm_modulate, layer_norm_modulate_reference)
    )
    assert_trees_close(mapped(*inputs), desired(*inputs))
    lowered = mapped.lower(*inputs).as_text()
    assert lowered.count("@jaxload_layer_norm_modulate_bwd") == 1
    assert "stablehlo.while" not in lowered


def test_vmap_over_two_axes():
    *arguments, _ = _inputs((2, 3, 2, 5, 8))
    mapped, desired = (
        jax.jit(jax.vmap(jax.vmap(form)))(*arguments)
        for form in (layer_norm_modulate, layer_norm_modulate_reference)
    )
    assert_trees_close(mapped, desired)


def test_checkpoint():
    inputs = _inputs((2, 3, 8))
    assert_trees_close(
        _grads(jax.checkpoint(layer_norm_modulate))(*inputs),
        _grads(layer_norm_modulate_reference)(*inputs),
    )


@pytest.mark.parametrize("wrap", [lambda body: body, jax.checkpoint])
def test_scan(wrap):
    x, *_, dy = _inputs((2, 3, 8))
    _, scales, shifts, _ = _inputs((4, 2, 3, 8))  # One of each for four layers.

    def layers(form, x, scales, shifts):
        body = wrap(lambda x, layer: (x + form(x, *layer), None))
        return jax.lax.scan(body, x, (scales, shifts))[0]

    actual, desired = (
        _grads(functools.partial(layers, form))(x, scales, shifts, dy)
        for form in (layer_norm_modulate, layer_norm_modulate_reference)
    )
    assert_trees_close(actual, desired)


@needs_kernel
def test_saves_the_statistics_and_not_the_normalized_x():
    x, scale, shift, _ = _inputs((2, 64, 128), jnp.bfloat16)
    _, vjp = jax.vjp(layer_norm_modulate, x, scale, shift)
    saved = sum(leaf.nbytes for leaf in jax.tree.leaves(vjp))
    assert saved == x.nbytes + scale.nbytes + 2 * 4 * x[..., 0].size


# Over two devices. What is sharded how, for x, scale and shift:

BATCH = (P("data"), P("data"), P("data"))
TOKENS = (P(None, "data"), P(), P())


def _place(mesh, inputs, specs):
    specs = (*specs, specs[0])  # dy is sharded as x.
    return [
        jax.device_put(array, NamedSharding(mesh, spec))
        for array, spec in zip(inputs, specs, strict=True)
    ]


@pytest.mark.parametrize("specs", [BATCH, TOKENS])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_sharded_under_jit(axis_type, specs):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(axis_type,))
    inputs = _inputs((2, 4, 8))
    with jax.set_mesh(mesh):
        actual = _value_and_grads(layer_norm_modulate, *_place(mesh, inputs, specs))
    assert_trees_close(actual, _float64_reference(*inputs))


@pytest.mark.parametrize("specs", [BATCH, TOKENS])
def test_sharded_under_shard_map(specs):
    # With sharded tokens all shards have the same scale: its gradient is summed.
    mesh = jax.make_mesh((2,), ("data",))
    inputs = _inputs((2, 4, 8))
    mapped = jax.shard_map(
        functools.partial(_value_and_grads, layer_norm_modulate),
        mesh=mesh,
        in_specs=(*specs, specs[0]),
        out_specs=(specs[0], specs),
    )
    actual = jax.jit(mapped)(*_place(mesh, inputs, specs))
    assert_trees_close(actual, _float64_reference(*inputs))


# Which form runs.


@needs_kernel
@pytest.mark.parametrize(("platform", "num_kernels"), [("cpu", 1), ("tpu", 0)])
def test_lowers_to_the_kernel_of_the_platform(platform, num_kernels):
    traced = _grads(layer_norm_modulate).trace(*_inputs((2, 3, 8)))
    lowered = traced.lower(lowering_platforms=(platform,)).as_text()
    assert lowered.count("@jaxload_layer_norm_modulate_fwd") == num_kernels
    assert lowered.count("@jaxload_layer_norm_modulate_bwd") == num_kernels


# What is refused.

SPEC = jax.ShapeDtypeStruct


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x_BSD": SPEC((3, 4), jnp.float32)},
            r"expected x of shape \[batch, tokens, width\], got \(3, 4\)",
        ),
        (
            {"x_BSD": SPEC((2, 3, 4), jnp.int32)},
            "expected x of dtype float32, bfloat16, float16, got int32",
        ),
        (
            {"scale_BD": SPEC((1, 4), jnp.float32)},
            r"expected scale of shape \(2, 4\) for x of shape \(2, 3, 4\), "
            r"got \(1, 4\)",
        ),
        (
            {"shift_BD": SPEC((2, 5), jnp.float32)},
            r"expected shift of shape \(2, 4\) for x of shape \(2, 3, 4\), "
            r"got \(2, 5\)",
        ),
        (
            {"scale_BD": SPEC((2, 4), jnp.float16)},
            "expected scale of dtype float32 or, as x, float32; got float16",
        ),
        (
            {"shift_BD": SPEC((2, 4), jnp.bfloat16)},
            "expected shift of dtype float32, as scale, got bfloat16",
        ),
        ({"eps": 0.0}, "expected eps > 0, got 0.0"),
        ({"eps": float("nan")}, "expected eps > 0, got nan"),
    ],
)
def test_refuses(changes, message):
    arguments = {
        "x_BSD": SPEC((2, 3, 4), jnp.float32),
        "scale_BD": SPEC((2, 4), jnp.float32),
        "shift_BD": SPEC((2, 4), jnp.float32),
    } | changes
    # Unwrapped of the type checks that only tests have, as a user would call it.
    unchecked = inspect.unwrap(layer_norm_modulate)
    call = functools.partial(unchecked, eps=arguments.pop("eps", EPS))
    with pytest.raises(ValueError, match=f"^layer_norm_modulate: {message}"):
        jax.eval_shape(call, **arguments)
