"""Tests loading of the extension, and argument checks of its XLA targets."""

import dataclasses
import inspect
import os
import re
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxload
from jaxload.ops import _ffi


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_kernels_are_there_where_they_are_required(platform, required_platforms):
    if platform not in required_platforms:
        pytest.skip(f"JAXLOAD_REQUIRE_KERNELS does not name {platform}")
    assert platform in _ffi.platforms()


def test_only_platforms_that_exist_are_required(required_platforms):
    # A misspelled name would require nothing.
    assert {*required_platforms} <= {"", "cpu", "cuda"}


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


@pytest.mark.parametrize(("backend", "num_warnings"), [("cpu", 0), ("gpu", 1)])
def test_says_so_on_a_gpu_without_its_kernels(
    backend, num_warnings, monkeypatch, caplog
):
    extension = types.SimpleNamespace(registrations=lambda: {"cpu": {}})
    monkeypatch.setitem(sys.modules, "jaxload._ffi", extension)
    monkeypatch.setattr(jaxload, "_ffi", extension, raising=False)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert inspect.unwrap(_ffi.platforms)() == ("cpu",)
    assert caplog.text.count("make cuda") == num_warnings


# Arguments that the targets refuse.

B, S, D, NUM_RUNS = 2, 3, 4, 2
BSD, BS, BD = (B, S, D), (B, S), (B, D)


@dataclasses.dataclass(frozen=True)
class Target:
    """An XLA target, called with buffers whose shapes follow from x."""

    op: str
    operands: dict[str, tuple[int, ...]]
    results: dict[str, tuple[int, ...]]

    @property
    def buffers(self):
        return self.operands | self.results

    def __call__(self, eps=1e-6, **changes):
        """Calls the target with float32 buffers, except those given in `changes`."""
        specs = {
            name: changes.get(name, jax.ShapeDtypeStruct(shape, jnp.float32))
            for name, shape in self.buffers.items()
        }
        attributes = {"eps": np.float32(eps)} if self.op.endswith("fwd") else {}
        call = jax.ffi.ffi_call(
            f"jaxload_{self.op}",
            [specs[name] for name in self.results],
            vmap_method="sequential",
        )
        arguments = [
            jnp.ones(specs[name].shape, specs[name].dtype) for name in self.operands
        ]
        return jax.block_until_ready(call(*arguments, **attributes))


FWD = Target(
    "layer_norm_modulate_fwd",
    {"x": BSD, "scale": BD, "shift": BD},
    {"y": BSD, "mean": BS, "rstd": BS},
)
BWD = Target(
    "layer_norm_modulate_bwd",
    {"x": BSD, "scale": BD, "mean": BS, "rstd": BS, "dy": BSD},
    {"dx": BSD, "dscale": BD, "dshift": BD, "workspace": (B, NUM_RUNS, 2, D)},
)
GATED_FWD = Target(
    "gated_residual_layer_norm_modulate_fwd",
    {"x": BSD, "h": BSD, "gate": BD, "scale": BD, "shift": BD},
    {"residual": BSD, "y": BSD, "mean": BS, "rstd": BS},
)
GATED_BWD = Target(
    "gated_residual_layer_norm_modulate_bwd",
    {
        "x": BSD,
        "h": BSD,
        "gate": BD,
        "scale": BD,
        "mean": BS,
        "rstd": BS,
        "dresidual": BSD,
        "dy": BSD,
    },
    {
        "dx": BSD,
        "dh": BSD,
        "dgate": BD,
        "dscale": BD,
        "dshift": BD,
        "workspace": (B, NUM_RUNS, 3, D),
    },
)
TARGETS = [
    pytest.param(target, id=target.op) for target in (FWD, BWD, GATED_FWD, GATED_BWD)
]

BUFFERS = [
    pytest.param(target, name, id=f"{target.op}-{name}")
    for target in (FWD, BWD, GATED_FWD, GATED_BWD)
    for name in target.buffers
    if name != "x"
]


