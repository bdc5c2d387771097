"""Tests the layer_norm_modulate family against float64, and under transforms."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from jaxload.ops import _ffi, gated_residual_layer_norm_modulate, layer_norm_modulate
from jaxload.testing import assert_trees_close

SHAPES = [
    pytest.param((2, 16, 64), id="aligned"),
    pytest.param((3, 7, 1023), id="odd-width"),
    pytest.param((2, 70, 20), id="several-runs"),
    pytest.param((2, 3, 5), id="below-one-vector"),
    pytest.param((1, 1, 1), id="one-element"),
]

DTYPES = [  # Dtype of activations, then of each modulation in turn.
    pytest.param([jnp.float32], id="float32"),
    pytest.param([jnp.bfloat16], id="bfloat16"),
    pytest.param([jnp.float16], id="float16"),
    pytest.param([jnp.bfloat16, jnp.float32, jnp.bfloat16], id="bfloat16-mixed"),
    pytest.param([jnp.float16, jnp.float32], id="float16-float32"),
]


@pytest.fixture(params=["kernel", "plain"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test with the kernels, then with the plain forms."""
    if request.param == "plain":
        monkeypatch.setattr(_ffi, "platforms", tuple)
    return request.param


def _results_and_grads(function, arguments, cotangents):
    @jax.jit  # Created in each test, so that no other form is in its cache.
    def run(arguments, cotangents):
        results, vjp = jax.vjp(function, *arguments)
        return results, vjp(cotangents)

    return run(arguments, cotangents)


def _assert_matches_float64(operation, arguments, cotangents):
    results, grads = _results_and_grads(operation.kernel, arguments, cotangents)
    assert [r.dtype for r in results] == [c.dtype for c in cotangents]
    assert [g.dtype for g in grads] == [a.dtype for a in arguments]
    assert_trees_close(
        (results, grads), operation.float64(arguments, cotangents, results)
    )


def _grads(form):
    def loss(arguments, cotangents):
        return sum(map(jnp.vdot, form(*arguments), cotangents))

    return jax.jit(jax.grad(loss))


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_float64(operation, shape, dtypes):
    _assert_matches_float64(operation, *operation.inputs(shape, *dtypes))


@pytest.mark.parametrize("width", [1536, 3072, 5120, 8192])
def test_matches_float64_at_widths_in_use(operation, width):
    inputs = operation.inputs((1, 3, width), jnp.bfloat16, jnp.float32)
    _assert_matches_float64(operation, *inputs)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8), (2, 3, 0), (0, 0, 0)])
def test_accepts_empty_arrays(operation, shape):
    arguments, cotangents = operation.inputs(shape)
    results, grads = _results_and_grads(operation.kernel, arguments, cotangents)
    for actual, like in ((results, cotangents), (grads, arguments)):
        assert [a.shape for a in actual] == [a.shape for a in like]
    # Sums over zero tokens are 0.
    assert not any(grad.any() for grad in grads if grad.ndim == 2)


def _large_mean(shape, dtype):
    """Returns x with a mean near 1024, whose sums are exact in float32.

    Every element is a multiple of the same step, so that sums are exact; sums of
    squares are not.
    """
    step = max(0.125, 1024 * float(jnp.finfo(dtype).eps))
    steps = np.random.default_rng(0).integers(-16, 16, shape)
    return jnp.asarray(1024 + step * steps, dtype)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_matches_float64_for_a_large_mean(operation, dtype):
    arguments, cotangents = operation.inputs((2, 3, 64), dtype)
    named = dict(zip(operation.arguments, arguments, strict=True))
    named["x_BSD"] = _large_mean((2, 3, 64), dtype)
    if "gate_BD" in named:  # So that gate * h is a multiple of the step.
        named["gate_BD"] = jnp.zeros_like(named["gate_BD"])
    _assert_matches_float64(operation, tuple(named.values()), cotangents)


