"""Tests of jaxload.parallel.placement."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from jaxload.models import axes
from jaxload.parallel.config import MeshConfig
from jaxload.parallel.placement import Placement, place


@pytest.fixture
def replicas() -> Placement:
    return place(MeshConfig(), jax.devices())


@pytest.fixture
def fsdp() -> Placement:
    return place(MeshConfig(fsdp=2), jax.devices())


def state_of(placement: Placement) -> nnx.State:
    state = nnx.State(
        {"w": axes.param(jnp.arange(32.0).reshape(8, 4), "embed", "width")}
    )
    return jax.device_put(state, placement.state(state))


def buffers(tree: object) -> set[int]:
    return {
        shard.data.unsafe_buffer_pointer()
        for leaf in jax.tree.leaves(tree)
        for shard in leaf.addressable_shards
    }


def test_every_device_is_a_group_by_default(replicas: Placement):
    assert [group.index for group in replicas.local_groups] == [0, 1]
    assert [group.mesh.size for group in replicas.groups] == [1, 1]
    assert replicas.devices_per_group == 1
    assert replicas.layout.batch == 1


def test_devices_of_a_group_share_its_samples(fsdp: Placement):
    (group,) = fsdp.groups
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    placed = group.place_batch({"latent": rows})["latent"]
    for shard, expected in zip(
        placed.addressable_shards, (rows[:3], rows[3:]), strict=True
    ):
        np.testing.assert_array_equal(shard.data, expected)
    assert fsdp.layout.batch == 2


@pytest.mark.parametrize(("num_replicas", "runs"), [(2, [0, 1]), (5, [0, 1, 0, 1, 0])])
def test_logical_replicas_are_run_in_turn(
    replicas: Placement, num_replicas: int, runs: list[int]
):
    assert [replicas.group_of(r).index for r in range(num_replicas)] == runs
    assert replicas.local_replicas(num_replicas) == list(range(num_replicas))


def test_each_group_has_a_full_copy_of_the_state(replicas: Placement):
    state = state_of(replicas)
    for group in replicas.groups:
        view = replicas.state_view(state, group)
        np.testing.assert_array_equal(view["w"][...], state["w"][...])
        assert set(view["w"][...].devices()) == set(group.mesh.devices.flat)
        assert buffers(view) < buffers(state)


def test_a_view_of_a_sharded_state_is_sharded_as_the_group_expects(fsdp: Placement):
    state = state_of(fsdp)
    (group,) = fsdp.groups
    view = fsdp.state_view(state, group)
    assert buffers(view) == buffers(state)
    expected = group.state(state)["w"].get_value()
    assert view["w"][...].sharding == expected
    assert expected.spec == P("fsdp", None)


@pytest.mark.parametrize("name", ["replicas", "fsdp"])
def test_sums_go_to_groups_and_come_back_without_a_copy(
    name: str, request: pytest.FixtureRequest
):
    placement: Placement = request.getfixturevalue(name)
    like = state_of(placement)
    num_groups = len(placement.groups)
    sums = jax.tree.map(
        lambda x: jnp.stack([x * (i + 1) for i in range(num_groups)]), like
    )
    sums = jax.device_put(sums, placement.sums(like))
    views = [placement.sums_view(sums, group) for group in placement.groups]
    for i, view in enumerate(views):
        np.testing.assert_array_equal(view["w"][...], sums["w"][...][i : i + 1])
    joined = placement.join_sums(views)
    np.testing.assert_array_equal(joined["w"][...], sums["w"][...])
    assert buffers(joined) == buffers(sums)
    assert joined["w"][...].sharding == sums["w"][...].sharding
