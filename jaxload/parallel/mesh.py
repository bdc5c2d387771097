"""The device mesh, and how training state and micro-batches lie on it."""

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

REPLICA_AXIS = "replica"


def replica_mesh() -> Mesh:
    """All devices of the job, each one a replica."""
    return Mesh(np.array(jax.devices()), (REPLICA_AXIS,))


def replicated(mesh: Mesh) -> NamedSharding:
    """A full copy on each replica: parameters, optimizer state, scalars."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharded(mesh: Mesh) -> NamedSharding:
    """The leading axis cut over the replicas: each has its own micro-batch."""
    return NamedSharding(mesh, PartitionSpec(REPLICA_AXIS))


def local_replicas(mesh: Mesh) -> list[int]:
    """The replicas whose micro-batches this host reads."""
    here = jax.process_index()
    return [
        i for i, device in enumerate(mesh.devices.flat) if device.process_index == here
    ]


def place_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Moves what this host read to its devices, as part of the global micro-batch."""
    sharding = batch_sharded(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, array)
        for name, array in batch.items()
    }
