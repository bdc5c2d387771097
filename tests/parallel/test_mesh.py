"""Tests of jaxload.parallel.mesh."""

import jax
import numpy as np

from jaxload.parallel.mesh import (
    batch_sharded,
    local_replicas,
    place_batch,
    replica_mesh,
    replicated,
)


def test_every_device_is_a_replica():
    mesh = replica_mesh()
    assert mesh.size == jax.device_count() == 2
    assert local_replicas(mesh) == [0, 1]


def test_each_replica_gets_its_micro_batch():
    mesh = replica_mesh()
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    placed = place_batch({"latent": rows}, mesh)["latent"]
    assert placed.sharding == batch_sharded(mesh)
    for shard, expected in zip(
        placed.addressable_shards, (rows[:3], rows[3:]), strict=True
    ):
        np.testing.assert_array_equal(shard.data, expected)


def test_replicated_is_whole_everywhere():
    mesh = replica_mesh()
    placed = jax.device_put(np.arange(3), replicated(mesh))
    assert all(shard.data.shape == (3,) for shard in placed.addressable_shards)
