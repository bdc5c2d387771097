"""GPUs that can be named as a target.

The numbers are those that OpenXLA publishes under
xla/backends/gpu/target_config/specs, except for the RTX 4090, which OpenXLA lacks.
"""

import difflib

from jaxload.errors import InputError
from jaxload.targets.gpu import Gpu

_ROWS = (
    Gpu(
        name="a100-40gb",
        device_kind="NVIDIA A100-SXM4-40GB",
        compute_capability=(8, 0),
        num_multiprocessors=108,
        fpus_per_multiprocessor=64,
        clock_ghz=1.41,
        memory_bytes=42_331_013_120,
        memory_bytes_per_second=1_555_200_000_000,
        l2_bytes=41_943_040,
        shared_bytes_per_multiprocessor=167_936,
        shared_bytes_per_block=166_912,
    ),
    Gpu(
        name="a100-80gb",
        device_kind="NVIDIA A100-SXM4-80GB",
        compute_capability=(8, 0),
        num_multiprocessors=108,
        fpus_per_multiprocessor=64,
        clock_ghz=1.41,
        memory_bytes=85_100_068_864,
        memory_bytes_per_second=2_039_040_000_000,
        l2_bytes=41_943_040,
        shared_bytes_per_multiprocessor=167_936,
        shared_bytes_per_block=166_912,
    ),
    Gpu(
        name="h100-80gb",
        device_kind="NVIDIA H100 80GB HBM3",
        compute_capability=(9, 0),
        num_multiprocessors=132,
        fpus_per_multiprocessor=128,
        clock_ghz=1.98,
        memory_bytes=84_942_979_072,
        memory_bytes_per_second=3_352_320_000_000,
        l2_bytes=52_428_800,
        shared_bytes_per_multiprocessor=233_472,
        shared_bytes_per_block=232_448,
    ),
    Gpu(
        name="h200-141gb",
        device_kind="NVIDIA H200 141GB HBM3e",
        compute_capability=(9, 0),
        num_multiprocessors=132,
        fpus_per_multiprocessor=128,
        clock_ghz=1.98,
        memory_bytes=151_397_597_184,
        memory_bytes_per_second=4_800_000_000_000,
        l2_bytes=52_428_800,
        shared_bytes_per_multiprocessor=233_472,
        shared_bytes_per_block=232_448,
    ),
    Gpu(
        name="b200-180gb",
        device_kind="NVIDIA B200",
        compute_capability=(10, 0),
        num_multiprocessors=148,
        fpus_per_multiprocessor=128,
        clock_ghz=1.965,
        memory_bytes=191_514_411_008,
        memory_bytes_per_second=7_672_320_000_000,
        l2_bytes=132_644_864,
        shared_bytes_per_multiprocessor=233_472,
        shared_bytes_per_block=232_448,
    ),
    Gpu(
        name="rtx4090-24gb",
        device_kind="NVIDIA GeForce RTX 4090",
        compute_capability=(8, 9),
        num_multiprocessors=128,
        fpus_per_multiprocessor=128,
        threads_per_multiprocessor=1536,
        clock_ghz=2.52,
        memory_bytes=24_564 * 2**20,
        memory_bytes_per_second=1_008_000_000_000,
        l2_bytes=75_497_472,
        shared_bytes_per_multiprocessor=102_400,
        shared_bytes_per_block=101_376,
    ),
)

TARGETS = {gpu.name: gpu for gpu in _ROWS}
"""Every known GPU by name."""

H100 = TARGETS["h100-80gb"]


def find_target(name: str) -> Gpu:
    """Returns the GPU with a name, in upper or lower case.

    Raises:
        InputError: No GPU has the name; the message suggests the nearest one.
    """
    gpu = TARGETS.get(name.lower())
    if gpu is None:
        (close,) = difflib.get_close_matches(name.lower(), TARGETS, n=1, cutoff=0.0)
        raise InputError(
            f"target {name!r}: expected one of {', '.join(TARGETS)}; did you mean "
            f"{close!r}?"
        )
    return gpu
