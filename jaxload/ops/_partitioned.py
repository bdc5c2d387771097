"""Functions of arrays that run once per shard on a mesh, and once under vmap."""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxload.ops import _cut


@dataclasses.dataclass(frozen=True)
class Partitioned:
    """A function of arrays, and the axes of its operands and results.

    Axes are written as in shape suffixes, one letter each: "BSD". The first letter of
    every array is "B" and stands for any number of batch dimensions; vmap adds one.
    """

    local: Callable[..., tuple[jax.Array, ...]]
    """Computes the results of one device's shards."""

    operands: tuple[str, ...]
    results: tuple[str, ...]
    """Axes of the results. A result without a sharded axis is a sum over that axis."""

    sharded: str
    """Letters of the axes that may stay sharded; all other axes are gathered."""

    identity: tuple[np.generic, ...]
    """Scalars that identify the function, passed as additional operands.

    A lowered program refers to the partitioned call by a memory address, which the
    compile cache has to ignore. Without these operands, programs that call different
    functions, or the same before and after a change, would have the same cache key.
    """

    hides_explicit_axes: bool = False
    """True if `local` must not see explicit mesh axes in types.

    Results are then sharded on these axes as the first operand is. Otherwise, `local`
    determines the results' types, shardings included.
    """

    def __call__(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Calls the function; under vmap, still once, with the mapped axis as batch."""

        @jax.custom_batching.custom_vmap
        def call(*operands: jax.Array) -> tuple[jax.Array, ...]:
            mesh = jax.sharding.get_abstract_mesh()
            if mesh.manual_axes:
                # XLA does not partition calls within a shard_map: operands are gathered
                # over mesh axes that the shard_map leaves to XLA.
                return self.local(*operands)
            partitioned: Callable[..., Any] = functools.partial(_partitioned, self)
            if mesh.explicit_axes and self.hides_explicit_axes:
                spec = jax.typeof(operands[0]).sharding.spec
                partitioned = jax.sharding.auto_axes(
                    partitioned, out_sharding=self._result_specs(spec)
                )
            return partitioned(*operands, *map(jnp.asarray, self.identity))

        @call.def_vmap
        def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
            results = self(
                *(
                    x if mapped else jnp.broadcast_to(x, (axis_size, *x.shape))
                    for x, mapped in zip(operands, is_mapped, strict=True)
                )
            )
            return results, (True,) * len(results)

        return call(*operands)

    def _result_specs(self, spec: P) -> tuple[P, ...]:
        """Returns the results' shardings on explicit axes, from the first operand's."""
        cut = _cut.by_letter(self.operands[0], tuple(spec), self.sharded)
        return tuple(_cut.spec(axes, cut) for axes in self.results)

    def sharding_rule(self) -> tuple[str, dict[str, tuple[str, ...]]]:
        """Returns which axes of operands and results correspond, and which to gather.

        Summed axes are not declared reduction factors: a factor that appears in other
        results may not be one. `partition` sums over the shards instead.
        """
        operands, results = (
            ", ".join(" ".join(["...", *axes[1:].lower()]) for axes in all_axes)
            for all_axes in (self.operands, self.results)
        )
        scalars = ", " * len(self.identity)
        # Shardy requires the order in which the rule first names the factors.
        letters = dict.fromkeys("".join((*self.operands, *self.results)))
        gathered = tuple(x.lower() for x in letters if x not in self.sharded)
        return (
            f"{operands}{scalars} -> {results}",
            {"need_replication_factors": gathered},
        )

    def partition(
        self,
        mesh: Mesh,
        operands: Sequence[jax.ShapeDtypeStruct],
        results: Sequence[jax.ShapeDtypeStruct],
    ) -> tuple[Any, ...]:
        """Returns the mesh, the call for one shard, and shardings that XLA must use."""
        arrays = (*operands[: len(self.operands)], *results)
        all_axes = (*self.operands, *self.results)
        mesh, cut = _cut.choose(mesh, all_axes, arrays, self.sharded)

        def call_shard(*operands: jax.Array) -> tuple[jax.Array, ...]:
            return self._sum_over_shards(self.run(*operands), cut)

        operand_shardings, result_shardings = (
            tuple(NamedSharding(mesh, _cut.spec(axes, cut)) for axes in axes_of_each)
            for axes_of_each in (self.operands, self.results)
        )
        whole = (NamedSharding(mesh, P()),) * len(self.identity)
        return mesh, call_shard, result_shardings, (*operand_shardings, *whole)

    def run(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Calls `local` with the operands, without the scalars of the identity."""
        return self.local(*operands[: len(self.operands)])

    def _sum_over_shards(
        self, results: tuple[jax.Array, ...], cut: _cut.Cut
    ) -> tuple[jax.Array, ...]:
        for letter in self.sharded:
            mesh_axes = tuple(chain(*cut[letter]))
            sums = [i for i, axes in enumerate(self.results) if letter not in axes]
            if mesh_axes and sums:
                summed = jax.lax.psum(tuple(results[i] for i in sums), mesh_axes)
                totals = dict(zip(sums, summed, strict=True))
                results = tuple(totals.get(i, x) for i, x in enumerate(results))
        return results


# The sharding rule states which axes of operands and results correspond, so that
# shardings propagate between them. Once XLA has chosen shardings, `partition` returns
# the call for one shard.


@functools.partial(custom_partitioning, static_argnums=(0,))
def _partitioned(call: Partitioned, *operands: jax.Array) -> tuple[jax.Array, ...]:
    return call.run(*operands)


_partitioned.def_partition(
    Partitioned.partition, sharding_rule=lambda call, *_: call.sharding_rule()
)


def checksum(*contents: bytes) -> np.uint32:
    """Returns a checksum of the contents and of the code that partitions calls.

    As part of an `identity`, it keeps the compile cache from returning old code after a
    change of these sources.
    """
    own = (Path(module).read_bytes() for module in (__file__, _cut.__file__))
    contents = (*own, *contents)
    return np.uint32(functools.reduce(lambda crc, x: zlib.crc32(x, crc), contents, 0))
