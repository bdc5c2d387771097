"""Compiles two small programs for each target; run by test_compilation.py."""

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxload import targets

WIDTH = 256


def compile_matmul(gpu: targets.Gpu, num_devices: int) -> dict[str, Any]:
    """Compiles a matmul of sharded rows and sharded weights; returns a description."""
    devices = gpu.devices(num_devices)
    mesh = Mesh(np.array(devices), ("fsdp",))
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    x = jax.ShapeDtypeStruct((WIDTH, WIDTH), "bfloat16", sharding=rows)
    compiled = jax.jit(lambda x, w: x @ w, out_shardings=rows).lower(x, x).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    gathers = r"\[([\d,]+)\]\S* all-gather(?:-start)?\("
    return {
        "target": gpu.name,
        "device_kind": devices[0].device_kind,
        "compute_capability": devices[0].compute_capability,
        "num_devices": len(devices),
        "argument_bytes": memory.argument_size_in_bytes,
        "peak_bytes": memory.peak_memory_in_bytes,
        "gathered": re.findall(gathers, compiled.as_text() or ""),
    }


def handle(request: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
    for name in request["targets"]:
        for num_devices in request["num_devices"]:
            reply(compile_matmul(targets.find_target(name), num_devices))


if __name__ == "__main__":
    targets.serve(handle)
