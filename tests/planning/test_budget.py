"""Tests the memory budget of a run: in bytes if known, else in tokens."""

import pytest

from jaxload.balance.config import BalanceConfig
from jaxload.balance.program import Layout
from jaxload.config import Config, override_all
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig
from jaxload.planning.analytic_cost import analytic_cost
from jaxload.planning.memory import CompiledMemory, Memory, TokenMemory
from jaxload.runs.setup import Hardware, find_hardware, make_memory, memory_budget
from tests.planning.fake_compiler import FakeCompiler

DEVICE_BYTES = 80_000_000_000


@pytest.mark.parametrize(
    ("config", "memory_bytes", "budget"),
    [
        (BalanceConfig(), DEVICE_BYTES, 76_000_000_000),
        (BalanceConfig(reserve=0.2), DEVICE_BYTES, 64_000_000_000),
        (BalanceConfig(reserve=0.0), DEVICE_BYTES, DEVICE_BYTES),
        (BalanceConfig(max_bytes=123, reserve=0.2), DEVICE_BYTES, 123),
        (BalanceConfig(max_bytes=123), 0, 123),
        (BalanceConfig(max_tokens=64), 0, 0),
    ],
)
def test_configured_bytes_override_the_memory_of_the_device(
    config: BalanceConfig, memory_bytes: int, budget: int
):
    assert memory_budget(config, memory_bytes) == budget


def memory_of(
    config: Config, *assignments: str, memory_bytes: int = 0, compiles: bool = True
) -> Memory:
    hardware = Hardware(
        mesh=MeshConfig(replica=1, fsdp=2),
        memory_bytes=memory_bytes,
        target="fake",
        compiler=FakeCompiler() if compiles else None,
        lowering=None,
        is_gpu=False,
    )
    config = override_all(config, ["balance.max_tokens=0", *assignments])
    costs = analytic_cost(config.model)
    return make_memory(config, hardware, costs, Console(quiet=True))


def test_the_budget_is_in_bytes_if_the_device_reports_its_memory(debug_config: Config):
    memory = memory_of(debug_config, memory_bytes=DEVICE_BYTES)
    assert isinstance(memory, CompiledMemory)
    assert memory.source.startswith("76,000,000,000 bytes of each device")


def test_configured_bytes_are_the_budget_if_the_device_reports_none(
    debug_config: Config,
):
    memory = memory_of(debug_config, "balance.max_bytes=5000")
    assert isinstance(memory, CompiledMemory)
    assert memory.source.startswith("5,000 bytes of each device")


def test_the_budget_is_in_tokens_if_no_bytes_are_known(debug_config: Config):
    assignments = ("balance.max_tokens=640", "balance.batch_multiple=4")
    memory = memory_of(debug_config, *assignments, "model.remat=auto")
    assert memory == TokenMemory(
        max_tokens=640, layout=Layout(batch=2), remat="none", multiple=4
    )


def test_a_missing_budget_is_one_line(debug_config: Config):
    message = (
        "balance.max_tokens=0: fake does not tell how much memory it has; set "
        "balance.max_tokens to the tokens that fit on a device, or balance.max_bytes, "
        "or name a GPU to plan for with --target$"
    )
    with pytest.raises(InputError, match=message):
        memory_of(debug_config)


def test_a_budget_in_bytes_for_absent_devices_is_one_line(debug_config: Config):
    message = "balance.max_bytes=5000: a budget in bytes .* not here; name .*--target"
    with pytest.raises(InputError, match=message):
        memory_of(debug_config, "balance.max_bytes=5000", compiles=False)


# --- Devices ---


def test_absent_devices_have_no_compiler(debug_config: Config):
    hardware = find_hardware(debug_config, target=None, num_devices=6)
    assert hardware.mesh == MeshConfig(replica=6)
    assert (hardware.compiler, hardware.lowering) == (None, None)
    assert find_hardware(debug_config, target=None, num_devices=2).compiler is not None


@pytest.mark.parametrize("target", [None, "h100-80gb"])
@pytest.mark.parametrize("num_devices", [0, -8])
def test_less_than_one_device_is_one_line(
    debug_config: Config, target: str | None, num_devices: int
):
    with pytest.raises(InputError, match=f"--devices {num_devices}: expected 1 or"):
        find_hardware(debug_config, target=target, num_devices=num_devices)
