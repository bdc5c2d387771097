"""Compiles the programs of two groups of H100s, and lists their collectives."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxload import targets


def handle(request: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
    """Replies with the collectives of each program: see `find_collectives`."""
    from jaxload.balance.form import Grid
    from jaxload.balance.program import Program
    from jaxload.models import preset
    from jaxload.parallel.config import MeshConfig
    from jaxload.parallel.placement import place
    from jaxload.training.compile import compile_ahead
    from jaxload.training.config import FlowConfig, OptimizerConfig
    from jaxload.training.lowering import Lowering, bytes_per_device
    from jaxload.training.step import make_trainer

    mesh = MeshConfig(**request["mesh"])
    num_devices = mesh.replica * mesh.devices_per_group
    devices = targets.find_target("h100-80gb").devices(num_devices)
    model = dataclasses.replace(preset(request["model"]), compute_dtype="bfloat16")
    trainer = make_trainer(
        model, FlowConfig(), OptimizerConfig(learning_rate=1e-4), seed=0
    )
    placement = place(mesh, devices)
    lowering = Lowering(trainer, placement)
    group, layout = placement.groups[1], placement.layout
    small, large = (
        Program(form=Grid(*grid), batch=layout.batch, layout=layout)
        for grid in request["grids"]
    )
    meshes = {
        "init": placement.mesh,
        "update": placement.mesh,
        "small": group.mesh,
        "large": group.mesh,
    }
    compiled = compile_ahead(
        {
            "small": lambda: lowering.micro_step(small, group),
            "large": lambda: lowering.micro_step(large, group),
            "init": lambda: lowering.init("noise"),
            "update": lowering.update,
        },
        on_done=lambda _: None,
    )
    texts = {name: program.as_text() or "" for name, program in compiled.items()}
    reply(
        {
            "collectives": {
                name: find_collectives(text, meshes[name].shape)
                for name, text in texts.items()
            },
            "counts": {name: count_collectives(text) for name, text in texts.items()},
            "param_bytes": bytes_per_device(lowering.state.params),
        }
    )


_NAMES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"


def count_collectives(text: str) -> list[int]:
    """Counts the collectives of an HLO module, by name and by attribute of devices."""
    names = re.findall(rf"\s(?:{_NAMES})(?:-start)?\(", text)
    # Also counts collectives with other names.
    devices = re.findall("replica_groups=|source_target_pairs=", text)
    return [len(names), len(devices)]


def find_collectives(text: str, mesh: Mapping[str, int]) -> list[dict[str, Any]]:
    """Returns the name, mesh axes, result arrays and bytes of each collective.

    Args:
        text: An HLO module.
        mesh: Sizes of the mesh that the module was lowered for, by axis.

    Raises:
        ValueError: Devices are written in a form that is not known.
    """
    found = []
    for result, kind, is_async, attributes in re.findall(
        rf" = (.*?) ({_NAMES})(-start)?\((.*)", text
    ):
        arrays = re.findall(r"[a-z]+\d+\[[\d,]*\]", result)
        if is_async and kind != "all-reduce":  # The operands come first.
            arrays = arrays[len(arrays) // 2 :]
        axes = _axes_of(_device_groups(attributes, math.prod(mesh.values())), mesh)
        found.append(
            {
                "kind": kind,
                "axes": axes,
                "arrays": arrays,
                "num_bytes": sum(map(_num_bytes, arrays)),
            }
        )
    return found


def _num_bytes(array: str) -> int:
    """Returns the bytes of an array such as `bf16[8,32]`."""
    match = re.fullmatch(r"[a-z]+(\d+)\[([\d,]*)\]", array)
    assert match, array
    return int(match[1]) // 8 * math.prod(_ints(match[2]))


def _axes_of(groups: np.ndarray, mesh: Mapping[str, int]) -> list[str]:
    """Returns the axes of a mesh along which devices of the same group differ."""
    coordinates = np.unravel_index(groups, tuple(mesh.values()))
    return [
        name
        for name, places in zip(mesh, coordinates, strict=True)
        if (places != places[:, :1]).any()
    ]


def _device_groups(attributes: str, num_devices: int) -> np.ndarray:
    """Returns the devices that communicate, with one row per group.

    XLA writes the groups as lists, such as `{{0,1},{2,3}}`; as a reshape and transpose
    of all devices, `[4,2]<=[2,4]T(1,0)`; or as a mesh and the axes that communicate,
    `mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}`.
    """
    lists = r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]+\})\}"
    if match := re.search(lists, attributes):
        return np.array([_ints(row) for row in re.findall(r"{(.*?)}", match[1])])
    order = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"
    if match := re.search(rf"replica_groups=\[([\d,]+)\]<={order}", attributes):
        return _in_order(match[2], match[3]).reshape(_ints(match[1]))
    cut = rf"replica_groups=mesh\[(.*?)\](?:, device_ids=\({order}\))? \{{(.*?)\}}"
    if match := re.search(cut, attributes):
        sizes = {
            name: int(size) for name, size in re.findall(r"('\w+')=(\d+)", match[1])
        }
        devices = _in_order(match[2] or str(num_devices), match[3])
        communicating = [list(sizes).index(name) for name in match[4].split(",")]
        last = range(-len(communicating), 0)
        devices = np.moveaxis(devices.reshape(*sizes.values()), communicating, last)
        num_together = math.prod(devices.shape[axis] for axis in last)
        return devices.reshape(-1, num_together)
    raise ValueError(f"cannot tell which devices communicate: {attributes}")


def _in_order(sizes: str, permutation: str | None) -> np.ndarray:
    """Returns all devices as an array of these sizes, transposed."""
    axes = _ints(sizes)
    devices = np.arange(math.prod(axes)).reshape(axes)
    return devices.transpose(_ints(permutation) if permutation else None).ravel()


def _ints(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


if __name__ == "__main__":
    targets.serve(handle)
