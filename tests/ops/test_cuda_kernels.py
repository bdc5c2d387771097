"""Tests the CUDA kernels: emulated on the CPU, and as compiled by nvcc."""

import collections
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxload.ops._kernel import workspace_shape
from jaxload.testing import assert_trees_close
from tests.cuda_emulation import emulation
from tests.cuda_emulation.emulation import EmulationError, Options

SHAPES = [
    pytest.param((2, 37, 1536), id="16-columns"),
    pytest.param((2, 70, 256), id="one-warp-teams"),
    pytest.param((3, 9, 200), id="idle-lanes"),
    pytest.param((2, 21, 648), id="idle-lanes-of-the-last-warp"),
    pytest.param((2, 19, 1023), id="single-values"),
    pytest.param((1, 3, 2049), id="single-values-wide"),
    pytest.param((2, 3, 5120), id="large-team"),
    pytest.param((1, 2, 8192), id="largest-team"),
    pytest.param((2, 2, 8200), id="wide"),
    pytest.param((1, 1, 1), id="one-element"),
]

DTYPES = ["float32", "bfloat16", "float16"]


def _is_gated(operation):
    return "h_BSD" in operation.arguments


def _by_name(operation, arguments):
    names = [name.split("_")[0] for name in operation.arguments]
    return dict(zip(names, map(np.asarray, arguments), strict=True))


def _forward(operation, arguments, **options):
    values = _by_name(operation, arguments)
    return emulation.forward(
        *(values[name] for name in ("x", "scale", "shift")),
        h=values.get("h"),
        gate=values.get("gate"),
        options=Options(**options),
    )


def _backward(operation, arguments, cotangents, forward, num_runs=None, **options):
    """Runs the backward kernel, by default with as many runs as JAX would use."""
    values = _by_name(operation, arguments)
    if num_runs is None:
        num_sums = 3 if _is_gated(operation) else 2
        *_, num_runs, _, _ = workspace_shape(values["x"].shape, num_sums)
    return emulation.backward(
        values["x"],
        values["scale"],
        forward["mean"],
        forward["rstd"],
        np.asarray(cotangents[-1]),
        num_runs=num_runs,
        h=values.get("h"),
        gate=values.get("gate"),
        dresidual=np.asarray(cotangents[0]) if _is_gated(operation) else None,
        options=Options(**options),
    )


def _results_and_grads(operation, arguments, cotangents, num_runs=None, **options):
    """Returns the kernels' results and gradients, as `jax.vjp` would."""
    forward = _forward(operation, arguments, **options)
    backward = _backward(operation, arguments, cotangents, forward, num_runs, **options)
    names = ["residual", "y"] if _is_gated(operation) else ["y"]
    grads = ["d" + name.split("_")[0] for name in operation.arguments]
    return (
        tuple(forward[name] for name in names),
        tuple(backward[name] for name in grads),
    )


def _inputs(operation, shape, dtype):
    return operation.inputs(shape, jnp.dtype(dtype), jnp.float32)


def _assert_matches_float64(operation, arguments, cotangents, **how):
    results, grads = _results_and_grads(operation, arguments, cotangents, **how)
    desired = operation.float64(arguments, cotangents, results)
    assert_trees_close((results, grads), desired)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_float64(operation, shape, dtype):
    _assert_matches_float64(operation, *_inputs(operation, shape, dtype))


# Launches depend on the device, which may run threads, warps and blocks in any order.
DEVICES = [
    pytest.param({"seed": 1}, id="any-order"),
    pytest.param({"seed": 2, "num_sms": 1, "blocks_per_sm": 1}, id="one-block"),
    pytest.param({"seed": 3, "num_sms": 3, "blocks_per_sm": 1}, id="three-blocks"),
    pytest.param({"seed": 4, "num_sms": 1000}, id="idle-processors"),
    pytest.param({"seed": 5, "num_runs": 1}, id="one-run"),
    pytest.param({"seed": 6, "num_runs": 5}, id="five-runs"),
    pytest.param({"seed": 7, "num_runs": 512}, id="one-token-runs"),
]

# On some device, each kernel has runs with several rows per team.
SHAPES_OF_RUNS = [
    pytest.param((2, 37, 1536), id="16-columns"),
    pytest.param((2, 70, 256), id="one-warp-teams"),
    pytest.param((1, 5, 1023), id="single-values"),
    pytest.param((2, 5, 2049), id="single-values-wide"),
    pytest.param((2, 5, 5120), id="large-team"),
    pytest.param((2, 4, 8200), id="wide"),
]


