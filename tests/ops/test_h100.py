"""Compiles for H100s, without one: our kernels are called, on shards."""

import collections
import json
import math
import re
from pathlib import Path

import pytest

from jaxload import targets
from jaxload.ops import _ffi
from jaxload.targets.child_process import PLUGIN, run_python

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def tools(missing):
    """Skips or fails all tests of this module if build tools are missing."""
    remedy = "run `make test REQUIRE=cpu,cuda`"
    if "cuda" not in _ffi.platforms():
        missing("cuda", f"jaxload._ffi was built without CUDA; {remedy}")
    if not PLUGIN.is_dir():
        missing("cuda", f"JAX's CUDA plugin is not in {PLUGIN}; {remedy}")


DEVICES = """
from jaxload import targets
for device in targets.H100.devices(8):
    print(device.platform, device.device_kind, device.id)
"""


def test_devices_are_as_many_as_asked_for():
    devices = run_python("-c", DEVICES).splitlines()
    assert devices == [f"gpu {targets.H100.device_kind} {i}" for i in range(8)]


SHARDED = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import sharded_programs
from jax.sharding import AxisType
from jaxload import targets
mesh = sharded_programs.make_mesh(targets.H100.devices(8), AxisType.Auto)
print(json.dumps({{
    program.name: {{
        "found": sharded_programs.find(program.compile(mesh)),
        "expected": program.expected(mesh),
    }}
    for program in sharded_programs.PROGRAMS
}}))
"""


@pytest.fixture(scope="module")
def sharded_programs():
    """Compiles the programs of sharded_programs.py for eight H100s."""
    return json.loads(run_python("-c", SHARDED))


def _num_elements(collectives):
    """Counts result elements by collective and dtype, as XLA may merge collectives."""
    counts = collections.Counter()
    for kind, types in collectives:
        for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", " ".join(types)):
            counts[kind, dtype] += math.prod(map(int, filter(None, dims.split(","))))
    return counts


def test_kernels_run_on_shards(sharded_programs):
    assert len(sharded_programs) >= 12
    for name, program in sharded_programs.items():
        found, expected = program["found"], program["expected"]
        assert found["calls"] == expected["calls"], name
        if "collectives" in expected:
            assert _num_elements(found["collectives"]) == _num_elements(
                expected["collectives"]
            ), name


@pytest.mark.parametrize("num_devices", [1, 8])
def test_a_block_needs_less_memory(num_devices, capsys):
    arguments = ("block", str(num_devices), "2048", "1536")
    report = json.loads(run_python("-m", "benchmarks.h100", *arguments))
    kernel, plain = report["kernel"], report["plain"]
    with capsys.disabled():
        print(
            f"\nblock on {num_devices} H100: {kernel['temporary_bytes']:,} temporary "
            f"bytes with kernels, {plain['temporary_bytes']:,} with the plain form"
        )
    assert plain["targets"] == []
    assert kernel["targets"] == [
        f"jaxload_{name}_{direction}"
        for name in ("gated_residual_layer_norm_modulate", "layer_norm_modulate")
        for direction in ("bwd", "fwd")
    ]
    assert kernel["temporary_bytes"] < plain["temporary_bytes"]
