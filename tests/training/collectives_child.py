"""Compiles a step for two groups of four H100s, and tells of its collectives."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from jaxload import targets


def handle(request: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
    """Replies with the collectives of a micro-step and of the update."""
    import jax

    from jaxload.balance.program import Grid, Program
    from jaxload.models import preset
    from jaxload.parallel.config import MeshConfig
    from jaxload.parallel.placement import place
    from jaxload.training.config import FlowConfig, OptimizerConfig
    from jaxload.training.lowering import Lowering
    from jaxload.training.step import make_trainer

    mesh = MeshConfig(**request["mesh"])
    num_devices = mesh.replica * mesh.devices_per_group
    devices = targets.find_target("h100-80gb").devices(num_devices)
    model = dataclasses.replace(preset(request["model"]), compute_dtype="bfloat16")
    trainer = make_trainer(
        model, FlowConfig(), OptimizerConfig(learning_rate=1e-4), seed=0
    )
    lowering = Lowering(trainer, place(mesh, devices))
    layout = lowering.placement.layout
    program = Program(form=Grid(2, 4, 4), batch=layout.batch, layout=layout)
    micro_step = lowering.micro_step(program, lowering.placement.groups[1])
    params = jax.tree.leaves(lowering.state.params)
    reply(
        {
            "micro_step": find_collectives(micro_step.compile().as_text() or ""),
            "update": find_collectives(lowering.update().compile().as_text() or ""),
            "num_gradients_per_device": sum(
                math.prod(p.sharding.shard_shape(p.shape)) for p in params
            ),
        }
    )


_KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"


def find_collectives(text: str) -> list[dict[str, Any]]:
    """Returns each collective: its kind, elements of its result, and its devices.

    XLA writes devices as a mesh and the axes that communicate, such as
    `mesh['axis_0'=2,'axis_1'=4] {'axis_0'}`: two devices, in each of four groups.
    """
    found = []
    for result, kind, groups, axes in re.findall(
        rf" = (.*?) ({_KINDS})(?:-start)?\(.*?replica_groups=mesh\[(.*?)\].*?{{(.*?)}}",
        text,
    ):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", groups)}
        communicating = re.findall(r"'(\w+)'", axes)
        arrays = re.findall(r"\w+\[([\d,]*)\]", result)
        found.append(
            {
                "kind": kind,
                "num_elements": sum(
                    math.prod(int(n) for n in dims.split(",") if n) for dims in arrays
                ),
                "num_devices": math.prod(sizes.values()),
                "num_communicating": math.prod(sizes[name] for name in communicating),
            }
        )
    return found


if __name__ == "__main__":
    targets.serve(handle)
