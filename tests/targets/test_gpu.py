"""Tests look-up of targets and of devices to compile for, and its errors."""

import subprocess
import sys

import jax
import pytest
from jax.experimental import topologies

from jaxload import targets
from jaxload.errors import InputError

NAMES = "a100-40gb, a100-80gb, h100-80gb, h200-141gb, b200-180gb, rtx4090-24gb"


@pytest.mark.parametrize("num_devices", [0, -1])
def test_refuses_less_than_one_device(num_devices: int):
    message = f"h100-80gb: expected 1 device or more, got {num_devices}$"
    with pytest.raises(InputError, match=message):
        targets.H100.devices(num_devices)


def test_says_what_to_install_without_the_plugin(monkeypatch: pytest.MonkeyPatch):
    # Simulates the error of JAX, because the plugin may be installed.
    def get_topology_desc(**_: str):
        raise RuntimeError("Unknown backend cuda")

    monkeypatch.setattr(topologies, "get_topology_desc", get_topology_desc)
    message = (
        "cannot compile for h100-80gb: Unknown backend cuda; install jax-cuda13-plugin "
        f"and jax-cuda13-pjrt {jax.__version__}, and start Python with "
        "JAX_PLATFORMS=cpu JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1$"
    )
    with pytest.raises(InputError, match=message):
        targets.H100.devices(1)


@pytest.mark.parametrize("name", NAMES.split(", "))
def test_a_target_has_the_memory_that_its_name_says(name: str):
    gpu = targets.find_target(name)
    assert gpu.name == name
    gigabytes = int(name.removesuffix("gb").rpartition("-")[2])
    # Names are in GB or GiB, and may or may not count the bytes that ECC takes.
    assert 0.95 < gpu.memory_bytes / (gigabytes * 1e9) < 2**30 / 1e9 + 0.01


def test_all_targets_are_listed_once():
    assert ", ".join(targets.TARGETS) == NAMES
    assert len({gpu.device_kind for gpu in targets.TARGETS.values()}) == 6


@pytest.mark.parametrize("name", ["H100-80GB", "h100-80gb", "H100-80gb"])
def test_case_of_a_name_is_ignored(name: str):
    assert targets.find_target(name) is targets.H100


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("H100", "h100-80gb"), ("4090", "rtx4090-24gb"), ("h200-80gb", "h100-80gb")],
)
def test_unknown_name_gets_the_nearest_and_the_list(name: str, nearest: str):
    message = f"^target '{name}': expected one of {NAMES}; did you mean '{nearest}'\\?$"
    with pytest.raises(InputError, match=message):
        targets.find_target(name)


def test_targets_are_known_without_jax():
    code = "import sys, jaxload.targets; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
