"""Runs CUDA kernels on the CPU by compiling their source as C++ with this folder.

    result = emulation.forward(x, scale, shift, options=Options(counts_traffic=True))
    result.outputs["y"], result.traffic["x"].hbm_read

The headers here replace those of the CUDA toolkit, so that only a C++ compiler is
needed. `EmulationError` reports accesses out of bounds or misaligned, divergent
barriers and shuffles, and refused launches. Shared memory is initialized to NaN, and
`seed` changes the order of threads, so that a missing barrier changes the result.

Not detected: accesses by plain dereference, which are neither checked nor counted;
races between blocks, which run one after the other; excess use of registers or static
shared memory. Time is not modelled.
"""

import ctypes
import dataclasses
import functools
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FFI = ROOT / "ffi"

_EMULATOR = [
    HERE / name for name in ("fiber.cc", "memory.cc", "runtime.cc", "scheduler.cc")
]
_FLAGS = [
    *("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"),
    # No contraction, so that results are the same on all CPUs. No strict aliasing,
    # because nvcc lets kernels read the bits of one type as another.
    *("-ffp-contract=off", "-fno-strict-aliasing"),
    *("-I", str(HERE), "-I", str(FFI), "-x", "c++"),
]

# Buffers are far apart, so that an access out of bounds hits no other buffer.
_PADDING_BYTES = 1 << 20
_ALIGNMENT_BYTES = 256

_DTYPES = [np.dtype(t) for t in (np.float32, ml_dtypes.bfloat16, np.float16)]


class EmulationError(RuntimeError):
    """Undefined behaviour in a kernel, or a refused launch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The emulated device, by default like an H100, and options of the run."""

    seed: int = 0
    """Seed of the random order of threads, warps and blocks; 0 is the natural order."""

    num_sms: int = 132
    threads_per_sm: int = 2048

    blocks_per_sm: int = 0
    """Result of the occupancy calculator; 0 derives it from `threads_per_sm`."""

    l2_bytes: int = 50 << 20

    counts_traffic: bool = False
    """Fills `Result.traffic`; takes about twice the time."""

    failing_launch: int = -1
    """Index of the launch that is refused with `launch_error`; negative for none."""

    launch_error: int = 1

    byte_offsets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Offsets of buffers, by name, from a 256-byte aligned address."""


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes of one buffer that were moved, and the number of warp requests.

    The L2 cache has the size in `Options`, starts cold, and is written back at the end;
    there is no L1 cache. `least_l2_*` is the traffic if the bytes of each warp request
    were contiguous.
    """

    requested_read: int
    requested_written: int
    read_requests: int
    write_requests: int
    l2_read: int
    l2_written: int
    least_l2_read: int
    least_l2_written: int
    hbm_read: int
    hbm_written: int


@dataclasses.dataclass(frozen=True)
class Result:
    """Outputs of a call, and its memory traffic and launches."""

    outputs: dict[str, np.ndarray]
    traffic: dict[str, Traffic]
    """Traffic of each buffer, by name; empty unless `Options.counts_traffic`."""

    num_bytes: dict[str, int]
    """Size of each buffer, by name."""

    num_launches: int

    def __getitem__(self, name: str) -> np.ndarray:
        return self.outputs[name]

    def total(self, quantity: str) -> int:
        """Sums a field of `Traffic` over the buffers."""
        return sum(getattr(traffic, quantity) for traffic in self.traffic.values())


class _Options(ctypes.Structure):
    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("l2_bytes", ctypes.c_int64),
        ("num_sms", ctypes.c_int32),
        ("threads_per_sm", ctypes.c_int32),
        ("blocks_per_sm", ctypes.c_int32),
        ("counts_traffic", ctypes.c_int32),
        ("failing_launch", ctypes.c_int32),
        ("launch_error", ctypes.c_int32),
    )


