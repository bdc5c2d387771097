"""Tests of jaxload.parallel.mesh."""

import math

import jax
import pytest

from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig
from jaxload.parallel.mesh import MESH_AXES, make_mesh, resolve


@pytest.mark.parametrize(
    ("config", "num_devices", "replica"),
    [
        (MeshConfig(), 2, 2),
        (MeshConfig(fsdp=8), 8, 1),
        (MeshConfig(fsdp=4), 8, 2),
        (MeshConfig(fsdp=4, tensor=2), 16, 2),
        (MeshConfig(replica=3, tensor=2), 6, 3),
    ],
)
def test_the_groups_are_what_is_left(config: MeshConfig, num_devices: int, replica):
    assert resolve(config, num_devices) == MeshConfig(
        replica=replica, fsdp=config.fsdp, tensor=config.tensor
    )


@pytest.mark.parametrize(
    ("config", "num_devices", "message"),
    [
        (MeshConfig(fsdp=3), 8, "mesh.replica=2 mesh.fsdp=4 mesh.tensor=1"),
        (MeshConfig(fsdp=16), 8, "mesh.replica=1 mesh.fsdp=8 mesh.tensor=1"),
        (MeshConfig(replica=3), 8, "mesh.replica=8 mesh.fsdp=1 mesh.tensor=1"),
        (MeshConfig(fsdp=4, tensor=4), 8, r"mesh.replica=1 mesh.fsdp=\d mesh.tensor"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_with_the_nearest(
    config: MeshConfig, num_devices: int, message: str
):
    with pytest.raises(InputError, match=rf"{num_devices} devices.*{message}") as error:
        resolve(config, num_devices)
    # The suggested sizes are valid.
    named = str(error.value).split("works is ")[1].split()
    sizes = {n.split("=")[0].removeprefix("mesh."): int(n.split("=")[1]) for n in named}
    assert math.prod(sizes.values()) == num_devices
    assert resolve(MeshConfig(**sizes), num_devices) == MeshConfig(**sizes)


def test_a_mesh_has_all_axes():
    mesh = make_mesh(jax.devices(), tensor=2)
    assert mesh.axis_names == MESH_AXES
    assert dict(mesh.shape) == {"replica": 1, "fsdp": 1, "tensor": 2}


@pytest.mark.parametrize("field", ["replica", "fsdp", "tensor"])
def test_sizes_below_one_are_refused(field: str):
    with pytest.raises(InputError, match=rf"mesh.{field}=0: expected 1 or more"):
        MeshConfig(**{field: 0})
