"""Fixtures of the tests that read data."""

from collections.abc import Callable

import pytest

from jaxload.balance.mixed import Mixed
from jaxload.balance.schedule import Lockstep
from jaxload.config import Config
from jaxload.data.manifest import Manifest
from jaxload.planning.plan import Plan


@pytest.fixture(scope="session")
def schedule_of(
    debug_config: Config, debug_manifest: Manifest, plan_of: Callable[..., Plan]
) -> Callable[..., Lockstep | Mixed]:
    """Returns a function that plans schedules of the debug dataset."""
    counts = {shape: len(rows) for shape, rows in debug_manifest.rows_by_shape.items()}
    balance = debug_config.balance

    def schedule_of(**fields) -> Lockstep | Mixed:
        fields = {
            "max_tokens": balance.max_tokens,
            "max_buckets": balance.max_buckets,
        } | fields
        return plan_of(counts, **fields).schedule(seed=0)

    return schedule_of