class Library:
    """Kernels and emulator as a shared library, rebuilt when a source changes."""

    def __init__(self, sources: Sequence[Path]):
        self._lib = ctypes.CDLL(str(build(sources)))
        self._lib.cuda_emulation_error.restype = ctypes.c_char_p
        self._lib.cuda_emulation_error_name.restype = ctypes.c_char_p

    def run(
        self,
        function: str,
        arguments: Sequence[Any],
        *,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, tuple[Sequence[int], Any]],
        options: Options | None = None,
    ) -> Result:
        """Calls an exported C function that launches kernels and returns a cudaError_t.

        Args:
            function: The function's name.
            arguments: Arguments of the function: a buffer's name is replaced by its
                address, None by a null pointer; others must be ctypes values.
            inputs: Buffers that kernels may only read.
            outputs: Shapes and types of the other buffers. Until a kernel writes to
                them, all their bytes are 0xFF, which is NaN in every type.
            options: The emulated device.

        Raises:
            EmulationError: A kernel failed, or the function returned an error.
        """
        options = options or Options()
        buffers = {
            name: _allocate(array.shape, array.dtype, options.byte_offsets.get(name, 0))
            for name, array in inputs.items()
        }
        for name, array in inputs.items():
            buffers[name][...] = array
        results = {
            name: _allocate(shape, dtype, options.byte_offsets.get(name, 0))
            for name, (shape, dtype) in outputs.items()
        }
        self._begin(options, buffers, results)
        buffers |= results
        code = getattr(self._lib, function)(
            *[
                ctypes.c_void_p(buffers[argument].ctypes.data)
                if isinstance(argument, str)
                else argument
                for argument in arguments
            ]
        )
        message = self._lib.cuda_emulation_error().decode()
        if code or message:
            name = self._lib.cuda_emulation_error_name(code).decode()
            raise EmulationError(f"{function}: {message or name}")
        return Result(
            outputs=results,
            traffic=self._traffic(list(buffers)) if options.counts_traffic else {},
            num_bytes={name: buffer.nbytes for name, buffer in buffers.items()},
            num_launches=self._lib.cuda_emulation_num_launches(),
        )

    def _begin(
        self,
        options: Options,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
    ) -> None:
        fields = {field[0]: getattr(options, field[0]) for field in _Options._fields_}
        self._lib.cuda_emulation_begin(ctypes.byref(_Options(**fields)))
        for is_writable, buffers in enumerate((inputs, outputs)):
            for name, buffer in buffers.items():
                self._lib.cuda_emulation_add_buffer(
                    name.encode(),
                    ctypes.c_void_p(buffer.ctypes.data),
                    ctypes.c_int64(buffer.nbytes),
                    is_writable,
                )

    def _traffic(self, names: Sequence[str]) -> dict[str, Traffic]:
        self._lib.cuda_emulation_flush()
        traffic = {}
        for number, name in enumerate(names):
            counts = (ctypes.c_int64 * len(dataclasses.fields(Traffic)))()
            self._lib.cuda_emulation_traffic(number, counts)
            traffic[name] = Traffic(*counts)
        return traffic


