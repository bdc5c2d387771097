"""The device mesh of a run: groups of devices, each with a full copy of the model."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import AxisType, Mesh

from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig

REPLICA_AXIS = "replica"
"""Mesh axis with one group of devices per index; only gradient sums cross it."""

FSDP_AXIS = "fsdp"
"""Mesh axis that shards samples and parameters; each layer is gathered when it runs."""

TENSOR_AXIS = "tensor"
"""Mesh axis that shards attention heads and the hidden width of MLPs."""

MESH_AXES = (REPLICA_AXIS, FSDP_AXIS, TENSOR_AXIS)


def make_mesh(
    devices: Sequence[Any], *, replica: int = 1, fsdp: int = 1, tensor: int = 1
) -> Mesh:
    """Builds a mesh of all devices; devices along the last axis are consecutive.

    Raises:
        InputError: The sizes do not multiply to the number of devices.
    """
    sizes = (replica, fsdp, tensor)
    if min(sizes) < 1 or math.prod(sizes) != len(devices):
        given = " x ".join(
            f"{name}={size}" for name, size in zip(MESH_AXES, sizes, strict=True)
        )
        raise InputError(
            f"mesh {given}: expected sizes whose product is the number of devices, "
            f"{len(devices)}, got {math.prod(sizes)}; the nearest that works is "
            f"{_nearest(len(devices), fsdp, tensor)}"
        )
    types = (AxisType.Auto,) * len(sizes)
    return Mesh(np.array(devices).reshape(sizes), MESH_AXES, types)


def resolve(config: MeshConfig, num_devices: int) -> MeshConfig:
    """Returns the config with `replica` set to the number of groups.

    Raises:
        InputError: The devices cannot be divided into groups of these sizes, or into
            the number of groups asked for.
    """
    fsdp, tensor = config.fsdp, config.tensor
    replica = config.replica
    if replica == -1:
        replica = num_devices // config.devices_per_group
    if replica < 1 or replica * config.devices_per_group != num_devices:
        raise InputError(
            f"mesh.replica={config.replica}, mesh.fsdp={fsdp}, mesh.tensor={tensor}: "
            f"{num_devices} devices cannot be divided so; the nearest that works is "
            f"{_nearest(num_devices, fsdp, tensor)}"
        )
    return MeshConfig(replica=replica, fsdp=fsdp, tensor=tensor)


def _nearest(num_devices: int, fsdp: int, tensor: int) -> str:
    """Returns the nearest sizes whose product is the number of devices, as text."""

    def divisors(number: int) -> list[int]:
        return [d for d in range(1, number + 1) if number % d == 0]

    def distance(pair: tuple[int, int]) -> float:
        sizes = zip(pair, (fsdp, tensor), strict=True)
        return sum(abs(math.log(a / max(1, b))) for a, b in sizes)

    pairs = [(f, t) for f in divisors(num_devices) for t in divisors(num_devices // f)]
    fsdp, tensor = min(pairs, key=distance)
    replica = num_devices // (fsdp * tensor)
    return f"mesh.replica={replica} mesh.fsdp={fsdp} mesh.tensor={tensor}"
