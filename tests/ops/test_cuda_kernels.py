"""The CUDA kernels: their source runs on the CPU, and nvcc makes good code of it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

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


def _backward(operation, arguments, cotangents, forward, num_runs=512, **options):
    values = _by_name(operation, arguments)
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


def _results_and_grads(operation, arguments, cotangents, num_runs=512, **options):
    """Returns what the kernels make, as `jax.vjp` of the operation would."""
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


# Launches depend on the device, and its order of threads, warps and blocks is its own.
DEVICES = [
    pytest.param({"seed": 1}, id="any-order"),
    pytest.param({"seed": 2, "num_sms": 1, "blocks_per_sm": 1}, id="one-block"),
    pytest.param({"seed": 3, "num_sms": 3, "blocks_per_sm": 1}, id="three-blocks"),
    pytest.param({"seed": 4, "num_sms": 1000}, id="idle-processors"),
    pytest.param({"seed": 5, "num_runs": 1}, id="one-run"),
    pytest.param({"seed": 6, "num_runs": 5}, id="five-runs"),
]


@pytest.mark.parametrize("how", DEVICES)
@pytest.mark.parametrize("shape", [(2, 37, 1536), (2, 70, 256), (1, 5, 1023)])
def test_matches_float64_on_any_device(operation, shape, how):
    _assert_matches_float64(operation, *_inputs(operation, shape, "bfloat16"), **how)


def test_gives_the_same_bits_in_any_order(operation):
    inputs = _inputs(operation, (2, 37, 648), "bfloat16")
    first, *others = (_results_and_grads(operation, *inputs, seed=s) for s in range(4))
    for other in others:
        for a, b in zip(sum(first, ()), sum(other, ()), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["x", "scale", "dy"])
def test_takes_buffers_that_are_not_aligned(operation, name):
    # Four bytes off: no vector may be read from there.
    _assert_matches_float64(
        operation, *_inputs(operation, (2, 5, 64), "bfloat16"), byte_offsets={name: 4}
    )


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8), (2, 3, 0)])
def test_takes_empty_arrays(operation, shape):
    arguments, cotangents = _inputs(operation, shape, "float32")
    results, grads = _results_and_grads(operation, arguments, cotangents, num_runs=1)
    assert [r.shape for r in results] == [shape] * len(results)
    for gradient, argument in zip(grads, arguments, strict=True):
        assert gradient.shape == argument.shape
        assert not gradient.any()  # No tokens: a sum of nothing, for each sample.


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


# Each of these is a mistake that was easy to make.
MISTAKES = {
    "a wrong mask": ("if (columns.Holds(i / Held::kPerPiece))", "if (true)"),
    "a missing barrier": (
        "    __syncthreads();\n#pragma unroll\n    for (int i = 0; i < kValues; ++i) {",
        "#pragma unroll\n    for (int i = 0; i < kValues; ++i) {",
    ),
    "a row too many": (
        "min(token + tokens_per_run, tokens)",
        "min(token + tokens_per_run, tokens + 1)",
    ),
    "a row too few": ("row < run.end", "row + 1 < run.end"),
    "the statistics of another row": ("__ldg(mean + row)", "__ldg(mean + run.first)"),
    "the scale of another sample": (
        "scale + run.sample * width, gain",
        "scale, gain",
    ),
    "only one set of slots": ("turn * kValues * kMaxSlots", "0 * turn"),
    "a team that is left out": ("team < blockDim.y; ++team", "team < 1; ++team"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_finds_mistakes(operations, mistake, tmp_path, monkeypatch):
    source = emulation.FFI / "layer_norm_modulate.cu"
    right, wrong = MISTAKES[mistake]
    assert right in source.read_text()
    inputs = _inputs(operations[0], (2, 37, 648), "bfloat16")

    def check():
        for seed in range(4):
            _assert_matches_float64(
                operations[0], *inputs, seed=seed, num_sms=3, num_runs=4
            )

    check()
    planted = tmp_path / source.name
    planted.write_text(source.read_text().replace(right, wrong))
    binding = emulation.HERE / "layer_norm_modulate.cc"
    library = emulation.Library([planted, binding])
    monkeypatch.setattr(emulation, "_layer_norm_modulate", lambda: library)
    with pytest.raises((AssertionError, EmulationError)):
        check()


# What they move.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_moves_each_byte_once(operations, dtype):
    operation = operations[0]
    arguments, cotangents = _inputs(operation, (1, 512, 1536), dtype)
    forward = _forward(operation, arguments, counts_traffic=True)
    least = sum(array.nbytes for array in (*arguments, *forward.outputs.values()))
    assert forward.traffic["x"].requested_read == arguments[0].nbytes
    assert forward.total("hbm_read") + forward.total("hbm_written") <= 1.02 * least

    backward = _backward(
        operation, arguments, cotangents, forward, num_runs=16, counts_traffic=True
    )
    inputs = (*arguments[:2], forward["mean"], forward["rstd"], *cotangents)
    outputs = (backward[name] for name in ("dx", "dscale", "dshift"))
    least = sum(array.nbytes for array in (*inputs, *outputs))
    for name in ("x", "dy"):
        assert backward.traffic[name].requested_read == arguments[0].nbytes
    assert backward.total("hbm_read") + backward.total("hbm_written") <= 1.05 * least


# What nvcc makes of them.


def _nvcc() -> str:
    """Returns nvcc; without one, fails if CUDA is required, else skips."""
    path = f"{os.environ.get('PATH', '')}:{sys.prefix}/nvcc/nvidia/cu13/bin"
    found = os.environ.get("CUDACXX") or shutil.which("nvcc", path=path)
    if found:
        return found
    if "cuda" in os.environ.get("JAXLOAD_REQUIRE_KERNELS", "").split(","):
        pytest.fail("there is no nvcc; `make cuda` gets one from PyPI")
    pytest.skip("there is no nvcc")


def _compile(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    source = emulation.FFI / "layer_norm_modulate.cu"
    command = [_nvcc(), "-std=c++17", "-O3", *flags, str(source)]
    return subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    )


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_does_not_spill(architecture, tmp_path):
    code = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    log = _compile(tmp_path, code, "-Xptxas=-v", "-c", "-o", "kernels.o").stderr
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    num_kernels = len(re.findall(r"Compiling entry function", log))
    assert num_kernels == len(spills) > 30
    assert set(spills) == {("0", "0")}, log


@pytest.mark.gpu
@pytest.mark.slow
def test_moves_128_bits_at_once(tmp_path):
    _compile(tmp_path, "-arch=compute_80", "-ptx", "-o", "kernels.ptx")
    ptx = (tmp_path / "kernels.ptx").read_text()
    # By their mangled names: ...Team<columns, threads, vectorized>.
    kernels = re.findall(
        r"\.entry (\w*(?:Fwd|Bwd)Kernel\w*4TeamILi\d+ELi\d+ELb(\d)E\w*)(.*?)\n}",
        ptx,
        flags=re.DOTALL,
    )
    assert len(kernels) > 20
    for name, vectorized, body in kernels:
        widths = {
            "ld": set(re.findall(r"ld\.global\.cs\.(\S+)", body)),
            "st": set(re.findall(r"st\.global\.wb\.(\S+)", body)),
        }
        if int(vectorized):
            assert widths["ld"] == {"v4.u32"}, name
            # Single floats are the statistics.
            assert widths["st"] - {"v4.u32", "v4.f32"} <= {"f32"}, name
            assert "v4.u32" in widths["st"], name
        else:
            assert not any(w.startswith("v") for w in widths["ld"] | widths["st"])
