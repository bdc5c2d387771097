"""Placement: shardings of parameters, optimizer state, gradient sums and batches.

The global mesh has an axis of groups. Each group holds one full copy of the model and
runs its own programs on a mesh of its own devices. Arrays pass between the global mesh
and a group's mesh as views, which share the buffers on the devices.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxload.balance.program import Layout
from jaxload.parallel.config import MeshConfig
from jaxload.parallel.mesh import (
    FSDP_AXIS,
    REPLICA_AXIS,
    TENSOR_AXIS,
    make_mesh,
    resolve,
)
from jaxload.parallel.sharding_rules import param_shardings

GPU_PLATFORMS = ("cuda", "gpu")
"""Names of the platform of GPUs; devices to compile for have the first one."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Devices that hold one full copy of the model."""

    index: int
    mesh: Mesh
    """The group's own mesh, with the axes fsdp and tensor. A single group has the
    global mesh, so that views are the arrays themselves."""

    @property
    def is_local(self) -> bool:
        """True if this process has devices of the group."""
        here = jax.process_index()
        return any(device.process_index == here for device in self.mesh.devices.flat)

    def state(self, tree: Any) -> Any:
        """Returns the shardings of a tree of parameters, or of their shapes."""
        return param_shardings(tree, self.mesh)

    def sums(self, tree: Any) -> Any:
        """Returns the shardings of the group's part of the sums over `tree`."""
        axis = REPLICA_AXIS if REPLICA_AXIS in self.mesh.axis_names else None
        return jax.tree.map(lambda s: _lead(s, self.mesh, axis), self.state(tree))

    @property
    def replicated(self) -> NamedSharding:
        """Sharding of an array that every device of the group holds in full."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch(self) -> NamedSharding:
        """Sharding of a micro-batch: samples are divided over the fsdp axis."""
        return NamedSharding(self.mesh, PartitionSpec(FSDP_AXIS))

    def place_batch(self, arrays: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Copies a replica's micro-batch to the devices of the group."""
        # Not device_put: for a group that spans all processes, device_put compares the
        # arrays of the processes in a hidden collective. Without device_put, the copy
        # counts as an implicit transfer, which the training loop disallows.
        with jax.transfer_guard_host_to_device("allow"):
            return {
                name: jax.make_array_from_callback(
                    array.shape, self.batch, lambda index, array=array: array[index]
                )
                for name, array in arrays.items()
            }


@dataclasses.dataclass(frozen=True)
class Placement:
    """The mesh of a run, and the shardings of everything on it."""

    mesh: Mesh

    @functools.cached_property
    def groups(self) -> tuple[Group, ...]:
        """Every group, in the order of the replica axis."""
        if len(self.mesh.devices) == 1:
            return (Group(0, self.mesh),)
        axes, types = (FSDP_AXIS, TENSOR_AXIS), (AxisType.Auto,) * 2
        return tuple(
            Group(index, Mesh(devices, axes, types))
            for index, devices in enumerate(self.mesh.devices)
        )

    @functools.cached_property
    def local_groups(self) -> tuple[Group, ...]:
        """Groups with devices of this process."""
        return tuple(group for group in self.groups if group.is_local)

    @property
    def layout(self) -> Layout:
        """Layout of a micro-batch: samples are divided over the fsdp axis."""
        return Layout(batch=self.mesh.shape[FSDP_AXIS])

    @property
    def devices_per_group(self) -> int:
        """Number of devices that hold one copy of the model."""
        return self.mesh.size // self.mesh.shape[REPLICA_AXIS]

    @property
    def is_gpu(self) -> bool:
        """True if the devices are GPUs."""
        return self.mesh.devices.flat[0].platform in GPU_PLATFORMS

    @property
    def device_kind(self) -> str:
        """Name of the type of device."""
        return self.mesh.devices.flat[0].device_kind

    @property
    def replicated(self) -> NamedSharding:
        """Sharding of an array that every device holds in full."""
        return NamedSharding(self.mesh, PartitionSpec())

    def state(self, tree: Any) -> Any:
        """Returns the shardings of a training state, replicated over groups."""
        return param_shardings(tree, self.mesh)

    def sums(self, tree: Any) -> Any:
        """Returns the shardings of sums, which have a leading axis of groups."""
        return jax.tree.map(
            lambda s: _lead(s, self.mesh, REPLICA_AXIS), self.state(tree)
        )

    def group_of(self, replica: int) -> Group:
        """Returns the group that runs a logical replica."""
        return self.groups[replica % len(self.groups)]

    def local_replicas(self, num_replicas: int) -> list[int]:
        """Returns the logical replicas that this process runs, in order."""
        return [r for r in range(num_replicas) if self.group_of(r).is_local]

    def state_view(self, state: Any, group: Group) -> Any:
        """Returns a group's copy of a state as a view of the same buffers."""
        if group.mesh is self.mesh:
            return state
        return jax.tree.map(
            lambda array: _view(array, group, array.shape, _spec(array)), state
        )

    def sums_view(self, sums: Any, group: Group) -> Any:
        """Returns a group's part of the sums as a view of the same buffers."""
        if group.mesh is self.mesh:
            return sums
        return jax.tree.map(
            lambda array: _view(
                array,
                group,
                (1, *array.shape[1:]),
                PartitionSpec(None, *_spec(array)[1:]),
            ),
            sums,
        )

    def join_sums(self, views: Sequence[Any]) -> Any:
        """Joins the parts of all local groups to global sums; undoes `sums_view`."""
        if len(self.groups) == 1:
            return views[0]

        def join(*parts: jax.Array) -> jax.Array:
            spec = PartitionSpec(REPLICA_AXIS, *_spec(parts[0])[1:])
            return jax.make_array_from_single_device_arrays(
                (len(self.groups), *parts[0].shape[1:]),
                NamedSharding(self.mesh, spec),
                [shard.data for part in parts for shard in part.addressable_shards],
            )

        return jax.tree.map(join, *views)


def place(config: MeshConfig, devices: Sequence[Any]) -> Placement:
    """Builds the placement that a config describes on some devices.

    Raises:
        InputError: The devices cannot be divided as the config says.
    """
    sizes = resolve(config, len(devices))
    mesh = make_mesh(
        devices, replica=sizes.replica, fsdp=sizes.fsdp, tensor=sizes.tensor
    )
    return Placement(mesh)


def _lead(sharding: NamedSharding, mesh: Mesh, axis: str | None) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(axis, *sharding.spec))


def _spec(array: jax.Array) -> PartitionSpec:
    assert isinstance(array.sharding, NamedSharding), array.sharding
    # A spec may omit trailing axes that are not sharded.
    spec = tuple(array.sharding.spec)
    return PartitionSpec(*spec, *(None,) * (array.ndim - len(spec)))


def _view(
    array: jax.Array, group: Group, shape: tuple[int, ...], spec: PartitionSpec
) -> jax.Array:
    devices = set(group.mesh.devices.flat)
    shards = [s.data for s in array.addressable_shards if s.device in devices]
    return jax.make_array_from_single_device_arrays(
        shape, NamedSharding(group.mesh, spec), shards, dtype=array.dtype
    )
