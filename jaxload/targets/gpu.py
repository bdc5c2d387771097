"""Descriptions of GPUs, with which XLA can compile without a GPU."""

import dataclasses
from importlib import metadata
from typing import Any

from jaxload.errors import InputError

# JAX can compile for CUDA without starting it. With the platform cpu, a GPU that is in
# use is not touched. The second variable lets the plugin load without a driver.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
"""Variables that must be set before JAX is imported."""

JAX_SHARE = 0.95
"""Share of a GPU's memory that plans let JAX use. A run has to start with
XLA_CLIENT_MEM_FRACTION=0.95 in the environment, because JAX's default is 0.75."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """Description of one type of GPU."""

    name: str
    """Name of the target on command lines."""

    device_kind: str
    """Name that JAX gives to devices of this type."""

    compute_capability: tuple[int, int]
    num_multiprocessors: int
    fpus_per_multiprocessor: int
    threads_per_multiprocessor: int = 2048
    clock_ghz: float
    memory_bytes: int
    memory_bytes_per_second: int
    l2_bytes: int
    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block: int

    @property
    def usable_bytes(self) -> int:
        """Bytes that JAX may use; see JAX_SHARE."""
        return int(JAX_SHARE * self.memory_bytes)

    def devices(self, num_devices: int) -> list[Any]:
        """Returns devices of one host that can be compiled for, but not run on.

        Raises:
            InputError: JAX has no CUDA plugin here.
        """
        # Imported here because the names of targets are needed without JAX, too.
        from jax.experimental import topologies

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
                f"and jax-cuda13-pjrt {metadata.version('jax')}, and start Python with "
                + " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
            ) from error
        return list(topology.devices)

    def _target_config(self) -> str:
        """Returns XLA's GpuTargetConfigProto as text."""
        major, minor = self.compute_capability
        # GPUs from 9.0 on report architecture-specific features (9.0a, 10.0a, ...). For
        # older GPUs, LLVM knows no such variant and ends the process.
        extension = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024
              threads_per_warp: 32
              threads_per_core_limit: {self.threads_per_multiprocessor}
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
              cuda_compute_capability {{
                major: {major}
                minor: {minor}
                feature_extension: {extension}
              }}
            }}
            platform_name: "CUDA"
            dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
            device_description_str: "{self.device_kind}"
        """
