"""Memory of train steps on H100s, compiled without one.

    python -m benchmarks.models.h100                              # prints the table
    python -m benchmarks.models.h100 CASE REMAT [DEPTH] [FRAMES]  # one case, as JSON

A step is the trainer's two programs, micro-step and update. The bytes of a micro-step
are counted as in jaxload.planning.footprint: its arguments, which include the gradient
sums, its temporaries, and the optimizer state. The update has the whole state as
arguments. On several GPUs, parameters, gradients and optimizer state are sharded by
jaxload.parallel.sharding_rules. Needs the tools that benchmarks.h100 needs.
"""

import dataclasses
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import cast

from rich.table import Table

from jaxload import targets
from jaxload.balance.form import Grid
from jaxload.balance.program import Program, Remat
from jaxload.console import Console
from jaxload.models import ModelConfig, WanConfig, preset
from jaxload.ops import _ffi
from jaxload.parallel.config import MeshConfig
from jaxload.parallel.placement import place
from jaxload.planning.footprint import UPDATE, program_bytes, resident_bytes
from jaxload.shapes.geometry import Sizes
from jaxload.targets.child_process import PLUGIN, run_python
from jaxload.training.config import FlowConfig, OptimizerConfig
from jaxload.training.lowering import Lowering, bytes_per_device
from jaxload.training.step import make_trainer

# 81 frames of 480 x 832: 32,760 tokens.
LATENT = (21, 60, 104)
USABLE_BYTES = 80_000_000_000
"""Memory of a GPU that a program may use, out of 84.9 GB. JAX takes three quarters of
the memory by default; this value requires XLA_CLIENT_MEM_FRACTION=0.95."""

REMATS: tuple[Remat, ...] = ("attention", "full")


@dataclasses.dataclass(frozen=True)
class Case:
    """A preset on `num_devices` GPUs of one host, with one sample on each."""

    preset: str
    num_devices: int


