"""The extension is loaded or missed aloud; its XLA targets refuse what does not fit."""

import inspect
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxload.ops import _ffi

needs_kernel = pytest.mark.skipif(
    "cpu" not in _ffi.platforms(), reason="jaxload._ffi was not built"
)


def test_kernels_are_there_where_they_are_required():
    required = os.environ.get("JAXLOAD_REQUIRE_KERNELS", "").split(",")
    if "cpu" not in required:
        pytest.skip("JAXLOAD_REQUIRE_KERNELS does not name cpu")
    assert "cpu" in _ffi.platforms()


WITHOUT_EXTENSION = """
import sys

class NotBuilt:
    def find_spec(self, name, path=None, target=None):
        if name == "jaxload._ffi":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotBuilt())

import jax
import jax.numpy as jnp
from jaxload.ops.layer_norm_modulate import (
    layer_norm_modulate, layer_norm_modulate_reference
)

def grad(form, x, scale):
    return jax.jit(jax.grad(lambda scale: form(x, scale, scale).sum()))(scale)

scale = jnp.ones((2, 4))
for tokens in (2, 3):
    x = jnp.arange(8.0 * tokens).reshape(2, tokens, 4)
    actual = grad(layer_norm_modulate, x, scale)
    desired = grad(layer_norm_modulate_reference, x, scale)
    assert jnp.array_equal(actual, desired)
lowered = jax.jit(layer_norm_modulate).lower(x, scale, scale)
assert "custom_call" not in lowered.as_text()
"""


def test_runs_the_plain_form_and_says_so_once_without_the_extension():
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTENSION], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("jaxload._ffi was not built") == 1
    assert "make setup" in result.stderr


@pytest.mark.parametrize(
    "error",
    [
        ImportError("undefined symbol", name="jaxload._ffi"),
        ModuleNotFoundError("No module named 'other'", name="other"),
    ],
)
def test_raises_when_the_extension_does_not_load(error, monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "jaxload._ffi":
                raise error

    monkeypatch.delitem(sys.modules, "jaxload._ffi", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(type(error), match=str(error)):
        inspect.unwrap(_ffi.platforms)()


# What the targets refuse.

B, S, D = 2, 3, 4

FWD_OPERANDS = {"x": (B, S, D), "scale": (B, D), "shift": (B, D)}
FWD_RESULTS = {"y": (B, S, D), "mean": (B, S), "rstd": (B, S)}
BWD_OPERANDS = {
    "x": (B, S, D),
    "scale": (B, D),
    "mean": (B, S),
    "rstd": (B, S),
    "dy": (B, S, D),
}
BWD_RESULTS = {"dx": (B, S, D), "dscale": (B, D), "dshift": (B, D)}


def _call(target, operands, results, changes):
    """Calls a target with float32 buffers, save where `changes` gives another spec."""
    specs = {
        name: changes.get(name, jax.ShapeDtypeStruct(shape, jnp.float32))
        for name, shape in (operands | results).items()
    }
    attributes = {"eps": np.float32(1e-6)} if target.endswith("fwd") else {}
    call = jax.ffi.ffi_call(
        f"jaxload_{target}", [specs[name] for name in results], vmap_method="sequential"
    )
    arguments = [jnp.ones(specs[name].shape, specs[name].dtype) for name in operands]
    return jax.block_until_ready(call(*arguments, **attributes))


def _call_fwd(**changes):
    return _call("layer_norm_modulate_fwd", FWD_OPERANDS, FWD_RESULTS, changes)


def _call_bwd(**changes):
    return _call("layer_norm_modulate_bwd", BWD_OPERANDS, BWD_RESULTS, changes)


CALLS = [
    (_call_fwd, "layer_norm_modulate_fwd", FWD_OPERANDS | FWD_RESULTS),
    (_call_bwd, "layer_norm_modulate_bwd", BWD_OPERANDS | BWD_RESULTS),
]

BUFFERS = [
    pytest.param(call, op, name, shape, id=f"{op}-{name}")
    for call, op, shapes in CALLS
    for name, shape in shapes.items()
    if name not in ("x", "scale")  # These decide what the others must be.
]


@needs_kernel
@pytest.mark.parametrize("call", [_call_fwd, _call_bwd])
def test_accepts_what_fits(call):
    assert all(jnp.isfinite(result).all() for result in call())


@needs_kernel
@pytest.mark.parametrize(("call", "op", "name", "shape"), BUFFERS)
def test_refuses_a_shape(call, op, name, shape):
    wrong = (*shape[:-1], shape[-1] + 1)
    message = f"INVALID_ARGUMENT.*{op}: expected {name} of shape {list(shape)}, got "
    message = message.replace("[", r"\[") + str(list(wrong)).replace("[", r"\[")
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call(**{name: jax.ShapeDtypeStruct(wrong, jnp.float32)})


@needs_kernel
@pytest.mark.parametrize(("call", "op", "name", "shape"), BUFFERS)
def test_refuses_a_dtype(call, op, name, shape):
    message = f"INVALID_ARGUMENT.*{op}: expected {name} of dtype F32, got dtype F16"
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call(**{name: jax.ShapeDtypeStruct(shape, jnp.float16)})


@needs_kernel
@pytest.mark.parametrize("call", [_call_fwd, _call_bwd])
def test_refuses_a_rank(call):
    message = r"expected x of shape \[\.\.\., batch, tokens, width\], got \[3, 4\]"
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT.*{message}"
    ):
        call(x=jax.ShapeDtypeStruct((S, D), jnp.float32))


@needs_kernel
def test_refuses_integers():
    spec = jax.ShapeDtypeStruct((B, S, D), jnp.int32)
    message = "expected x of dtype F32, BF16 or F16, got dtype S32"
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT.*{message}"
    ):
        _call_fwd(x=spec, y=spec)


@needs_kernel
@pytest.mark.parametrize("call", [_call_fwd, _call_bwd])
def test_refuses_a_shape_of_scale(call):
    message = r"expected scale of shape \[2, 4\], got \[2, 4, 1\]"
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT.*{message}"
    ):
        call(scale=jax.ShapeDtypeStruct((B, D, 1), jnp.float32))


@needs_kernel
def test_refuses_a_scale_of_a_third_dtype():
    spec = jax.ShapeDtypeStruct((B, D), jnp.float16)
    message = "expected scale of dtype F32 or, as x, F32; got dtype F16"
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT.*{message}"
    ):
        _call_fwd(scale=spec, shift=spec)
