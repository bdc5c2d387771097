"""The memory of a bucket's program, asked of the compiler before anything runs."""

import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax.sharding import Mesh
from jax.stages import Compiled

from jaxload.balance.memory import MemoryLine, MemoryModel, line_through
from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape
from jaxload.training.compile import compile_ahead
from jaxload.training.programs import (
    abstract_state,
    lower_micro_step,
    make_trainer,
)
from jaxload.training.step import Trainer

_BATCHES = (1, 2)
_MAX_COMPILE_THREADS = 8  # Each may take gigabytes for a large model.


def program_bytes(compiled: Compiled) -> int:
    """Bytes that a program itself needs on each device while it runs.

    With its arguments; what is donated is counted once.
    """
    memory = compiled.memory_analysis()
    if memory is None:
        raise NotImplementedError("this backend does not tell the memory of a program")
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
        - memory.alias_size_in_bytes
    )


def measure_memory(
    config: Config,
    shapes: Iterable[Shape],
    mesh: Mesh,
    *,
    on_done: Callable[[str], None],
) -> MemoryModel:
    """Compiles each shape with one and with two samples, and draws a line.

    The line is of all that lies on a device: the program, and the optimizer's state
    beside it. `on_done` is called after each program, two for each shape.
    """
    trainer = make_trainer(config)
    beside = _optimizer_bytes(config, trainer, mesh)
    shapes = sorted(set(shapes))
    compiled = compile_ahead(
        {
            _name(shape, batch): lambda shape=shape, batch=batch: lower_micro_step(
                config, trainer, mesh, shape, batch
            )
            for shape in shapes
            for batch in _BATCHES
        },
        num_threads=min(os.cpu_count() or 1, _MAX_COMPILE_THREADS),
        on_done=on_done,
    )

    def line(shape: Shape) -> MemoryLine:
        first, second = (
            (batch, program_bytes(compiled[_name(shape, batch)]) + beside)
            for batch in _BATCHES
        )
        return line_through(
            first, second, source=f"compiled for {mesh.devices.flat[0].device_kind}"
        )

    return MemoryModel({shape: line(shape) for shape in shapes})


def confirm(
    config: Config, shape: Shape, batch: int, mesh: Mesh, line: MemoryLine
) -> tuple[float, int]:
    """Bytes that a line predicts of the batch size chosen, and what is compiled."""
    trainer = make_trainer(config)
    program = lower_micro_step(config, trainer, mesh, shape, batch).compile()
    beside = _optimizer_bytes(config, trainer, mesh)
    return line.bytes(batch), program_bytes(program) + beside


def check_capacity(max_bytes: int, devices: Iterable[Any]) -> None:
    """Refuses a budget of bytes that is more than JAX may take of a device.

    Raises:
        InputError: Says how much it may take, and how it is given more.
    """
    for device in devices:
        limit = (device.memory_stats() or {}).get("bytes_limit")  # None on CPU.
        if limit is not None and limit < max_bytes:
            raise InputError(
                f"balance.max_bytes={max_bytes}: expected at most {limit}, which JAX "
                f"may take of {device}; lower it, or set XLA_CLIENT_MEM_FRACTION in "
                "the environment, which is 0.75 by default"
            )


def _optimizer_bytes(config: Config, trainer: Trainer, mesh: Mesh) -> int:
    """What a micro-step does not touch, and so its program does not count."""
    leaves = jax.tree.leaves(abstract_state(config, trainer, mesh).opt_state)
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in leaves
    )


def _name(shape: Shape, batch: int) -> str:
    return f"{shape}@{batch}"
