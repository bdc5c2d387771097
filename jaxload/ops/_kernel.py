"""Calls of FFI kernels from JAX: one call under vmap, one call per shard on a mesh."""

# Shape suffixes: B batch, S tokens, D width. A kernel treats any number of leading axes
# as batch; vmap adds such axes.

import dataclasses
import functools
import itertools
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxload.ops import _ffi

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
        call = _Call(self, plain, tuple(attributes.items()))
        return jax.lax.platform_dependent(
            *operands, default=plain, **dict.fromkeys(_ffi.platforms(), call.batched)
        )


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call of a kernel without its operands: kernel, plain form and attributes."""

    kernel: Kernel
    plain: Callable[..., Any]
    attributes: tuple[tuple[str, np.float32], ...]

    def batched(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Calls the target; under vmap, still once, with the mapped axis as batch."""

        @jax.custom_batching.custom_vmap
        def call(*operands: jax.Array):
            if jax.sharding.get_abstract_mesh().manual_axes:
                # XLA does not partition calls within a shard_map: operands are gathered
                # over mesh axes that the shard_map leaves to XLA.
                return self.local(*operands)
            return _partitioned(self, *operands, *self._identity())

        @call.def_vmap
        def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
            call = dataclasses.replace(self, plain=jax.vmap(self.plain))
            results = call.batched(
                *(
                    x if mapped else jnp.broadcast_to(x, (axis_size, *x.shape))
                    for x, mapped in zip(operands, is_mapped, strict=True)
                )
            )
            return results, (True,) * len(results)

        return call(*operands)

    def _identity(self) -> list[jax.Array]:
        """Returns operands that identify the target and its attributes.

        A lowered program refers to the partitioned call by a memory address, which the
        compile cache has to ignore. Without these extra operands, programs that call
        different targets would have the same cache key.
        """
        target = np.uint32(zlib.crc32(self.kernel.target.encode()))
        return [
            jnp.asarray(value) for value in (target, *dict(self.attributes).values())
        ]

    def local(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Calls the target on one device's shards."""
        operands = operands[: len(self.kernel.operands)]
        results = jax.ffi.ffi_call(self.kernel.target, self._types(*operands))(
            *operands, **dict(self.attributes)
        )
        return tuple(results[: len(self.kernel.results)])

    def _types(self, *operands: jax.Array) -> Sequence[Any]:
        """Returns the types of all results, as traced from the plain form.

        Types include shardings, which must be the same on all platforms.
        (`jax.eval_shape` omits the mesh of some.)
        """

        def results(*operands: jax.Array) -> tuple[jax.Array, ...]:
            results = self.plain(*operands)
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


# Partitioning of a call. The sharding rule states which axes of operands and results
# correspond, so that shardings propagate between them. Once XLA has chosen shardings,
# `_partition` returns the call for one shard.


@functools.partial(custom_partitioning, static_argnums=(0,))
def _partitioned(call: _Call, *operands: jax.Array) -> tuple[jax.Array, ...]:
    return call.local(*operands)


def _sharding_rule(call: _Call, *_: Any) -> tuple[str, dict[str, tuple[str, ...]]]:
    factors = {"BSD": "... s d", "BS": "... s", "BD": "... d"}
    operands = [factors[axes] for axes in call.kernel.operands]
    operands += [""] * (1 + len(call.attributes))  # From `_identity`.
    results = [factors[axes] for axes in call.kernel.results]
    # Tokens are not declared a reduction factor, although some results are sums over
    # tokens: a factor that appears in other results may not be one. `_partition` sums
    # over the shards instead.
    rule = f"{', '.join(operands)} -> {', '.join(results)}"
    return rule, {"need_replication_factors": ("d",)}


def _partition(
    call: _Call,
    mesh: Mesh,
    operands: Sequence[jax.ShapeDtypeStruct],
    results: Sequence[jax.ShapeDtypeStruct],
):
    kernel = call.kernel
    arrays = (*operands[: len(kernel.operands)], *results)
    all_axes = (*kernel.operands, *kernel.results)
    mesh, (*batch, tokens) = _cut(
        mesh, [a for a, axes in zip(arrays, all_axes, strict=True) if axes == "BSD"]
    )
    shardings = {
        "BSD": NamedSharding(mesh, P(*batch, tokens, None)),
        "BS": NamedSharding(mesh, P(*batch, tokens)),
        "BD": NamedSharding(mesh, P(*batch, None)),
    }
    whole = NamedSharding(mesh, P())

    def call_shard(*operands: jax.Array) -> tuple[jax.Array, ...]:
        results = call.local(*operands)
        if not tokens or not kernel.num_sums:
            return results
        sums = jax.lax.psum(results[-kernel.num_sums :], tokens)
        return (*results[: -kernel.num_sums], *sums)

    return (
        mesh,
        call_shard,
        tuple(shardings[axes] for axes in kernel.results),
        (
            *(shardings[axes] for axes in kernel.operands),
            *(whole for _ in operands[len(kernel.operands) :]),
        ),
    )


_partitioned.def_partition(_partition, sharding_rule=_sharding_rule)


_Axes = tuple[str, ...]  # Mesh axes that shard a dimension; empty if unsharded.


def _cut(
    mesh: Mesh, activations: Sequence[jax.ShapeDtypeStruct]
) -> tuple[Mesh, list[_Axes]]:
    """Returns the mesh axes of batch and tokens in the activation with most shards."""
    if mesh.empty:  # No axis names to shard by: replicate.
        devices = list(activations[0].sharding.device_set)
        return Mesh(devices, ("device",)), [()] * (activations[0].ndim - 1)
    cuts = [
        [
            _dividing(mesh, size, axes)
            for size, axes in zip(x.shape[:-1], x.sharding.spec[:-1], strict=True)
        ]
        for x in activations
    ]
    return mesh, max(cuts, key=lambda cut: _num_shards(mesh, itertools.chain(*cut)))


def _dividing(mesh: Mesh, size: int, axes: str | _Axes | None) -> _Axes:
    """Returns the axes, or none if XLA would pad a shard, as padding corrupts sums."""
    axes = (axes,) if isinstance(axes, str) else axes or ()
    return axes if size % _num_shards(mesh, axes) == 0 else ()


def _num_shards(mesh: Mesh, axes: Iterable[str]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)
