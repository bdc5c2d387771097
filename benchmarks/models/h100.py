"""Train steps compiled for H100s that are not there: does each fit in the card?

    python -m benchmarks.models.h100                              # prints the table
    python -m benchmarks.models.h100 CASE REMAT [DEPTH] [FRAMES]  # one of it, as JSON

A step is the trainer's own two programs. The micro-step is counted as
jaxload.planning.footprint does it: with its arguments, among them the sums of gradients
that it adds to, and with the optimizer's state beside it. The update has all of the
state as arguments. On several cards, parameters, gradients and the optimizer's state
are cut by jaxload.parallel.sharding. Needs the tools that benchmarks.h100 needs.
"""

import dataclasses
import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Lowered
from rich.console import Console
from rich.table import Table

from benchmarks import h100
from jaxload import targets
from jaxload.models import WanConfig, WanTransformer, preset
from jaxload.models.remat import Remat
from jaxload.ops import _ffi
from jaxload.parallel.sharding import (
    batch_sharding,
    make_mesh,
    param_shardings,
    sharded,
)
from jaxload.planning.footprint import program_bytes
from jaxload.training.objective import FlowConfig
from jaxload.training.optimizer import (
    OptimizerConfig,
    learning_rate_schedule,
    make_optimizer,
)
from jaxload.training.step import Trainer

# 81 frames of 480 x 832: 32,760 tokens.
LATENT = (21, 60, 104)
USABLE_BYTES = 80_000_000_000
"""Of a card's 84.9 GB; JAX itself takes three quarters of a card unless it is told
XLA_CLIENT_MEM_FRACTION, which is 0.95 for this."""

REMATS: tuple[Remat, ...] = ("attention", "full")


@dataclasses.dataclass(frozen=True)
class Case:
    """A preset on so many cards of one host, with one sample on each."""

    preset: str
    num_devices: int


CASES = {
    "1.3b": Case("wan2.1-t2v-1.3b", 1),
    "14b": Case("wan2.1-t2v-14b", 8),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """What XLA made of a step, in bytes of each device."""

    case: str
    remat: str
    is_preset: bool
    """Whether this is the policy that the preset names."""

    arguments: int
    """Of the micro-step, as are the temporaries."""

    temporaries: int
    optimizer: int
    micro_step: int
    """All that lies on a device meanwhile."""

    update: int
    """The same, of the update."""

    capacity: int
    compile_seconds: float
    calls: dict[str, int]
    """Custom calls of cuDNN and ours, each by the times that it stands in the text."""

    attention: list[str]
    """Types of the results of each cuDNN attention forward."""

    gathers: list[str]
    """Shapes that all-gathers make, such as `5120,13824`."""

    update_gathers: list[str]
    """Those of the update."""

    @property
    def total(self) -> int:
        """What a card must hold."""
        return max(self.micro_step, self.update)

    @property
    def fits(self) -> bool:
        """Whether it stays below what is usable of a card."""
        return self.total <= USABLE_BYTES


def find(
    case: str, remat: Remat, depth: int | None = None, frames: int = LATENT[0]
) -> Finding:
    """Compiles a case with a policy, with fewer layers and frames if told."""
    num_devices = CASES[case].num_devices
    config = preset(CASES[case].preset)
    assert isinstance(config, WanConfig)
    is_preset = remat == config.remat
    config = dataclasses.replace(config, remat=remat, depth=depth or config.depth)
    mesh = make_mesh(targets.H100.devices(num_devices), fsdp=num_devices)
    start = time.perf_counter()
    step = lower_step(config, mesh, (frames, *LATENT[1:]))
    micro_step, update = step.micro_step.compile(), step.update.compile()
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
        optimizer=step.optimizer_bytes,
        micro_step=program_bytes(micro_step) + step.optimizer_bytes,
        update=program_bytes(update),
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
        gathers=_gathered(text),
        update_gathers=_gathered(update.as_text() or ""),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """The programs of a train step, ready to be compiled."""

    micro_step: Lowered
    update: Lowered
    optimizer_bytes: int
    """Of its state, on each device."""


def lower_step(config: WanConfig, mesh: Mesh, latent: Sequence[int]) -> Step:
    """The step of one sample on each device."""
    trainer, params = _make_trainer(config)
    abstract = jax.eval_shape(trainer.init, params, nnx.State({}))
    shardings = param_shardings(abstract, mesh)
    state, sums = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        abstract,
        shardings,
    )
    micro_step = jax.jit(
        trainer.micro_step, donate_argnums=1, out_shardings=shardings[1]
    )
    scalars = NamedSharding(mesh, PartitionSpec())
    update = jax.jit(
        trainer.update, donate_argnums=(0, 1), out_shardings=(*shardings, scalars)
    )
    with sharded(mesh):
        return Step(
            micro_step=micro_step.lower(state, sums, _batch(config, mesh, latent)),
            update=update.lower(state, sums),
            optimizer_bytes=_bytes_per_device(state.opt_state),
        )


def _make_trainer(config: WanConfig) -> tuple[Trainer, nnx.State]:
    model = nnx.eval_shape(lambda: WanTransformer(config, rngs=nnx.Rngs(0)))
    graphdef, params = nnx.split(model)
    optimizer = OptimizerConfig(learning_rate=1e-4)
    trainer = Trainer(
        graphdef=graphdef,
        optimizer=make_optimizer(optimizer),
        learning_rate=learning_rate_schedule(optimizer),
        flow=FlowConfig(),
        seed=0,
    )
    return trainer, params


def _batch(
    config: WanConfig, mesh: Mesh, latent: Sequence[int]
) -> dict[str, jax.ShapeDtypeStruct]:
    leaves = {
        "latent": ((*latent, config.channels), jnp.bfloat16),
        "text": ((config.num_text_tokens, config.text_dim), jnp.bfloat16),
        "id": ((), jnp.int32),
    }
    return {
        name: jax.ShapeDtypeStruct(
            (mesh.size, *shape), dtype, sharding=batch_sharding(mesh)
        )
        for name, (shape, dtype) in leaves.items()
    }


def _bytes_per_device(tree: Any) -> int:
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
    )


def _gathered(text: str) -> list[str]:
    """The shapes of all results of all-gathers; of asynchronous ones, operands too."""
    types = re.findall(r" = (.*?) all-gather(?:-start)?\(", text)
    return sorted(set(re.findall(r"\w+\[([\d,]*)\]", " ".join(types))))


def measure(case: str, remat: Remat, *options: int) -> Finding:
    """As `find`, in a process that can compile for GPUs."""
    arguments = [case, remat, *map(str, options)]
    report = h100.run_python("-m", "benchmarks.models.h100", *arguments)
    return Finding(**json.loads(report))


def missing_tools() -> str | None:
    """What has to be made before anything can be compiled here, if it is not there."""
    if "cuda" not in _ffi.platforms():
        return "jaxload._ffi was built without CUDA; run `make cuda`"
    if not h100.PLUGIN.is_dir():
        return "JAX's CUDA plugin is not there; run `make .venv/.h100`"
    return None


def print_table(findings: Sequence[Finding], console: Console) -> None:
    """Prints bytes, and what fits."""
    table = Table(
        title="A step of 32,760 tokens on each H100, compiled: GB of a device",
        caption=f"* the policy that the preset names. Fits: up to "
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
    table.add_row("fits", *("yes" if f.fits else "[bold red]NO[/]" for f in findings))
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
    return 0 if all(f.fits for f in findings if f.is_preset) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