def _refuses(target, message):
    message = f"{target.op}: {message}"
    return pytest.raises(
        jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT.*{re.escape(message)}"
    )


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("target", TARGETS)
def test_accepts_valid_buffers(target):
    results = dict(zip(target.results, target(), strict=True))
    results.pop("workspace", None)  # Its content is undefined.
    assert all(jnp.isfinite(result).all() for result in results.values())


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize(("target", "name"), BUFFERS)
@pytest.mark.parametrize("change", ["size", "rank"])
def test_refuses_a_shape(change, target, name):
    shape = target.buffers[name]
    wrong = (*shape[:-1], shape[-1] + 1) if change == "size" else (*shape, 1)
    with _refuses(target, f"expected {name} of shape {list(shape)}, got {list(wrong)}"):
        target(**{name: jax.ShapeDtypeStruct(wrong, jnp.float32)})


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize(("target", "name"), BUFFERS)
def test_refuses_a_dtype(target, name):
    spec = jax.ShapeDtypeStruct(target.buffers[name], jnp.float16)
    with _refuses(target, f"expected {name} of dtype F32, got dtype F16"):
        target(**{name: spec})


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("target", TARGETS)
def test_refuses_a_rank(target):
    message = "expected x of shape [..., batch, tokens, width], got [3, 4]"
    with _refuses(target, message):
        target(x=jax.ShapeDtypeStruct((S, D), jnp.float32))


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("target", TARGETS)
def test_refuses_integers(target):
    message = "expected x of dtype F32, BF16 or F16, got dtype S32"
    with _refuses(target, message):
        target(x=jax.ShapeDtypeStruct(BSD, jnp.int32))


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("target", [BWD, GATED_BWD], ids=lambda target: target.op)
@pytest.mark.parametrize("shape", [(B, 0, 2, D), (D,)])
def test_refuses_a_workspace_without_runs(shape, target):
    _, _, num_sums, _ = target.results["workspace"]
    message = f"expected workspace of shape {[B, 1, num_sums, D]}, got {list(shape)}"
    with _refuses(target, message):
        target(workspace=jax.ShapeDtypeStruct(shape, jnp.float32))


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("target", [FWD, GATED_FWD], ids=lambda target: target.op)
@pytest.mark.parametrize("eps", [0.0, -1.0, float("nan")])
def test_refuses_an_eps(eps, target):
    with _refuses(target, f"expected eps > 0, got {eps:g}"):
        target(eps=eps)


# Threads.

# Large enough for several threads.
ON_SOME_CORES = """
import hashlib
import os
import sys

num_cores = int(sys.argv[1])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])

import jax
import jax.numpy as jnp
import numpy as np
from jaxload.ops.gated_residual_layer_norm_modulate import (
    gated_residual_layer_norm_modulate
)
from jaxload.ops.layer_norm_modulate import layer_norm_modulate

rng = np.random.default_rng(0)
for shape in ((1, 777, 1536), (5, 333, 200)):
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        batch, _, width = shape
        x, h, dy = (jnp.asarray(rng.standard_normal(shape), dtype) for _ in range(3))
        gate, scale, shift = jnp.asarray(
            rng.standard_normal((3, batch, width)), jnp.float32
        )

        @jax.jit
        def values_and_grads(x, h, gate, scale, shift, dy):
            y, vjp = jax.vjp(layer_norm_modulate, x, scale, shift)
            both, gated_vjp = jax.vjp(
                gated_residual_layer_norm_modulate, x, h, gate, scale, shift
            )
            return y, vjp(dy), both, gated_vjp((dy, x))

        results = values_and_grads(x, h, gate, scale, shift, dy)
        for leaf in jax.tree.leaves(results):
            print(shape, dtype, hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest())
"""


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) == 1, reason="one core is all that there is"
)
@pytest.mark.usefixtures("cpu_kernels")
def test_gives_the_same_bits_on_one_core_as_on_all():
    outputs = [
        subprocess.run(
            [sys.executable, "-c", ON_SOME_CORES, num_cores],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for num_cores in ("1", "1000")
    ]
    assert len(outputs[0].splitlines()) == 6 * 11
    assert outputs[0] == outputs[1]
