"""Calls of FFI kernels from JAX: one call under vmap, one call per shard on a mesh."""

# Shape suffixes: B batch, S tokens, D width. A kernel treats any number of leading axes
# as batch; vmap adds such axes.

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxload.ops import _ffi
from jaxload.ops._partitioned import Partitioned, checksum

# A run is a range of tokens with one partial sum. At 32 tokens per run in bfloat16,
# partial sums are about 4% of a backward pass's memory traffic. 512 runs are several
# for each multiprocessor of the largest GPUs.
_TOKENS_PER_RUN = 32
_MAX_RUNS = 512


@dataclasses.dataclass(frozen=True)
class Kernel:
    """An XLA FFI target, and the axes of its operands and results.

    Axes are written as in shape suffixes: "BSD", "BS" or "BD". Results "BD" are sums
    over tokens and come last. A target with sums has one more result: its workspace.
    """

    target: str
    operands: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def num_sums(self) -> int:
        """Number of results that are sums over tokens."""
        return self.results.count("BD")

    def __call__(
        self, plain: Callable[..., Any], *operands: jax.Array, **attributes: np.float32
    ) -> tuple[jax.Array, ...]:
        """Calls the target, or `plain` on platforms without the target.

        Args:
            plain: The same operation in plain JAX.
            *operands: Operands of the target.
            **attributes: Attributes of the target.
        """
        call = Partitioned(
            _Call(self, plain, tuple(attributes.items())).local,
            self.operands,
            self.results,
            sharded="BS",
            identity=(_checksum(self.target), *attributes.values()),
        )
        return jax.lax.platform_dependent(
            *operands, default=plain, **dict.fromkeys(_ffi.platforms(), call)
        )


@functools.cache
def _checksum(target: str) -> np.uint32:
    """Identifies a target and the code of its calls, which programs do not show."""
    return checksum(target.encode(), Path(__file__).read_bytes())


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call of a kernel without its operands: kernel, plain form and attributes."""

    kernel: Kernel
    plain: Callable[..., Any]
    attributes: tuple[tuple[str, np.float32], ...]

    def local(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Calls the target on one device's shards."""
        results = jax.ffi.ffi_call(self.kernel.target, self._types(*operands))(
            *operands, **dict(self.attributes)
        )
        return tuple(results[: len(self.kernel.results)])

    def _types(self, *operands: jax.Array) -> Sequence[Any]:
        """Returns the types of all results, as traced from the plain form.

        Types include shardings, which must be the same on all platforms.
        (`jax.eval_shape` omits the mesh of some.)
        """

        plain = self.plain
        for _ in range(operands[0].ndim - len(self.kernel.operands[0])):
            plain = jax.vmap(plain)  # Over batch axes that the plain form lacks.

        def results(*operands: jax.Array) -> tuple[jax.Array, ...]:
            results = plain(*operands)
            if not self.kernel.num_sums:
                return results
            shape = workspace_shape(operands[0].shape, self.kernel.num_sums)
            return (*results, jnp.broadcast_to(results[-1][..., None, None, :], shape))

        return jax.make_jaxpr(results)(*operands).out_avals


def workspace_shape(shape_BSD: Sequence[int], num_sums: int) -> tuple[int, ...]:
    """Returns the shape of the workspace for partial sums of runs of tokens.

    The workspace is a result of the call, so that targets need not allocate memory.
    """
    *batch, num_tokens, width = shape_BSD
    num_runs = min(
        math.ceil(num_tokens / _TOKENS_PER_RUN),
        _MAX_RUNS // max(1, math.prod(batch)),
    )
    return (*batch, max(1, num_runs), num_sums, width)