CASES = {
    "1.3b": Case("wan2.1-t2v-1.3b", 1),
    "14b": Case("wan2.1-t2v-14b", 8),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """Memory of a compiled step, in bytes per device, and calls in its code."""

    case: str
    remat: str
    is_preset: bool
    """True if `remat` is the preset's own policy."""

    arguments: int
    """Arguments of the micro-step; `temporaries` are the micro-step's too."""

    temporaries: int
    optimizer: int
    micro_step: int
    """All bytes on a device during the micro-step."""

    update: int
    """All bytes on a device during the update."""

    capacity: int
    compile_seconds: float
    calls: dict[str, int]
    """Number of custom calls in the HLO text by target, cuDNN's and ours."""

    attention: list[str]
    """Result type of each forward call of cuDNN attention."""

    collectives: dict[str, list[str]]
    """Result shapes, such as `5120,13824`, of the micro-step's collectives by name."""

    update_collectives: dict[str, list[str]]
    """Result shapes of the update's collectives by name."""

    @property
    def total(self) -> int:
        """Peak bytes on a device."""
        return max(self.micro_step, self.update)

    @property
    def is_small_enough(self) -> bool:
        """True if the peak is at most USABLE_BYTES."""
        return self.total <= USABLE_BYTES


def find(
    case: str, remat: Remat, depth: int | None = None, frames: int = LATENT[0]
) -> Finding:
    """Compiles a case with a remat policy, optionally with other depth and frames."""
    num_devices = CASES[case].num_devices
    config = preset(CASES[case].preset)
    assert isinstance(config, WanConfig)
    is_preset = remat == config.remat
    config = dataclasses.replace(config, remat=remat, depth=depth or config.depth)
    mesh = MeshConfig(fsdp=num_devices)
    lowering = make_lowering(config, mesh, targets.H100.devices(num_devices))
    program = one_sample_each(lowering, (frames, *LATENT[1:]), remat)
    start = time.perf_counter()
    micro_step = lowering.micro_step(program, lowering.placement.groups[0]).compile()
    update = lowering.update().compile()
    seconds = time.perf_counter() - start
    memory = micro_step.memory_analysis()
    assert memory is not None
    text = micro_step.as_text() or ""
    return Finding(
        case=case,
        remat=remat,
        is_preset=is_preset,
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        optimizer=bytes_per_device(lowering.state.opt_state),
        micro_step=program_bytes(micro_step) + resident_bytes(lowering, program),
        update=program_bytes(update) + resident_bytes(lowering, UPDATE),
        capacity=targets.H100.memory_bytes,
        compile_seconds=seconds,
        calls=dict(
            Counter(
                re.findall(r'custom_call_target="((?:__cudnn|jaxload)[\w$]+)', text)
            )
        ),
        attention=re.findall(
            r" = \((\w+\[[\d,]*\]).* custom-call\(.*\"__cudnn\$fmhaSoftmax\"", text
        ),
        collectives=collectives(text),
        update_collectives=collectives(update.as_text() or ""),
    )


def make_lowering(config: ModelConfig, mesh: MeshConfig, devices: list) -> Lowering:
    """Returns the lowering of a model's training programs on some devices."""
    trainer = make_trainer(
        config, FlowConfig(), OptimizerConfig(learning_rate=1e-4), seed=0
    )
    return Lowering(trainer, place(mesh, devices))


def one_sample_each(lowering: Lowering, latent: Sizes, remat: Remat) -> Program:
    """Returns the program with one sample per device of a group."""
    layout = lowering.placement.layout
    return Program(form=Grid(*latent), batch=layout.batch, layout=layout, remat=remat)


_COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all")


def collectives(text: str) -> dict[str, list[str]]:
    """Returns the result shapes of the collectives in HLO text, by name.

    Shapes of asynchronous collectives include operands, which are in the same tuple.
    """
    found = {}
    for name in (*_COLLECTIVES, "collective-permute"):
        types = re.findall(rf" = (.*?) {name}(?:-start)?\(", text)
        shapes = sorted(set(re.findall(r"\w+\[([\d,]*)\]", " ".join(types))))
        if shapes:
            found[name] = shapes
    return found


def measure(case: str, remat: Remat, *options: int) -> Finding:
    """Runs `find` in a process that can compile for GPUs."""
    arguments = [case, remat, *map(str, options)]
    report = run_python("-m", "benchmarks.models.h100", *arguments)
    return Finding(**json.loads(report))


def missing_tools() -> str | None:
    """Returns the missing build product and its make target, or None."""
    if "cuda" not in _ffi.platforms():
        return "jaxload._ffi was built without CUDA; run `make cuda`"
    if not PLUGIN.is_dir():
        return "JAX's CUDA plugin is not installed; run `make .venv/.h100`"
    return None


def print_table(findings: Sequence[Finding], console: Console) -> None:
    """Prints the memory of each case, and whether a GPU has enough."""
    table = Table(
        title="A step of 32,760 tokens on each H100, compiled: GB of a device",
        caption=f"* the policy of the preset. Fits: up to "
        f"{USABLE_BYTES / 1e9:.0f} GB, with XLA_CLIENT_MEM_FRACTION=0.95",
    )
    table.add_column("")
    for finding in findings:
        case = CASES[finding.case]
        star = "*" if finding.is_preset else ""
        title = f"{finding.case} on {case.num_devices}\n{finding.remat}{star}"
        table.add_column(title, justify="right")
    parts = {
        "parameters, gradients": lambda f: f.arguments,
        "temporaries": lambda f: f.temporaries,
        "optimizer's state": lambda f: f.optimizer,
        "together: micro-step": lambda f: f.micro_step,
        "update": lambda f: f.update,
    }
    for name, part in parts.items():
        table.add_row(name, *(f"{part(finding) / 1e9:.1f}" for finding in findings))
    table.add_row("of the card", *(f"{f.total / f.capacity:.0%}" for f in findings))
    table.add_row(
        "fits", *("yes" if f.is_small_enough else "[bold red]NO[/]" for f in findings)
    )
    table.add_row("compiled in", *(f"{f.compile_seconds:.0f} s" for f in findings))
    console.print(table)


def main(argv: Sequence[str]) -> int:
    """Runs `python -m benchmarks.models.h100`; returns the exit code."""
    if argv:
        case, name, *options = argv
        finding = find(case, cast(Remat, name), *map(int, options))
        print(json.dumps(dataclasses.asdict(finding)))
        return 0
    findings = [measure(case, remat) for case in CASES for remat in REMATS]
    print_table(findings, Console())
    return 0 if all(f.is_small_enough for f in findings if f.is_preset) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
