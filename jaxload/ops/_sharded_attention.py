"""Attention, partitioned by batch and heads on a mesh; one call under vmap."""

# Shape suffixes: B batch, S queries, T keys, N heads, K head width.

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxload.ops import _blocked_attention, _cudnn_attention


@dataclasses.dataclass(frozen=True)
class _Pass:
    """Forward or backward pass of one shard, and the axes of its operands and results.

    The pass takes one optional last operand, the key lengths [B].
    """

    blocked: Callable[..., tuple[jax.Array, ...]]
    cudnn: Callable[..., tuple[jax.Array, ...]]
    operands: tuple[str, ...]
    results: tuple[str, ...]

    def __call__(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        @jax.custom_batching.custom_vmap
        def call(*operands: jax.Array) -> tuple[jax.Array, ...]:
            mesh = jax.sharding.get_abstract_mesh()
            if mesh.manual_axes:
                # XLA does not partition calls within a shard_map: operands are gathered
                # over mesh axes that the shard_map leaves to XLA.
                return self.local(*operands)
            partitioned: Callable[..., Any] = functools.partial(_partitioned, self)
            if mesh.explicit_axes:  # Shard code must not see these axes in types.
                partitioned = jax.sharding.auto_axes(
                    partitioned, out_sharding=self._types(operands[0])
                )
            return partitioned(*operands, jnp.asarray(_SOURCES))

        @call.def_vmap
        def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
            as_batch = (
                (x if mapped else jnp.broadcast_to(x, (axis_size, *x.shape)))
                for x, mapped in zip(operands, is_mapped, strict=True)
            )
            results = self(*(x.reshape(-1, *x.shape[2:]) for x in as_batch))
            return tuple(x.reshape(axis_size, -1, *x.shape[1:]) for x in results), (
                True,
            ) * len(results)

        return call(*operands)

    def local(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Runs cuDNN's kernel or the blocked form on one device's shards."""
        if not _cudnn_attention.supports(operands[0]):
            return self.blocked(*operands)
        return jax.lax.platform_dependent(
            *operands, default=self.blocked, cuda=self.cudnn
        )

    def _types(self, q_BSNK: jax.Array) -> tuple[P, ...]:
        """Returns the results' shardings on explicit axes: batch and heads as in q."""
        batch, _, heads, _ = jax.typeof(q_BSNK).sharding.spec
        names = {"B": batch, "N": heads}
        return tuple(P(*map(names.get, axes)) for axes in self.results)

    def axes(self, num_operands: int) -> tuple[str, ...]:
        """Returns the axes of the operands, with key lengths if they are given."""
        return (*self.operands, "B")[:num_operands]


# Checksum of the sources, passed as an operand. A lowered program refers to the
# partitioned call by a memory address, which the compile cache has to ignore. Without
# the checksum, the cache would return old code after a change of these sources.
_SOURCES = np.uint32(
    functools.reduce(
        lambda crc, module: zlib.crc32(Path(module).read_bytes(), crc),
        (__file__, _blocked_attention.__file__, _cudnn_attention.__file__),
        0,
    )
)


@functools.partial(custom_partitioning, static_argnums=(0,))
def _partitioned(call: _Pass, *operands: jax.Array) -> tuple[jax.Array, ...]:
    return call.local(*operands[:-1])


def _sharding_rule(
    call: _Pass, mesh: Mesh, operands: Sequence[Any], results: Sequence[Any]
) -> tuple[str, dict[str, tuple[str, ...]]]:
    del mesh, results
    operand_axes = call.axes(len(operands) - 1)
    operand_factors, result_factors = (
        ", ".join(" ".join(axes.lower()) for axes in all_axes)
        for all_axes in ((*operand_axes, ""), call.results)
    )
    rule = f"{operand_factors} -> {result_factors}"
    # Shardy requires the order in which the rule first names the factors.
    return rule, {"need_replication_factors": ("s", "k", "t")}


def _partition(
    call: _Pass,
    mesh: Mesh,
    operands: Sequence[jax.ShapeDtypeStruct],
    results: Sequence[jax.ShapeDtypeStruct],
):
    operand_axes = call.axes(len(operands) - 1)
    mesh, batch, heads = _cut(mesh, [x for x in (*operands, *results) if x.ndim == 4])
    names = {"B": batch, "N": heads}
    operand_shardings, result_shardings = (
        tuple(NamedSharding(mesh, P(*map(names.get, axes))) for axes in all_axes)
        for all_axes in (operand_axes, call.results)
    )

    def call_shard(*operands: jax.Array) -> tuple[jax.Array, ...]:
        return call.local(*operands[:-1])

    whole = NamedSharding(mesh, P())
    return mesh, call_shard, result_shardings, (*operand_shardings, whole)


_partitioned.def_partition(_partition, sharding_rule=_sharding_rule)


_Axes = tuple[str, ...]  # Mesh axes that shard a dimension; empty if unsharded.


def _cut(
    mesh: Mesh, arrays: Sequence[jax.ShapeDtypeStruct]
) -> tuple[Mesh, _Axes, _Axes]:
    """Returns the mesh axes of batch and heads in the array with most shards."""
    if mesh.empty:  # No axis names to shard by: replicate.
        devices = list(arrays[0].sharding.device_set)
        return Mesh(devices, ("device",)), (), ()
    cuts = [
        [_dividing(mesh, x.shape[dim], x.sharding.spec[dim]) for dim in (0, 2)]
        for x in arrays
    ]
    batch, heads = max(cuts, key=lambda cut: _num_shards(mesh, cut[0] + cut[1]))
    return mesh, batch, heads


def _dividing(mesh: Mesh, size: int, axes: str | _Axes | None) -> _Axes:
    """Returns the axes, or none if XLA would pad the last shard."""
    axes = (axes,) if isinstance(axes, str) else axes or ()
    return axes if size % _num_shards(mesh, axes) == 0 else ()


def _num_shards(mesh: Mesh, axes: _Axes) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


forward = _Pass(
    _blocked_attention.forward,
    _cudnn_attention.forward,
    operands=("BSNK", "BTNK", "BTNK"),  # q, k, v.
    results=("BSNK", "BNS"),  # out, logsumexp.
)
backward = _Pass(
    _blocked_attention.backward,
    _cudnn_attention.backward,
    # q, k, v, out, logsumexp, dout.
    operands=("BSNK", "BTNK", "BTNK", "BSNK", "BNS", "BSNK"),
    results=("BSNK", "BTNK", "BTNK"),  # dq, dk, dv.
)
