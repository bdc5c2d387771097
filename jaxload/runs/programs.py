"""Compiles every program of a run before its first step."""

import dataclasses
from collections.abc import Mapping

from jax.stages import Compiled

from jaxload.balance.program import Program
from jaxload.console import Console, phase
from jaxload.errors import InputError
from jaxload.planning.footprint import SAMPLE, UPDATE, LocalCompiler, add_queue
from jaxload.planning.plan import Plan
from jaxload.training.compile import CompileCounter, compile_ahead
from jaxload.training.lowering import Lowering, Origin

_INIT = "init"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPrograms:
    """Executables of a run."""

    init: Compiled
    update: Compiled
    sample: Compiled
    micro_steps: Mapping[tuple[int, Program], Compiled]
    """Micro-steps by group index and program, for the groups of this process."""


def compile_run(
    compiler: LocalCompiler,
    lowering: Lowering,
    plan: Plan,
    *,
    origin: Origin,
    console: Console,
) -> RunPrograms:
    """Compiles the programs of a run that planning has not compiled.

    Each micro-step is compiled first for the first group of this process. On GPUs, the
    cache key does not name the devices, so the other groups then hit the cache. If all
    groups were compiled at the same time, all would miss the cache.
    """
    programs = [bucket.program for bucket in plan.buckets]
    first, *others = lowering.placement.local_groups
    wanted = [UPDATE, SAMPLE, *programs]
    missing = [request for request in wanted if request not in compiler.compiled]
    elsewhere = [(group, program) for group in others for program in programs]
    total = 1 + len(missing) + len(elsewhere)
    with (
        CompileCounter() as counter,
        phase(console, "compiling", total) as advance,
    ):
        compiled = compile_ahead(
            {request: lambda r=request: compiler.lower(r) for request in missing}
            | {_INIT: lambda: lowering.init(origin)},
            on_done=lambda _: advance(),
        )
        init = compiled.pop(_INIT)
        compiler.compiled |= compiled
        further = compile_ahead(
            {
                (group.index, program): lambda g=group, p=program: lowering.micro_step(
                    p, g
                )
                for group, program in elsewhere
            },
            on_done=lambda _: advance(),
        )
    console.say(
        f"programs: {counter.count - counter.loaded} compiled, {counter.loaded} loaded "
        f"from the cache, {len(wanted) - len(missing)} kept from planning"
    )
    here = {(first.index, program): compiler.compiled[program] for program in programs}
    return RunPrograms(
        init=init,
        update=compiler.compiled[UPDATE],
        sample=compiler.compiled[SAMPLE],
        micro_steps=here | further,
    )


def check_bytes(plan: Plan, compiler: LocalCompiler, memory_bytes: int) -> None:
    """Refuses programs that need more memory than the run may use.

    A plan for other devices, or with a budget in tokens, may have such programs.

    Args:
        plan: Plan with the programs.
        compiler: Compiler that has compiled the programs.
        memory_bytes: Bytes of each device that the run may use; 0: not known.
    """
    requests = [UPDATE, SAMPLE, *(bucket.program for bucket in plan.buckets)]
    found = add_queue(compiler, compiler.footprints(requests, on_done=lambda: None))
    for request, num_bytes in found.items():
        if memory_bytes and num_bytes > memory_bytes:
            raise InputError(
                f"program {request} needs {num_bytes:,} bytes of each device, and the "
                f"run may take {memory_bytes:,}; plan again for these devices, raise "
                "balance.max_bytes or XLA_CLIENT_MEM_FRACTION, or shard the model over "
                "more devices (mesh.fsdp)"
            )