@pytest.mark.usefixtures("form")
def test_gradients_match_finite_differences(operation):
    arguments, _ = operation.inputs((2, 3, 8))
    jitted = jax.jit(operation.kernel)
    # Loose tolerances, since differences are in float32. Tests above are tight.
    check_grads(jitted, arguments, order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


@pytest.mark.usefixtures("cpu_kernels")
def test_repeats_to_the_bit(operation):
    inputs = operation.inputs((3, 70, 1023))
    first, second = (_results_and_grads(operation.kernel, *inputs) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)


# With a scale of -1 the result is the shift, converted from its dtype to that of x.


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_returns_every_16_bit_shift(dtype):
    shift_BD = jnp.asarray(np.arange(2**16, dtype=np.uint16).view(dtype)[None])
    x_BSD = _large_mean((1, 1, shift_BD.size), dtype)
    y_BSD = layer_norm_modulate(x_BSD, jnp.full_like(shift_BD, -1), shift_BD)
    np.testing.assert_allclose(
        np.asarray(y_BSD).astype(np.float32)[0],
        np.asarray(shift_BD).astype(np.float32),
        rtol=0,
        atol=float(jnp.finfo(jnp.float32).tiny),  # Below this, XLA may flush to zero.
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_rounds_to_nearest_even(dtype):
    # Steps of an eighth of the last bit from 1, and steps of an eighth of 2**-24, the
    # smallest float16, from 0. Both contain ties.
    eighths_BD = jnp.arange(256, dtype=jnp.float32)[None] / 8
    normal_BD = 1 + eighths_BD * float(jnp.finfo(dtype).eps)
    shift_BD = jnp.concatenate([normal_BD, -normal_BD, eighths_BD * 2**-24], axis=1)
    x_BSD = _large_mean((1, 1, shift_BD.size), dtype)
    y_BSD = layer_norm_modulate(x_BSD, jnp.full_like(shift_BD, -1), shift_BD)
    np.testing.assert_array_equal(
        np.asarray(y_BSD).astype(np.float32)[0],
        np.asarray(shift_BD).astype(dtype).astype(np.float32),
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_gated_form_equals_the_two_steps(operations, dtype):
    (x, h, gate, scale, shift), _ = operations[1].inputs((2, 37, 65), dtype)
    residual, y = gated_residual_layer_norm_modulate(x, h, gate, scale, shift)
    np.testing.assert_array_equal(y, layer_norm_modulate(residual, scale, shift))
    unchanged, _ = gated_residual_layer_norm_modulate(x, h, 0 * gate, scale, shift)
    np.testing.assert_array_equal(unchanged, x)


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gated_kernel_returns_the_residual_of_the_plain_form(operations, dtype):
    # Products of 16-bit floats are exact in float32, so that FMA changes nothing.
    arguments, _ = operations[1].inputs((2, 37, 65), dtype)
    residual, _ = jax.jit(operations[1].kernel)(*arguments)
    desired, _ = jax.jit(operations[1].plain)(*arguments)
    np.testing.assert_array_equal(residual, desired)


# JAX transforms.


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("unmapped", [(), ("scale_BD", "shift_BD"), ("x_BSD",)])
def test_vmap_is_one_call(operation, unmapped):
    arguments, cotangents = operation.inputs((4, 2, 3, 8))
    in_axes = tuple(None if name in unmapped else 0 for name in operation.arguments)
    arguments = tuple(
        array if axis == 0 else array[0]
        for array, axis in zip(arguments, in_axes, strict=True)
    )
    mapped, desired = (
        jax.jit(jax.vmap(_grads(form), (in_axes, 0)))
        for form in (operation.kernel, operation.plain)
    )
    assert_trees_close(mapped(arguments, cotangents), desired(arguments, cotangents))
    lowered = mapped.lower(arguments, cotangents).as_text()
    assert lowered.count(f"@jaxload_{operation.name}_bwd") == 1
    assert "stablehlo.while" not in lowered


def test_vmap_over_two_axes(operation):
    arguments, _ = operation.inputs((2, 3, 2, 5, 8))
    mapped, desired = (
        jax.jit(jax.vmap(jax.vmap(form), in_axes=1, out_axes=1))(*arguments)
        for form in (operation.kernel, operation.plain)
    )
    assert_trees_close(mapped, desired)


def test_checkpoint(operation):
    inputs = operation.inputs((2, 3, 8))
    actual = _grads(jax.checkpoint(operation.kernel))(*inputs)
    assert_trees_close(actual, _grads(operation.plain)(*inputs))


def _layers(form, scan):
    """Returns a function that runs x through one layer per stacked modulation."""

    def layers(x, *stacked):
        return (scan(lambda x, layer: x + sum(form(x, *layer)))(x, stacked),)

    return layers


def _lax_scan(body):
    return lambda x, stacked: jax.lax.scan(lambda *a: (body(*a), None), x, stacked)[0]


SCANS = {
    "lax": _lax_scan,
    "checkpointed": lambda body: _lax_scan(jax.checkpoint(body)),
    "nnx": nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry),
}


@pytest.mark.parametrize("scan", SCANS)
def test_scan(operation, scan):
    (x, *stacked), (dy, *_) = operation.inputs((4, 2, 3, 8))  # Four layers.
    actual, desired = (
        _grads(_layers(form, SCANS[scan]))((x[0], *stacked), [dy[0]])
        for form in (operation.kernel, operation.plain)
    )
    assert_trees_close(actual, desired)


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("dtypes", [[jnp.float32, jnp.bfloat16], [jnp.bfloat16] * 2])
def test_saves_statistics_and_nothing_normalized(operation, dtypes):
    arguments, _ = operation.inputs((2, 64, 128), jnp.bfloat16, *dtypes)
    _, vjp = jax.vjp(operation.kernel, *arguments)
    saved = sum(leaf.nbytes for leaf in jax.tree.leaves(vjp))
    *needed, _ = arguments  # All but shift; the residual instead of x.
    statistics = 2 * 4 * 2 * 64
    assert saved == sum(array.nbytes for array in needed) + statistics


# Choice of kernel or plain form.


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize(("platform", "num_kernels"), [("cpu", 1), ("tpu", 0)])
def test_lowers_to_the_kernel_of_the_platform(operation, platform, num_kernels):
    traced = _grads(operation.kernel).trace(*operation.inputs((2, 3, 8)))
    lowered = traced.lower(lowering_platforms=(platform,)).as_text()
    for direction in ("fwd", "bwd"):
        target = f"@jaxload_{operation.name}_{direction}"
        assert lowered.count(target) == num_kernels


# Invalid arguments.

SPEC = jax.ShapeDtypeStruct


def _assert_refuses(operation, changes, message):
    arguments = {
        name: SPEC((2, 3, 4) if name.endswith("BSD") else (2, 4), jnp.float32)
        for name in operation.arguments
    } | changes
    # Without the type checks, which only tests have.
    unchecked = inspect.unwrap(operation.function)
    call = functools.partial(unchecked, eps=arguments.pop("eps", 1e-6))
    with pytest.raises(ValueError, match=f"^{operation.name}: {message}"):
        jax.eval_shape(call, **arguments)


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
            {"shift_BD": SPEC((2, 4), jnp.float16)},
            "expected shift of dtype float32 or, as x, float32; got float16",
        ),
        ({"eps": 0.0}, "expected eps > 0 in float32, and finite; got 0.0"),
        ({"eps": 1e-50}, "expected eps > 0 in float32, and finite; got 1e-50"),
        ({"eps": float("inf")}, "expected eps > 0 in float32, and finite; got inf"),
        ({"eps": float("nan")}, "expected eps > 0 in float32, and finite; got nan"),
    ],
)
def test_refuses(operation, changes, message):
    _assert_refuses(operation, changes, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"h_BSD": SPEC((2, 1, 4), jnp.float32)},
            r"expected h of shape \(2, 3, 4\) for x of shape \(2, 3, 4\), "
            r"got \(2, 1, 4\)",
        ),
        (
            {"h_BSD": SPEC((2, 3, 4), jnp.bfloat16)},
            "expected h of dtype float32, as x, got bfloat16",
        ),
        (
            {"gate_BD": SPEC((2, 4), jnp.float16)},
            "expected gate of dtype float32 or, as x, float32; got float16",
        ),
    ],
)
def test_gated_form_refuses(operations, changes, message):
    _assert_refuses(operations[1], changes, message)
