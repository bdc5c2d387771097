"""Settings and fixtures that the tests share."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Before JAX is imported, here and in the processes that tests start. Programs that were
# compiled once are shared by all of them; LLVM need not try hard for tiny ones.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_REMOVE_CUSTOM_PARTITIONING_PTR_FROM_CACHE_KEY", "true")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")

import jax
import pytest
from rich.console import Console

from jaxload import config as config_lib
from jaxload.config import Config
from jaxload.data.dataset import open_dataset
from jaxload.data.manifest import Manifest

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root."""
    return ROOT


@pytest.fixture(scope="session")
def debug_config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """configs/debug.py with a data set of this test run."""
    config = config_lib.load(ROOT / "configs" / "debug.py")
    path = tmp_path_factory.mktemp("data") / "debug"
    return config_lib.override(config, f"data.path={path}")


@pytest.fixture(scope="session")
def debug_manifest(debug_config: Config) -> Manifest:
    """The data set of `debug_config`, drawn."""
    return open_dataset(debug_config.data, debug_config.synthetic, Console(quiet=True))
