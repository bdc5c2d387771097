"""From the names of axes to the axes of a mesh: what lies across which devices.

A model says what each axis of a parameter or an activation is; RULES say which axis of
the mesh cuts it. On one device nothing is cut, and the same program comes out.
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
"""Where a parameter keeps the names of its axes, as Flax calls it."""

RULES: Mapping[str, tuple[str, ...]] = {
    "batch": (FSDP_AXIS,),
    "tokens": (),
    "text_tokens": (),  # Few, and every token attends to all of them.
    "embed": (FSDP_AXIS,),  # Or the rows of the same matrix: see param_shardings.
    "heads": (TENSOR_AXIS,),
    "mlp": (TENSOR_AXIS,),
    "layers": (),  # Scanned: a cut would gather all layers for each one.
    # Of vectors and activations, of what enters a model or leaves it, and small ones.
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
"""The mesh axes that cut an axis, by its name."""


def rules_on(mesh: Mesh | AbstractMesh) -> dict[str, tuple[str, ...] | None]:
    """RULES without the mesh axes that are absent or of size 1; None cuts nothing."""
    return {
        name: tuple(axis for axis in axes if mesh.shape.get(axis, 1) > 1) or None
        for name, axes in RULES.items()
    }


def param_shardings(state: Any, mesh: Mesh | AbstractMesh) -> Any:
    """How every parameter of a state lies on a mesh, by the names of its axes.

    An axis that does not divide stays whole, as do arrays without names. A matrix that
    FSDP cuts is cut by rows, also where its columns are what is called "embed".
    Optimizers keep the names of what they are the state of, so that a whole training
    state will do, too.

    Args:
        state: A pytree with `nnx.Variable`s, of arrays or of their shapes.
        mesh: With any of MESH_AXES.

    Returns:
        The tree, with a NamedSharding for each array.

    Raises:
        InputError: A parameter has an axis that RULES do not name, or too few names.
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
    """Lays out the activations of models that are traced in this context by RULES.

    Args:
        mesh: The mesh of one group.
        split_batch: Whether samples are divided among the devices; a sampler has fewer
            samples than there may be devices.
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
    """The axes, or none if shards would differ in size."""
    num_shards = math.prod(mesh.shape[axis] for axis in axes)
    return axes if size % num_shards == 0 else ()


def _cut_rows_first(
    mesh: Mesh | AbstractMesh,
    names: Sequence[str],
    shape: Sequence[int],
    cuts: list[tuple[str, ...]],
) -> None:
    """Moves the cut of FSDP from a matrix's columns to its rows, where they divide.

    Gathered rows follow one another in memory. Of columns, XLA would keep a transposed
    copy of all layers, and one of their gradients.
    """
    first = 1 if names[:1] == ("layers",) else 0
    if len(names) != first + 2 or FSDP_AXIS not in cuts[first + 1]:
        return
    rows = (*cuts[first], FSDP_AXIS)
    if _dividing(mesh, shape[first], rows):
        cuts[first] = rows
        cuts[first + 1] = tuple(a for a in cuts[first + 1] if a != FSDP_AXIS)
