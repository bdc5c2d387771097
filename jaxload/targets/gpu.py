"""What XLA has to know of a GPU to compile for it where there is none."""

import dataclasses
from typing import Any

import jax
from jax.experimental import topologies

from jaxload.errors import InputError

# Without a driver, JAX's CUDA plugin loads only where its version checks are off.
ENVIRONMENT = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
"""What the environment must hold before JAX is imported."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """One model of GPU."""

    name: str
    compute_capability: tuple[int, int]
    num_multiprocessors: int
    fpus_per_multiprocessor: int
    clock_ghz: float
    memory_bytes: int
    memory_bytes_per_second: int
    l2_bytes: int
    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block: int

    def devices(self, num_devices: int) -> list[Any]:
        """Returns devices of one host to compile for, not to run on.

        Raises:
            InputError: JAX has no CUDA plugin here.
        """
        if num_devices < 1:
            raise InputError(
                f"{self.name}: expected 1 device or more, got {num_devices}"
            )
        try:
            topology = topologies.get_topology_desc(
                platform="cuda",
                topology_name=self.name,
                topology=f"1x1x{num_devices}",
                target_config=self._target_config(),
            )
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"cannot compile for {self.name}: {error}; install jax-cuda13-plugin "
                f"and jax-cuda13-pjrt {jax.__version__}, and start Python with "
                + " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
            ) from error
        return list(topology.devices)

    def _target_config(self) -> str:
        """The text of XLA's GpuTargetConfigProto."""
        major, minor = self.compute_capability
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024
              threads_per_warp: 32
              threads_per_core_limit: 2048
              block_dim_limit_x: 2147483647
              block_dim_limit_y: 65535
              block_dim_limit_z: 65535
              thread_dim_limit_x: 1024
              thread_dim_limit_y: 1024
              thread_dim_limit_z: 64
              registers_per_core_limit: 65536
              registers_per_block_limit: 65536
              shared_memory_per_block: 49152
              shared_memory_per_core: {self.shared_bytes_per_multiprocessor}
              shared_memory_per_block_optin: {self.shared_bytes_per_block}
              core_count: {self.num_multiprocessors}
              fpus_per_core: {self.fpus_per_multiprocessor}
              clock_rate_ghz: {self.clock_ghz}
              memory_bandwidth: {self.memory_bytes_per_second}
              device_memory_size: {self.memory_bytes}
              l2_cache_size: {self.l2_bytes}
              cuda_compute_capability {{ major: {major} minor: {minor} }}
            }}
            platform_name: "CUDA"
            dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
            device_description_str: "{self.name}"
        """


H100 = Gpu(
    name="H100",
    compute_capability=(9, 0),
    num_multiprocessors=132,
    fpus_per_multiprocessor=128,
    clock_ghz=1.98,
    memory_bytes=84_942_979_072,
    memory_bytes_per_second=3_352_320_000_000,
    l2_bytes=52_428_800,
    shared_bytes_per_multiprocessor=233_472,
    shared_bytes_per_block=232_448,
)
"""H100 SXM with 80 GB."""
