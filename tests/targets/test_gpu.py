"""Devices to compile for: refused aloud. tests/ops/test_h100.py compiles for some."""

import jax
import pytest
from jax.experimental import topologies

from jaxload import targets
from jaxload.errors import InputError


@pytest.mark.parametrize("num_devices", [0, -1])
def test_refuses_less_than_one_device(num_devices):
    message = f"H100: expected 1 device or more, got {num_devices}$"
    with pytest.raises(InputError, match=message):
        targets.H100.devices(num_devices)


def test_says_what_to_install_without_the_plugin(monkeypatch):
    # Raised here rather than by JAX, which may have the plugin where tests run.
    def get_topology_desc(**_):
        raise RuntimeError("Unknown backend cuda")

    monkeypatch.setattr(topologies, "get_topology_desc", get_topology_desc)
    message = (
        "cannot compile for H100: Unknown backend cuda; install jax-cuda13-plugin and "
        f"jax-cuda13-pjrt {jax.__version__}, and start Python with JAX_SKIP_CUDA_"
    )
    with pytest.raises(InputError, match=message):
        targets.H100.devices(1)
