"""Environment and fixtures that all tests share."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Set before JAX is imported, here and in processes that tests start. These share
# compiled programs through the cache. Tiny programs need little LLVM optimization.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_REMOVE_CUSTOM_PARTITIONING_PTR_FROM_CACHE_KEY", "true")
os.environ.pop("COLUMNS", None)  # xdist sets it in workers; it would wrap help.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")

import jax
import pytest
from hypothesis import HealthCheck, settings

from jaxload import config as config_lib
from jaxload.balance.program import Layout
from jaxload.config import Config
from jaxload.console import Console
from jaxload.data.manifest import Manifest
from jaxload.parallel.config import MeshConfig
from jaxload.planning.analytic_cost import analytic_cost
from jaxload.planning.memory import TokenMemory
from jaxload.planning.plan import Plan
from jaxload.planning.planner import Planner
from jaxload.planning.samples import Samples
from jaxload.runs.dataset import open_dataset
from jaxload.shapes.shape import Shape

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# The same examples each time, however long one takes; `make fuzz` draws new ones. A
# property may rewrite one file in `tmp_path` for all of its examples.
FUZZ_EXAMPLES = os.environ.get("JAXLOAD_FUZZ_EXAMPLES")
_COMMON = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("tests", _COMMON, derandomize=True)
settings.register_profile(
    "fuzz-long", _COMMON, max_examples=int(FUZZ_EXAMPLES or 10_000)
)
settings.load_profile("fuzz-long" if FUZZ_EXAMPLES else "tests")


@pytest.fixture(scope="session")
def root() -> Path:
    """Returns the project's root directory."""
    return ROOT


@pytest.fixture(scope="session")
def real_clips() -> Path:
    """Returns the folder of real clips; without it, skips or, in CI, fails."""
    path = ROOT / ".venv" / "clips"
    if not path.exists():
        reason = f"{path} is missing; run `make clips`"
        if os.environ.get("JAXLOAD_REQUIRE_CLIPS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def debug_config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Returns configs/debug.py with a dataset path of this test run."""
    config = config_lib.load(ROOT / "configs" / "debug.py")
    path = tmp_path_factory.mktemp("data") / "debug"
    return config_lib.override(config, f"data.path={path}")


@pytest.fixture(scope="session")
def debug_manifest(debug_config: Config) -> Manifest:
    """Creates the synthetic dataset of `debug_config`."""
    return open_dataset(debug_config, Console(quiet=True))


@pytest.fixture(scope="session")
def plan_of(debug_config: Config) -> Callable[..., Plan]:
    """Returns a function that plans for counts by shape, at a small model's cost."""

    def plan_of(
        counts: dict[Shape, int],
        *,
        num_replicas: int = 1,
        accumulate: int = 1,
        mesh: MeshConfig | None = None,
        **balance,
    ) -> Plan:
        mesh = mesh or MeshConfig(replica=num_replicas)
        balance = {"max_tokens": 256, "max_buckets": 2, "form": "grid"} | balance
        config = dataclasses.replace(
            debug_config,
            balance=dataclasses.replace(debug_config.balance, **balance),
            train=dataclasses.replace(debug_config.train, accumulate=accumulate),
            mesh=mesh,
        )
        planner = Planner(
            config,
            Samples.of_counts(counts, may_cut=False, dataset="0123456789abcdef"),
            analytic_cost(config.model),
            TokenMemory(
                max_tokens=config.balance.max_tokens,
                layout=Layout(batch=mesh.fsdp),
                multiple=config.balance.batch_multiple,
            ),
            mesh,
            num_replicas=num_replicas,
            target="cpu",
        )
        return planner.plan()

    return plan_of
