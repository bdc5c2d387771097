"""Tests the CPU kernels without XLA: equal bits for all instruction sets and pools."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Slow if the kernels have to be compiled first.
pytestmark = pytest.mark.slow


def _run(*command: str | Path) -> str:
    scripts = sysconfig.get_path("scripts")  # Has cmake and ninja.
    environment = os.environ | {"PATH": os.pathsep.join([scripts, os.environ["PATH"]])}
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def build_dir():
    """Builds the kernels and their C++ test; returns the build directory."""
    directory = ROOT / "build" / "cpu_test"
    definitions = [f"-DPython_EXECUTABLE={sys.executable}", "-DJAXLOAD_CUDA=OFF"]
    _run("cmake", "-G", "Ninja", "-S", ROOT / "ffi", "-B", directory, *definitions)
    _run("cmake", "--build", directory, "--target", "layer_norm_modulate_cpu_test")
    return directory


def test_all_instruction_sets_and_pools_give_the_same_bits(build_dir):
    output = _run(build_dir / "layer_norm_modulate_cpu_test")
    assert "comparisons: portable" in output


def test_what_needs_an_instruction_set_is_called_after_asking_for_it(build_dir):
    # An inline function that other files may also define, such as std::min, must not be
    # among these: the linker keeps one copy, which would run on all machines.
    archive = build_dir / "libjaxload_kernels.a"
    symbols = _run("nm", "--demangle", "--defined-only", "--extern-only", archive)
    rows = symbols.split("layer_norm_modulate_cpu_rows.cc.o:\n")[1:]
    assert rows
    for isa in rows:
        lines = isa.split("\n\n")[0].splitlines()
        entry_points = [line for line in lines if "(jaxload::Isa)" in line]
        assert len(entry_points) == 13  # Two per dtype and form, and one for sums.
        assert lines == entry_points
