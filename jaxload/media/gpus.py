"""GPUs that encoder processes may use."""

import itertools
import os
from pathlib import Path

from jaxload.errors import InputError

# Not by JAX, which would take memory of each GPU in this process.
_NVIDIA = Path("/proc/driver/nvidia/gpus")


def visible_gpus() -> list[str]:
    """Returns the GPUs that CUDA shows to this process, as CUDA names them."""
    num_gpus = len(list(_NVIDIA.iterdir())) if _NVIDIA.is_dir() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(num_gpus)]

    def exists(name: str) -> bool:
        # Trusts the variable where the driver does not list its GPUs.
        is_index = name.isdigit() and num_gpus > 0
        return int(name) < num_gpus if is_index else bool(name) and name[0] != "-"

    # CUDA ignores the names after the first invalid one.
    return list(itertools.takewhile(exists, map(str.strip, visible.split(","))))


def encoder_devices(num_encoders: int | None) -> list[str | None]:
    """Returns the GPU of each encoder, as CUDA names it; None for all visible GPUs.

    By default, there is one encoder per visible GPU, and at least one. A single encoder
    sees all GPUs, so that its codec may use several.

    Raises:
        InputError: There are more encoders than GPUs, or than cores without a GPU.
    """
    gpus = visible_gpus()
    num_encoders = num_encoders or max(1, len(gpus))
    if num_encoders == 1:
        return [None]
    most, unit = len(gpus), "visible GPU"
    if not gpus:
        most, unit = os.cpu_count() or 1, "core, as no GPU is visible"
    if num_encoders > most:
        raise InputError(
            f"--encoders {num_encoders}: expected at most {most}, one for each {unit}"
        )
    return list(gpus[:num_encoders]) or [None] * num_encoders