def build(sources: Sequence[Path]) -> Path:
    """Builds a library of CUDA sources and the emulator, unless it exists.

    The library is in `build/cuda_emulation`, named by a hash of its sources and flags.

    Raises:
        EmulationError: The sources do not compile.
    """
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    command = [*compiler, *_FLAGS]
    files = [*sources, *_EMULATOR]
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=True)
    digest = hashlib.sha256(version.stdout + shlex.join(command).encode())
    for path in [*files, *_headers({HERE, FFI, *(path.parent for path in sources)})]:
        digest.update(path.read_bytes())
    # Under Bazel, tests may only write to TEST_TMPDIR.
    directory = Path(os.environ.get("TEST_TMPDIR", ROOT / "build")) / "cuda_emulation"
    library = directory / f"{sources[0].stem}-{digest.hexdigest()[:16]}.so"
    if library.exists():
        return library
    directory.mkdir(parents=True, exist_ok=True)
    # Built in a scratch directory, as another process may build the same library.
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        unfinished = Path(scratch) / library.name
        result = subprocess.run(
            [*command, *map(str, files), "-o", str(unfinished)],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise EmulationError(f"{shlex.join(result.args)}\n{result.stderr}")
        unfinished.replace(library)
    return library


def _headers(directories: Set[Path]) -> list[Path]:
    paths = [path for directory in directories for path in directory.iterdir()]
    return sorted(path for path in paths if path.suffix in (".h", ".cuh"))


def _allocate(shape: Sequence[int], dtype: Any, byte_offset: int) -> np.ndarray:
    """Returns an array of bytes 0xFF, padded on both sides by unused memory."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = np.empty(num_bytes + 2 * _PADDING_BYTES, np.uint8)
    start = _PADDING_BYTES - memory.ctypes.data % _ALIGNMENT_BYTES + byte_offset
    buffer = memory[start : start + num_bytes]
    buffer[...] = 0xFF
    return buffer.view(dtype).reshape(shape)


# layer_norm_modulate.

FORWARD = FFI / "layer_norm_modulate_forward.cu"
BACKWARD = FFI / "layer_norm_modulate_backward.cu"
BINDING = HERE / "layer_norm_modulate.cc"


@functools.cache
def _layer_norm_modulate() -> Library:
    return Library([BINDING, FORWARD, BACKWARD])


def forward(
    x: np.ndarray,
    scale: np.ndarray,
    shift: np.ndarray,
    *,
    eps: float = 1e-6,
    h: np.ndarray | None = None,
    gate: np.ndarray | None = None,
    options: Options | None = None,
) -> Result:
    """Returns y, mean and rstd and, if h and gate are given, the residual."""
    inputs = {"x": x, "scale": scale, "shift": shift}
    outputs = {
        "y": (x.shape, x.dtype),
        "mean": (x.shape[:-1], np.float32),
        "rstd": (x.shape[:-1], np.float32),
    }
    if h is not None and gate is not None:
        inputs |= {"h": h, "gate": gate}
        outputs["residual"] = (x.shape, x.dtype)
    names = ["x", "scale", "shift", "y", "mean", "rstd", "h", "gate", "residual"]
    return _run("fwd", ctypes.c_float(eps), names, inputs, outputs, options)


def backward(
    x: np.ndarray,
    scale: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    dy: np.ndarray,
    *,
    num_runs: int = 16,
    h: np.ndarray | None = None,
    gate: np.ndarray | None = None,
    dresidual: np.ndarray | None = None,
    options: Options | None = None,
) -> Result:
    """Returns dx, dscale, dshift and the workspace; dh and dgate in the gated form."""
    batch, _, width = x.shape
    inputs = {"x": x, "scale": scale, "mean": mean, "rstd": rstd, "dy": dy}
    outputs = {
        "dx": (x.shape, x.dtype),
        "dscale": (scale.shape, np.float32),
        "dshift": (scale.shape, np.float32),
        "workspace": ((batch, num_runs, 2, width), np.float32),
    }
    if h is not None and gate is not None and dresidual is not None:
        outputs["workspace"] = ((batch, num_runs, 3, width), np.float32)
        inputs |= {"h": h, "gate": gate, "dresidual": dresidual}
        outputs |= {"dh": (x.shape, x.dtype), "dgate": (scale.shape, np.float32)}
    names = [
        *("x", "scale", "mean", "rstd", "dy", "dx", "dscale", "dshift", "workspace"),
        *("h", "gate", "dresidual", "dh", "dgate"),
    ]
    return _run("bwd", ctypes.c_int64(num_runs), names, inputs, outputs, options)


def _run(
    direction: str,
    attribute: Any,
    names: Sequence[str],
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, tuple[Sequence[int], Any]],
    options: Options | None,
) -> Result:
    x = inputs["x"]
    present = inputs.keys() | outputs.keys()
    arguments = [
        ctypes.c_int(_DTYPES.index(x.dtype)),
        ctypes.c_int("h" in present),
        (ctypes.c_int64 * 3)(*x.shape),
        attribute,
        *[name if name in present else None for name in names],
    ]
    return _layer_norm_modulate().run(
        f"layer_norm_modulate_{direction}",
        arguments,
        inputs=inputs,
        outputs=outputs,
        options=options,
    )
