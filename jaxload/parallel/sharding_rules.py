"""Sharding rules: from the logical axis names of arrays to mesh axes.

A model names each axis of a parameter or an activation; RULES map each name to the mesh
axes that shard it. On one device nothing is sharded, and the program is the same.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from flax import nnx
from flax.core.spmd import logical_axis_rules
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxload.errors import InputError
from jaxload.parallel.mesh import FSDP_AXIS, TENSOR_AXIS

METADATA = "out_sharding"
"""Key of Flax's metadata under which a parameter keeps the names of its axes."""

RULES: Mapping[str, tuple[str, ...]] = {
    "batch": (FSDP_AXIS,),
    "tokens": (),
    "text_tokens": (),  # Few tokens, which all other tokens attend to.
    "embed": (FSDP_AXIS,),  # Moved to a matrix's rows: see param_shardings.
    "heads": (TENSOR_AXIS,),
    "mlp": (TENSOR_AXIS,),
    "layers": (),  # Scanned: if sharded, each iteration would gather all layers.
    # Axes of vectors and activations, of inputs and outputs of a model, and small axes.
    "width": (),
    "modulation": (),
    "patch": (),
    "text": (),
    "time": (),
    "image": (),
    "pooled": (),
    "rank": (),
    "head_width": (),
    "positions": (),
}
"""Mesh axes that shard an array axis, by the name of the array axis."""


def rules_on(mesh: Mesh | AbstractMesh) -> dict[str, tuple[str, ...] | None]:
    """Returns RULES without mesh axes that are absent or have size 1.

    None instead of mesh axes means that an axis is not sharded.
    """
    return {
        name: tuple(axis for axis in axes if mesh.shape.get(axis, 1) > 1) or None
        for name, axes in RULES.items()
    }


def param_shardings(state: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Returns the shardings of the parameters of a state, by the names of their axes.

    An axis that does not divide evenly is not sharded, nor is an array without names.
    FSDP shards a matrix by rows, even if "embed" is the name of its columns. Optimizer
    states keep the axis names of their parameters, so that `state` may be a whole
    training state.

    Args:
        state: Pytree with `nnx.Variable`s of arrays, or of their shapes.
        mesh: Mesh with any of MESH_AXES.

    Returns:
        The tree, with a NamedSharding instead of each array.

    Raises:
        InputError: RULES have no entry for the name of an axis, or an axis has no name.
    """
    rules = rules_on(mesh)

    def of_leaf(path: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, nnx.Variable):
            return NamedSharding(mesh, PartitionSpec())
        names = leaf.get_metadata().get(METADATA) or ()
        shape = leaf.get_value().shape
        _check_names(jax.tree_util.keystr(path), names, shape)
        cuts = [
            _dividing(mesh, size, rules[name] or ())
            for name, size in zip(names, shape, strict=False)
        ]
        _cut_rows_first(mesh, names, shape, cuts)
        spec = PartitionSpec(*(axes or None for axes in cuts))
        return leaf.replace(NamedSharding(mesh, spec))

    return jax.tree.map_with_path(
        of_leaf, state, is_leaf=lambda x: isinstance(x, nnx.Variable)
    )


@contextlib.contextmanager
def sharded(mesh: Mesh, *, split_batch: bool = True) -> Iterator[None]:
    """Shards the activations of models traced in this context by RULES.

    Args:
        mesh: Mesh of one group.
        split_batch: Whether to divide samples among the devices; False for a sampler,
            which may have fewer samples than devices.
    """
    rules = rules_on(mesh)
    if not split_batch:
        rules["batch"] = None
    with jax.set_mesh(mesh), logical_axis_rules(tuple(rules.items())):
        yield


def _check_names(path: str, names: Sequence[str], shape: Sequence[int]) -> None:
    unknown = [name for name in names if name not in RULES]
    if unknown:
        raise InputError(
            f"parameter {path}: expected axes among {', '.join(RULES)}, got "
            f"{', '.join(map(str, unknown))}; add a rule for it"
        )
    if names and len(names) != len(shape):
        raise InputError(
            f"parameter {path} of shape {tuple(shape)}: expected a name for each axis, "
            f"got {', '.join(names)}"
        )


def _dividing(
    mesh: Mesh | AbstractMesh, size: int, axes: tuple[str, ...]
) -> tuple[str, ...]:
    """Returns the mesh axes, or none if the shards would differ in size."""
    num_shards = math.prod(mesh.shape[axis] for axis in axes)
    return axes if size % num_shards == 0 else ()


def _cut_rows_first(
    mesh: Mesh | AbstractMesh,
    names: Sequence[str],
    shape: Sequence[int],
    cuts: list[tuple[str, ...]],
) -> None:
    """Moves FSDP from a matrix's columns to its rows, if the rows divide evenly.

    Gathered rows are contiguous in memory. To gather columns, XLA would keep a
    transposed copy of all layers, and another one of their gradients.
    """
    first = 1 if names[:1] == ("layers",) else 0
    if len(names) != first + 2 or FSDP_AXIS not in cuts[first + 1]:
        return
    rows = (*cuts[first], FSDP_AXIS)
    if _dividing(mesh, shape[first], rows):
        cuts[first] = rows
        cuts[first + 1] = tuple(a for a in cuts[first + 1] if a != FSDP_AXIS)
