"""Cuts: the mesh axes that shard each axis of arrays, by letter of shape suffixes."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

_MeshAxes = tuple[str, ...]  # Shard one dimension; empty if it is unsharded.

Cut = dict[str, list[Any]]
"""Mesh axes by letter: a list with an entry for each dimension of that letter."""


def spec(axes: str, cut: Cut) -> P:
    """Returns the partition spec of an array; letters that `cut` lacks are whole."""
    return P(*chain(*(cut.get(letter, [None]) for letter in axes)))


def by_letter(axes: str, values: Sequence[Any], letters: str) -> dict[str, list[Any]]:
    """Groups values, one for each dimension of an array, by some of its letters.

    The first letter of `axes` stands for as many dimensions as the others leave.
    """
    num_first = len(values) - len(axes) + 1
    pairs = list(zip(axes[0] * num_first + axes[1:], values, strict=True))
    return {
        letter: [value for own, value in pairs if own == letter] for letter in letters
    }


def choose(
    mesh: Mesh,
    all_axes: Sequence[str],
    arrays: Sequence[jax.ShapeDtypeStruct],
    letters: str,
) -> tuple[Mesh, Cut]:
    """Returns the mesh, and the cut of the array with the most shards.

    Only the given letters may be cut. Only arrays with all dimensions are considered.
    Arrays with fewer dimensions are small, so that resharding them costs little.
    """
    rank = max(map(len, all_axes))
    pairs = zip(all_axes, arrays, strict=True)
    large = [(axes, array) for axes, array in pairs if len(axes) == rank]
    if mesh.empty:  # No axis names to shard by: replicate.
        _, array = large[0]
        devices = list(array.sharding.device_set)
        return Mesh(devices, ("device",)), {letter: [()] for letter in letters}
    cuts = [
        by_letter(axes, _dividing_axes(mesh, array), letters) for axes, array in large
    ]
    return mesh, max(cuts, key=lambda cut: _num_shards(mesh, _mesh_axes(cut)))


def _mesh_axes(cut: Cut) -> Iterable[str]:
    return chain(*chain(*cut.values()))


def _dividing_axes(mesh: Mesh, array: jax.ShapeDtypeStruct) -> list[_MeshAxes]:
    sizes_and_axes = zip(array.shape, array.sharding.spec, strict=True)
    return [_dividing(mesh, size, axes) for size, axes in sizes_and_axes]


def _dividing(mesh: Mesh, size: int, axes: str | _MeshAxes | None) -> _MeshAxes:
    """Returns the axes, or none if XLA would pad a shard, as padding corrupts sums."""
    axes = (axes,) if isinstance(axes, str) else axes or ()
    return axes if size % _num_shards(mesh, axes) == 0 else ()


def _num_shards(mesh: Mesh, axes: Iterable[str]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)
