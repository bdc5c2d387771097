"""Parts of a run that planning and training share, built from its config."""

import dataclasses

import jax

from jaxload import targets
from jaxload.balance.config import BalanceConfig
from jaxload.balance.cost import CostModel
from jaxload.config import Config
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.models import attention_skips_padding
from jaxload.parallel.config import MeshConfig
from jaxload.parallel.mesh import resolve
from jaxload.parallel.placement import GPU_PLATFORMS, Placement, place
from jaxload.planning.costs import make_cost_model
from jaxload.planning.footprint import Compiler, LocalCompiler, device_memory
from jaxload.planning.memory import (
    CompiledMemory,
    Memory,
    TokenMemory,
    remats_to_try,
)
from jaxload.planning.planner import Planner
from jaxload.planning.samples import Samples
from jaxload.planning.target_compiler import TargetCompiler
from jaxload.targets import Gpu
from jaxload.training.lowering import Lowering
from jaxload.training.step import Trainer, make_trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """Devices that a plan is made for: of this machine, or of a target."""

    mesh: MeshConfig
    """Sizes of the mesh; `replica` is the number of groups."""

    memory_bytes: int
    """Bytes of each device that JAX may use; 0 if they are not reported."""

    target: str
    compiler: Compiler | None
    """Compiler for the devices; None for absent devices without a target."""

    lowering: Lowering | None
    """Programs for the devices of this machine; None for a target."""

    is_gpu: bool
    """True for GPUs, whose attention may take no time for padding."""


def trainer_of(config: Config) -> Trainer:
    """Builds the trainer that a config describes."""
    _check_tensor(config)
    return make_trainer(
        config.model, config.flow, config.optimizer, seed=config.train.seed
    )


def _check_tensor(config: Config) -> None:
    """Raises InputError if `mesh.tensor` does not divide the attention heads."""
    heads, tensor = config.model.num_heads, config.mesh.tensor
    if heads % tensor:
        nearest = max(n for n in range(1, tensor) if heads % n == 0)
        raise InputError(
            f"mesh.tensor={tensor}: expected a divisor of model.num_heads={heads}; the "
            f"nearest that works is mesh.tensor={nearest}"
        )


def local_hardware(config: Config, placement: Placement) -> Hardware:
    """Describes the devices of this machine."""
    lowering = Lowering(trainer_of(config), placement)
    devices = placement.mesh.local_devices
    return Hardware(
        mesh=resolve(config.mesh, placement.mesh.size),
        memory_bytes=device_memory(devices),
        target=placement.device_kind,
        compiler=local_compiler(config, lowering),
        lowering=lowering,
        is_gpu=placement.is_gpu,
    )


def local_compiler(config: Config, lowering: Lowering) -> LocalCompiler:
    """Builds a compiler for the first group of this process."""
    group = lowering.placement.local_groups[0]
    return LocalCompiler(lowering, group, config.sample, shift=config.flow.shift)


def target_hardware(config: Config, target: Gpu, num_devices: int | None) -> Hardware:
    """Describes GPUs of a type that this machine need not have.

    Args:
        config: Config of the run.
        target: Type of GPU.
        num_devices: Number of GPUs; None: the GPUs of `mesh.replica` groups (of one
            group for -1).
    """
    if num_devices is None:
        num_devices = max(1, config.mesh.replica) * config.mesh.devices_per_group
    mesh = resolve(config.mesh, num_devices)
    _check_tensor(config)
    cache = targets.ResultCache(targets.default_directory())
    return Hardware(
        mesh=mesh,
        memory_bytes=target.usable_bytes,
        target=target.name,
        compiler=TargetCompiler(config, mesh, target, cache),
        lowering=None,
        is_gpu=True,
    )


def find_hardware(
    config: Config, *, target: str | None, num_devices: int | None
) -> Hardware:
    """Describes the devices that a command line names.

    Args:
        config: Config of the run.
        target: Name of a type of GPU; None: the type of this machine's devices.
        num_devices: Number of devices; None: all devices of this machine, or for a
            target the devices of `mesh.replica` groups (of one group for -1).
    """
    if num_devices is not None and num_devices < 1:
        raise InputError(f"--devices {num_devices}: expected 1 or more")
    if target is not None:
        return target_hardware(config, targets.find_target(target), num_devices)
    here = jax.devices()
    if num_devices is None or num_devices == len(here):
        return local_hardware(config, place(config.mesh, here))
    return Hardware(
        mesh=resolve(config.mesh, num_devices),
        memory_bytes=0,
        target=here[0].device_kind,
        compiler=None,
        lowering=None,
        is_gpu=here[0].platform in GPU_PLATFORMS,
    )


def this_placement(config: Config) -> Placement:
    """Returns the placement of a config on all devices of all processes."""
    return place(config.mesh, jax.devices())


def make_planner(
    config: Config,
    samples: Samples,
    hardware: Hardware,
    console: Console,
    *,
    num_replicas: int,
) -> Planner:
    """Builds the planner of a run."""
    costs = make_cost_model(
        config,
        console,
        hardware.lowering,
        budget=memory_budget(config.balance, hardware.memory_bytes),
        skips_padding=hardware.is_gpu and attention_skips_padding(config.model),
    )
    return Planner(
        config,
        samples,
        costs,
        make_memory(config, hardware, costs, console),
        hardware.mesh,
        num_replicas=num_replicas,
        target=hardware.target,
        console=console,
    )


def make_memory(
    config: Config, hardware: Hardware, costs: CostModel, console: Console
) -> Memory:
    """Builds the memory budget of a config: in bytes if known, otherwise in tokens."""
    layout = hardware.mesh.layout
    remats = remats_to_try(config.model.remat)
    budget = memory_budget(config.balance, hardware.memory_bytes)
    if budget and hardware.compiler is None:
        raise InputError(
            f"balance.max_bytes={config.balance.max_bytes}: a budget in bytes needs a "
            "compiler for the devices, which are not here; name their type with "
            "--target, or set balance.max_tokens instead"
        )
    if budget and hardware.compiler is not None:
        return CompiledMemory(
            hardware.compiler,
            costs,
            config.balance,
            budget=budget,
            origin=_budget_origin(config.balance, hardware),
            layout=layout,
            remats=remats,
            console=console,
        )
    if not config.balance.max_tokens:
        raise InputError(
            f"balance.max_tokens=0: {hardware.target} does not tell how much memory it "
            "has; set balance.max_tokens to the tokens that fit on a device, or "
            "balance.max_bytes, or name a GPU to plan for with --target"
        )
    return TokenMemory(
        max_tokens=config.balance.max_tokens,
        layout=layout,
        remat=remats[0],
        multiple=config.balance.batch_multiple,
    )


def _budget_origin(config: BalanceConfig, hardware: Hardware) -> str:
    if config.max_bytes:
        return f"balance.max_bytes={config.max_bytes}"
    return (
        f"memory of {hardware.target}, {hardware.memory_bytes:,} bytes less "
        f"balance.reserve={config.reserve}"
    )


def memory_budget(config: BalanceConfig, memory_bytes: int) -> int:
    """Returns the bytes of each device that programs may use; 0 if not known."""
    if config.max_bytes:
        return config.max_bytes
    return int(memory_bytes * (1 - config.reserve))