@pytest.mark.parametrize("how", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES_OF_RUNS)
def test_matches_float64_on_any_device(operation, shape, dtype, how):
    _assert_matches_float64(operation, *_inputs(operation, shape, dtype), **how)


def test_gives_the_same_bits_in_any_order(operation):
    inputs = _inputs(operation, (2, 37, 648), "bfloat16")
    first, *others = (_results_and_grads(operation, *inputs, seed=s) for s in range(4))
    for other in others:
        for a, b in zip(sum(first, ()), sum(other, ()), strict=True):
            np.testing.assert_array_equal(a, b)


def _assert_takes_misaligned(operation, name):
    # Off by four bytes, so that no vector may be loaded or stored.
    _assert_matches_float64(
        operation, *_inputs(operation, (2, 5, 64), "bfloat16"), byte_offsets={name: 4}
    )


# Without statistics and sums over tokens, which are not accessed as vectors.
@pytest.mark.parametrize("name", ["x", "scale", "shift", "y", "dy", "dx", "workspace"])
def test_takes_buffers_that_are_not_aligned(operation, name):
    _assert_takes_misaligned(operation, name)


@pytest.mark.parametrize("name", ["h", "gate", "residual", "dresidual", "dh"])
def test_gated_form_takes_buffers_that_are_not_aligned(operations, name):
    _assert_takes_misaligned(operations[1], name)


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8), (2, 3, 0)])
def test_takes_empty_arrays(operation, shape):
    arguments, cotangents = _inputs(operation, shape, "float32")
    results, grads = _results_and_grads(operation, arguments, cotangents, num_runs=1)
    assert [r.shape for r in results] == [shape] * len(results)
    for gradient, argument in zip(grads, arguments, strict=True):
        assert gradient.shape == argument.shape
        assert not gradient.any()  # Sums over zero tokens.


@pytest.mark.parametrize("launch", [0, 1])
def test_returns_errors_of_launches(operation, launch):
    inputs = _inputs(operation, (1, 2, 8), "float32")
    forward = _forward(operation, inputs[0])
    with pytest.raises(EmulationError, match="cudaErrorInvalidConfiguration"):
        _backward(
            operation,
            *inputs,
            forward=forward,
            failing_launch=launch,
            launch_error=9,
        )


UNGATED, GATED = 0, 1
TEAMS, LARGEST_TEAM, WIDE = (2, 37, 648), (2, 4, 5120), (2, 4, 8200)

# Mistakes that are easy to make. Each is in a kernel that this operation runs at this
# width.
MISTAKES = {
    "a wrong mask": (
        *(UNGATED, TEAMS),
        "if (columns.Holds(i / Held::kPerPacket))",
        "if (true)",
    ),
    "a missing barrier": (
        *(UNGATED, TEAMS),
        "    __syncthreads();\n#pragma unroll\n    for (int i = 0; i < kValues; ++i) {",
        "#pragma unroll\n    for (int i = 0; i < kValues; ++i) {",
    ),
    "a row too many": (
        *(UNGATED, TEAMS),
        "min(token + tokens_per_run, tokens)",
        "min(token + tokens_per_run, tokens + 1)",
    ),
    "the scale of another sample": (
        *(UNGATED, TEAMS),
        "scale + run.sample * width, gain",
        "scale, gain",
    ),
    "only one set of slots": (
        *(UNGATED, TEAMS),
        "turn * kValues * kMaxSlots",
        "0 * turn",
    ),
    "a team that is left out": (
        *(GATED, TEAMS),
        "team < blockDim.y; ++team",
        "team < 1; ++team",
    ),
    "the gate of another sample": (
        *(GATED, TEAMS),
        "gate + run.sample * width, gates",
        "gate, gates",
    ),
    "the first row again": (
        *(GATED, LARGEST_TEAM),
        "if constexpr (!kPrefetches) next = load(row);",
        "",
    ),
    "sums of the last row only": (
        *(UNGATED, WIDE),
        "is_first ? value",
        "true ? value",
    ),
    "a turn that is always the same": (*(GATED, WIDE), "turn ^= 1;", ""),
}


def _plant(right: str, wrong: str, directory: Path) -> emulation.Library:
    """Builds the kernels from copies of their sources with a mistake in them."""
    kernels = (emulation.FORWARD, emulation.BACKWARD)
    sources = [*kernels, *emulation.FFI.glob("layer_norm_modulate*.cuh")]
    texts = {source.name: source.read_text() for source in sources}
    assert any(right in text for text in texts.values())
    for name, text in texts.items():
        (directory / name).write_text(text.replace(right, wrong))
    planted = [directory / source.name for source in kernels]
    return emulation.Library([emulation.BINDING, *planted])


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_finds_mistakes(operations, mistake, tmp_path, monkeypatch):
    number, shape, right, wrong = MISTAKES[mistake]
    operation = operations[number]
    inputs = _inputs(operation, shape, "bfloat16")

    def check():
        for seed in range(4):
            _assert_matches_float64(operation, *inputs, seed=seed, num_sms=3)

    check()
    library = _plant(right, wrong, tmp_path)
    monkeypatch.setattr(emulation, "_layer_norm_modulate", lambda: library)
    with pytest.raises((AssertionError, EmulationError)):
        check()


