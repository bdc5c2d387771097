"""Kernels inside of JAX: under vmap one call, on a mesh one call for each shard."""

# Shape suffixes: B batch, S tokens, D width. A kernel takes any number of leading axes
# as more batch, which is what vmap adds.

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

# For 32 tokens in bfloat16, partial sums are about 4 % of what a backward pass moves;
# 512 runs are several for each multiprocessor of the largest GPUs.
_TOKENS_PER_RUN = 32
_MAX_RUNS = 512


@dataclasses.dataclass(frozen=True)
class Kernel:
    """An XLA target, and the axes of what it takes and returns.

    Axes are written as in shape suffixes: "BSD", "BS" or "BD". Results over "BD" are
    sums over tokens. They come last, but for the workspace that such a target has too.
    """

    target: str
    operands: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def num_sums(self) -> int:
        """Results that are sums over tokens."""
        return self.results.count("BD")

    def __call__(
        self, plain: Callable[..., Any], *operands: jax.Array, **attributes: np.float32
    ) -> tuple[jax.Array, ...]:
        """Calls the target, or `plain` where XLA lowers to a platform without one.

        Args:
            plain: The same function of the same operands in plain JAX.
            *operands: As the target takes them.
            **attributes: As the target takes them.
        """
        call = _Call(self, plain, tuple(attributes.items()))
        return jax.lax.platform_dependent(
            *operands, default=plain, **dict.fromkeys(_ffi.platforms(), call.batched)
        )


@dataclasses.dataclass(frozen=True)
class _Call:
    """All about a call of a kernel but its operands."""

    kernel: Kernel
    plain: Callable[..., Any]
    attributes: tuple[tuple[str, np.float32], ...]

    def batched(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Calls the target once, whatever vmap adds to the operands."""

        @jax.custom_batching.custom_vmap
        def call(*operands: jax.Array):
            if jax.sharding.get_abstract_mesh().manual_axes:
                # XLA does not partition further within a shard_map: an axis that it
                # leaves to XLA is gathered.
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
        """Numbers that tell this call from others with operands of the same types.

        A program names the object that partitions a call by its address, and the
        compile cache has to leave that out. What the object stands for must then be
        found in the operands, or programs that differ would be taken for equal.
        """
        target = np.uint32(zlib.crc32(self.kernel.target.encode()))
        return [
            jnp.asarray(value) for value in (target, *dict(self.attributes).values())
        ]

    def local(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Calls the target on what one device holds."""
        operands = operands[: len(self.kernel.operands)]
        results = jax.ffi.ffi_call(self.kernel.target, self._types(*operands))(
            *operands, **dict(self.attributes)
        )
        return tuple(results[: len(self.kernel.results)])

    def _types(self, *operands: jax.Array) -> Sequence[Any]:
        """The types of all results.

        They are copied rather than spelled out, because they also hold shardings, in
        which the platforms must agree. (`jax.eval_shape` leaves out the mesh of some.)
        """

        def results(*operands: jax.Array) -> tuple[jax.Array, ...]:
            results = self.plain(*operands)
            if not self.kernel.num_sums:
                return results
            shape = workspace_shape(operands[0].shape, self.kernel.num_sums)
            return (*results, jnp.broadcast_to(results[-1][..., None, None, :], shape))

        return jax.make_jaxpr(results)(*operands).out_avals


def workspace_shape(shape_BSD: Sequence[int], num_sums: int) -> tuple[int, ...]:
    """Room for the sums of runs of tokens: a result, so that no target allocates."""
    *batch, num_tokens, width = shape_BSD
    num_runs = min(
        math.ceil(num_tokens / _TOKENS_PER_RUN),
        _MAX_RUNS // max(1, math.prod(batch)),
    )
    return (*batch, max(1, num_runs), num_sums, width)


# How XLA cuts a call. The rule tells which axes of operands and results go together, so
# that a sharding of one spreads to the others; once XLA has decided on shardings,
# `_partition` gives it the call of one shard.


@functools.partial(custom_partitioning, static_argnums=(0,))
def _partitioned(call: _Call, *operands: jax.Array) -> tuple[jax.Array, ...]:
    return call.local(*operands)


def _sharding_rule(call: _Call, *_: Any) -> tuple[str, dict[str, tuple[str, ...]]]:
    factors = {"BSD": "... s d", "BS": "... s", "BD": "... d"}
    operands = [factors[axes] for axes in call.kernel.operands]
    operands += [""] * (1 + len(call.attributes))  # Its identity.
    results = [factors[axes] for axes in call.kernel.results]
    # Tokens are no reduction factor, although some results are sums over them: those
    # that appear in other results may not be, and `_partition` adds the shards up.
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


_Axes = tuple[str, ...]  # Of a mesh; none for a dim that is whole.


def _cut(
    mesh: Mesh, activations: Sequence[jax.ShapeDtypeStruct]
) -> tuple[Mesh, list[_Axes]]:
    """Returns the axes that cut batch and tokens: as the activation most cut has it."""
    if mesh.empty:  # No array names its axes: all have to be whole.
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
    """The axes, or none if XLA would pad the last shard: sums must not see padding."""
    axes = (axes,) if isinstance(axes, str) else axes or ()
    return axes if size % _num_shards(mesh, axes) == 0 else ()


def _num_shards(mesh: Mesh, axes: Iterable[str]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)
