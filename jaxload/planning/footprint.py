"""Bytes of compiled programs on each device, before anything runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from jax.stages import Compiled, Lowered

from jaxload.balance.program import Program
from jaxload.data.batch_spec import ModelSizes, batch_bytes, batch_spec
from jaxload.errors import InputError
from jaxload.parallel.mesh import TENSOR_AXIS
from jaxload.parallel.placement import Group
from jaxload.sampling.config import SampleConfig
from jaxload.training.compile import compile_ahead
from jaxload.training.engine import MAX_QUEUED
from jaxload.training.lowering import Lowering, bytes_per_device

UPDATE, SAMPLE = "update", "sample"
OTHERS = (UPDATE, SAMPLE)
"""Programs of a run that are not micro-steps."""

Request = Program | str
"""A program to compile: a micro-step, or one of OTHERS."""


@runtime_checkable
class Compiler(Protocol):
    """Source of the bytes that programs take on each device."""

    @property
    def device_kind(self) -> str:
        """Name of the type of device that programs are compiled for."""
        ...

    def footprints(
        self, requests: Sequence[Request], *, on_done: Callable[[], None]
    ) -> dict[Request, int]:
        """Compiles programs and returns the peak bytes per device of each.

        The bytes include the training state that stays on the device although the
        program does not read it. `on_done` is called after each program.
        """
        ...

    def batch_bytes(self, program: Program) -> int:
        """Returns the bytes of one micro-batch on each device."""
        ...


def add_queue(compiler: Compiler, found: Mapping[Request, int]) -> dict[Request, int]:
    """Adds the micro-batches queued on the devices to the bytes of each program.

    Any program may run next, so the queue is counted at the size of the largest batch.
    """
    programs = [request for request in found if isinstance(request, Program)]
    largest = max(map(compiler.batch_bytes, programs), default=0)
    # While an update runs, no micro-step does, so one more micro-batch is queued. The
    # sampler runs with an empty queue.
    waiting = {UPDATE: MAX_QUEUED + 1, SAMPLE: 0}
    return {
        request: num_bytes + largest * waiting.get(str(request), MAX_QUEUED)
        for request, num_bytes in found.items()
    }


class LocalCompiler:
    """Compiler that runs in this process and keeps the executables."""

    def __init__(
        self, lowering: Lowering, group: Group, sample: SampleConfig, *, shift: float
    ):
        """Prepares to compile for one group; the update is compiled for all groups.

        Args:
            lowering: Programs of the run.
            group: Group of the micro-steps and the sampler; to run them, the group has
                to be one of this process.
            sample: Config of the clip that the sampler draws.
            shift: Shift of the sampler's noise levels.
        """
        self._lowering = lowering
        self._group = group
        self._sample = sample
        self._shift = shift
        self.compiled: dict[Request, Compiled] = {}
        """Executables by request; micro-steps are compiled for the group."""

    @property
    def device_kind(self) -> str:
        """Name of the type of device that programs are compiled for."""
        return self._lowering.placement.device_kind

    def compile(
        self, requests: Iterable[Request], *, on_done: Callable[[], None]
    ) -> None:
        """Compiles the programs that are not compiled yet."""
        new = [r for r in dict.fromkeys(requests) if r not in self.compiled]
        self.compiled |= compile_ahead(
            {request: lambda request=request: self.lower(request) for request in new},
            on_done=lambda _: on_done(),
        )

    def lower(self, request: Request) -> Lowered:
        """Lowers a micro-step or sampler for the group, or the update for the mesh."""
        if isinstance(request, Program):
            return self._lowering.micro_step(request, self._group)
        if request == UPDATE:
            return self._lowering.update()
        return self._lowering.sampler(self._sample, self._group, shift=self._shift)

    def footprints(
        self, requests: Sequence[Request], *, on_done: Callable[[], None]
    ) -> dict[Request, int]:
        """Compiles programs and returns the peak bytes per device of each.

        The bytes include the training state that stays on the device although the
        program does not read it. `on_done` is called after each program.
        """
        self.compile(requests, on_done=on_done)
        return {
            request: program_bytes(self.compiled[request])
            + resident_bytes(self._lowering, request)
            for request in requests
        }

    def batch_bytes(self, program: Program) -> int:
        """Returns the bytes of one micro-batch on each device."""
        return device_batch_bytes(self._lowering.trainer.model, program)


def device_batch_bytes(model: ModelSizes, program: Program) -> int:
    """Returns the bytes of one micro-batch on each device."""
    return batch_bytes(batch_spec(model, program)) // program.layout.batch


def program_bytes(compiled: Compiled) -> int:
    """Returns the bytes on each device of a running program and its arguments.

    Donated arguments are counted once.
    """
    memory = compiled.memory_analysis()
    if memory is None:
        raise NotImplementedError("this backend does not report the memory of programs")
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
        - memory.alias_size_in_bytes
    )


def resident_bytes(lowering: Lowering, request: Request) -> int:
    """Returns the bytes on each device that XLA's count of a program leaves out.

    These are the parts of the training state that the program does not read, and
    cuDNN's workspace, which is allocated at run time.
    """
    state, sums = lowering.state, lowering.sums
    if request == UPDATE:
        return bytes_per_device(state.frozen)
    beside = lowering.idle_bytes
    if not isinstance(request, Program):  # The sampler.
        return beside + bytes_per_device(sums)
    return beside + _attention_workspace(lowering, request)


def _attention_workspace(lowering: Lowering, program: Program) -> int:
    """Returns the bytes of cuDNN's float32 gradient sums in the backward pass."""
    mesh = lowering.placement.mesh
    if not lowering.placement.is_gpu:
        return 0
    model = lowering.trainer.model
    text = program.samples_per_device * model.num_joint_text_tokens
    width = model.width // mesh.shape[TENSOR_AXIS]
    return 4 * (program.tokens_per_device + text) * width


def device_memory(devices: Iterable[Any]) -> int:
    """Returns the bytes of each device that JAX may use; 0 if they are not reported."""
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    return min((limit for limit in limits if limit is not None), default=0)


def check_capacity(max_bytes: int, devices: Iterable[Any]) -> None:
    """Refuses a memory budget above the bytes of a device that JAX may use.

    Raises:
        InputError: The message names the limit and how to raise it.
    """
    limit = device_memory(devices)
    if limit and limit < max_bytes:
        raise InputError(
            f"balance.max_bytes={max_bytes}: expected at most {limit}, the bytes of "
            "a device that JAX may use; lower it, or set XLA_CLIENT_MEM_FRACTION, "
            "which is 0.75 by default, in the environment"
        )
