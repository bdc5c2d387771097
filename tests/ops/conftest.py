"""The layer_norm_modulate family, float64 references, and fixtures of its tests."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxload.ops import _ffi
from jaxload.ops.gated_residual_layer_norm_modulate import (
    gated_residual_layer_norm_modulate,
    gated_residual_layer_norm_modulate_reference,
)
from jaxload.ops.layer_norm_modulate import (
    layer_norm_modulate,
    layer_norm_modulate_reference,
)

EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation: its forms, their arguments, and its float64 reference."""

    function: Callable[..., Any]
    reference: Callable[..., Any]
    arguments: tuple[str, ...]
    """Names with axes as suffixes; each result has the axes of x."""

    num_results: int
    float64: Callable[..., Any]
    """Expected results and gradients, from arguments, cotangents and results."""

    @property
    def name(self) -> str:
        """Name of the operation in messages and FFI targets."""
        return self.function.__name__

    def kernel(self, *arguments: jax.Array) -> tuple[jax.Array, ...]:
        """Runs the form that may call a kernel."""
        return tuple(jax.tree.leaves(self.function(*arguments)))

    def plain(self, *arguments: jax.Array) -> tuple[jax.Array, ...]:
        """Runs the plain form, which defines the results."""
        return tuple(jax.tree.leaves(self.reference(*arguments)))

    def inputs(self, shape, dtype=jnp.float32, *modulation_dtypes):
        """Returns random arguments and cotangents; modulations cycle through dtypes.

        `shape` is that of x, and may have additional leading axes.
        """
        rng = np.random.default_rng(0)

        def normal(axes, dtype):
            *batch, tokens, width = shape
            dims = {"BSD": (*batch, tokens, width), "BD": (*batch, width)}[axes]
            return jnp.asarray(rng.standard_normal(dims), dtype)

        axes = [name.split("_")[1] for name in self.arguments]
        dtypes = list(modulation_dtypes or [dtype])
        arguments = [
            normal(axes, dtype if axes == "BSD" else dtypes[i % len(dtypes)])
            for i, axes in enumerate(axes)
        ]
        cotangents = [normal("BSD", dtype) for _ in range(self.num_results)]
        return tuple(arguments), tuple(cotangents)


def _layer_norm_modulate64(arguments, cotangents, results):
    del results
    x_BSD, scale_BD, shift_BD = (np.asarray(a).astype(np.float64) for a in arguments)
    (dy_BSD,) = (np.asarray(c).astype(np.float64) for c in cotangents)
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
    return (y_BSD,), (dx_BSD, (dy_BSD * x_hat_BSD).sum(axis=1), dy_BSD.sum(axis=1))


def _gated_residual_layer_norm_modulate64(arguments, cotangents, results):
    x_BSD, h_BSD, gate_BD = (np.asarray(a).astype(np.float64) for a in arguments[:3])
    residual_BSD = x_BSD + gate_BD[:, None] * h_BSD
    # The operation rounds the residual before it normalizes.
    (y_BSD,), (dresidual_BSD, dscale_BD, dshift_BD) = _layer_norm_modulate64(
        (results[0], *arguments[3:]), cotangents[1:], results[1:]
    )
    dx_BSD = np.asarray(cotangents[0]).astype(np.float64) + dresidual_BSD
    dh_BSD, dgate_BD = gate_BD[:, None] * dx_BSD, (h_BSD * dx_BSD).sum(axis=1)
    return (residual_BSD, y_BSD), (dx_BSD, dh_BSD, dgate_BD, dscale_BD, dshift_BD)


OPERATIONS = [
    Operation(
        layer_norm_modulate,
        layer_norm_modulate_reference,
        arguments=("x_BSD", "scale_BD", "shift_BD"),
        num_results=1,
        float64=_layer_norm_modulate64,
    ),
    Operation(
        gated_residual_layer_norm_modulate,
        gated_residual_layer_norm_modulate_reference,
        arguments=("x_BSD", "h_BSD", "gate_BD", "scale_BD", "shift_BD"),
        num_results=2,
        float64=_gated_residual_layer_norm_modulate64,
    ),
]


@pytest.fixture(params=OPERATIONS, ids=lambda operation: operation.name)
def operation(request: pytest.FixtureRequest) -> Operation:
    """Parametrizes a test over the operations."""
    return request.param


@pytest.fixture(scope="session")
def operations() -> list[Operation]:
    """Returns all operations."""
    return OPERATIONS


@pytest.fixture(scope="session")
def required_platforms() -> list[str]:
    """Returns the platforms whose kernels and test tools are required."""
    return os.environ.get("JAXLOAD_REQUIRE_KERNELS", "").split(",")


@pytest.fixture(scope="session")
def missing(required_platforms: list[str]) -> Callable[[str, str], NoReturn]:
    """Returns a function (platform, reason) that skips the test.

    It fails the test if the platform is required, so that CI cannot skip it unnoticed.
    """

    def missing(platform: str, what: str) -> NoReturn:
        if platform in required_platforms:
            pytest.fail(f"{what}, and JAXLOAD_REQUIRE_KERNELS names {platform}")
        pytest.skip(what)

    return missing


@pytest.fixture(scope="session")
def cpu_kernels(missing: Callable[[str, str], NoReturn]) -> None:
    """Skips or fails a test if the CPU kernels were not built."""
    if "cpu" not in _ffi.platforms():
        missing("cpu", "jaxload._ffi was not built")
