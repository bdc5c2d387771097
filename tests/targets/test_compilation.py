"""Compiles for every target in a child process, without such a GPU."""

import os
from pathlib import Path
from typing import Any

import pytest

from jaxload import targets
from jaxload.errors import InputError
from jaxload.targets.child_process import environment

pytestmark = pytest.mark.gpu

WIDTH = 256
MATRIX_BYTES = WIDTH * WIDTH * 2


@pytest.fixture(scope="module", autouse=True)
def plugin():
    """Skips without the CUDA plugin, or fails if it is required."""
    try:
        environment()
    except InputError as error:
        if "cuda" in os.environ.get("JAXLOAD_REQUIRE_KERNELS", ""):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def programs(plugin: None) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns program descriptions by target and number of devices, from one child."""
    replies: list[dict[str, Any]] = []
    request = {"targets": list(targets.TARGETS), "num_devices": [1, 2]}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)
        targets.run_module("compiling_child", request, replies.append)
    return {(reply["target"], reply["num_devices"]): reply for reply in replies}


def test_programs_compile_for_each_target(
    programs: dict[tuple[str, int], dict[str, Any]],
):
    assert list(programs) == [(name, n) for name in targets.TARGETS for n in (1, 2)]


@pytest.mark.parametrize("name", targets.TARGETS)
def test_devices_are_those_of_the_table(
    name: str, programs: dict[tuple[str, int], dict[str, Any]]
):
    gpu = targets.find_target(name)
    for num_devices in (1, 2):
        program = programs[name, num_devices]
        assert program["device_kind"] == gpu.device_kind
        capability = ".".join(map(str, gpu.compute_capability))
        assert program["compute_capability"] == capability


@pytest.mark.parametrize("name", targets.TARGETS)
def test_sharded_weights_are_gathered(
    name: str, programs: dict[tuple[str, int], dict[str, Any]]
):
    single, split = programs[name, 1], programs[name, 2]
    assert single["gathered"] == []
    assert single["argument_bytes"] == 2 * MATRIX_BYTES
    assert split["gathered"]
    assert split["argument_bytes"] == MATRIX_BYTES
    assert single["peak_bytes"] >= 3 * MATRIX_BYTES
    # Half of three matrices, and all of the weights.
    assert split["peak_bytes"] >= 2.5 * MATRIX_BYTES


def test_unknown_target_is_refused_by_the_child():
    request = {"targets": ["h100"], "num_devices": [1]}
    replies: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)
        with pytest.raises(InputError, match=r"^target 'h100': expected one of"):
            targets.run_module("compiling_child", request, replies.append)
    assert replies == []