# Memory traffic.


def _assert_moves_each_byte_once(result, reads, writes, limit):
    """Asserts that activations move once, and that other traffic is small."""
    for name in reads:
        assert result.traffic[name].requested_read == result.num_bytes[name]
    for name in writes:
        assert result.traffic[name].requested_written == result.num_bytes[name]
    least = sum((result.num_bytes | {"workspace": 0}).values())
    assert result.total("hbm_read") + result.total("hbm_written") <= limit * least


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_moves_each_byte_once(operation, dtype):
    arguments, cotangents = _inputs(operation, (1, 512, 1536), dtype)
    forward = _forward(operation, arguments, counts_traffic=True)
    backward = _backward(operation, arguments, cotangents, forward, counts_traffic=True)
    if _is_gated(operation):
        _assert_moves_each_byte_once(forward, ["x", "h"], ["residual", "y"], 1.02)
        _assert_moves_each_byte_once(
            backward, ["x", "h", "dresidual", "dy"], ["dx", "dh"], 1.05
        )
    else:
        _assert_moves_each_byte_once(forward, ["x"], ["y"], 1.02)
        _assert_moves_each_byte_once(backward, ["x", "dy"], ["dx"], 1.05)


# Code that nvcc generates.


@pytest.fixture(scope="module")
def nvcc(missing) -> str:
    """Returns the path of nvcc."""
    path = f"{os.environ.get('PATH', '')}:{sys.prefix}/nvcc/nvidia/cu13/bin"
    found = os.environ.get("CUDACXX") or shutil.which("nvcc", path=path)
    return found or missing("cuda", "there is no nvcc; `make cuda` gets one from PyPI")


# Sources and numbers of kernels: three types, gated or not, in four teams. Backward has
# two more, which add up the sums of the runs.
PASSES = [
    pytest.param(emulation.FORWARD, 24, id="forward"),
    pytest.param(emulation.BACKWARD, 26, id="backward"),
]


def _compile(
    nvcc: str, source: Path, tmp_path: Path, *flags: str
) -> subprocess.CompletedProcess[str]:
    command = [nvcc, "-std=c++17", "-O3", *flags, str(source)]
    return subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    )


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize(("source", "num_kernels"), PASSES)
def test_does_not_spill(source, num_kernels, architecture, nvcc, tmp_path):
    code = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    flags = (code, "-Xptxas=-v", "-c", "-o", "kernels.o")
    log = _compile(nvcc, source, tmp_path, *flags).stderr
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert log.count("Compiling entry function") == len(spills) == num_kernels
    assert set(spills) == {("0", "0")}, log


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("source", [emulation.FORWARD, emulation.BACKWARD])
def test_moves_128_bits_at_once(source, nvcc, tmp_path):
    _compile(nvcc, source, tmp_path, "-arch=compute_80", "-ptx", "-o", "kernels.ptx")
    ptx = (tmp_path / "kernels.ptx").read_text()
    # Mangled names contain Team<columns, threads, vectorized>.
    kernels = re.findall(
        r"\.entry (\w*(Fwd|Bwd)Kernel\w*4TeamILi\d+ELi\d+ELb(\d)E\w*)(.*?)\n}",
        ptx,
        flags=re.DOTALL,
    )
    assert len(kernels) == 18  # Three types, gated or not, in three teams.
    # Only statistics are accessed as single values. The forward pass stores mean and
    # rstd; the backward pass loads both for its first row and then for the next.
    singles = {"Fwd": {"st.global.wb.f32": 2}, "Bwd": {"ld.global.nc.f32": 4}}
    # Activations, modulations, and results.
    vectors = {"ld.global.cs.v4.u32", "ld.global.nc.v4.f32", "st.global.wb.v4.u32"}
    for name, direction, vectorized, body in kernels:
        accesses = collections.Counter(re.findall(r"(?:ld|st)\.global\S*", body))
        if int(vectorized):
            assert vectors <= accesses.keys(), name
            others = {a: count for a, count in accesses.items() if ".v4." not in a}
            assert others == singles[direction], name
        else:
            assert not any(".v" in access for access in accesses), name
