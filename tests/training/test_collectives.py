"""Collectives of a step on two groups, as XLA compiles it for H100s."""

import os
from typing import Any

import pytest

from jaxload import targets
from jaxload.errors import InputError
from jaxload.targets.child_process import environment

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def step() -> dict[str, Any]:
    """Collectives of a micro-step and of the update, on two groups of four."""
    try:
        environment()
    except InputError as error:
        if "cuda" in os.environ.get("JAXLOAD_REQUIRE_KERNELS", ""):
            pytest.fail(str(error))
        pytest.skip(str(error))
    replies: list[dict[str, Any]] = []
    mesh = {"replica": 2, "fsdp": 4, "tensor": 1}
    targets.run_module(
        "tests.training.collectives_child",
        {"model": "wan-tiny", "mesh": mesh},
        replies.append,
    )
    (reply,) = replies
    return reply


def test_a_micro_step_stays_within_its_group(step: dict[str, Any]):
    found = step["micro_step"]
    assert {c["num_devices"] for c in found} == {4}
    assert {"all-gather", "reduce-scatter"} <= {c["kind"] for c in found}


def test_gradients_cross_groups_once_a_step(step: dict[str, Any]):
    assert {c["num_devices"] for c in step["update"]} == {8}
    across = [c for c in step["update"] if c["num_communicating"] == 2]
    assert {c["kind"] for c in across} == {"all-reduce"}
    # Every gradient of a device's shard, the loss, the count and 16 metrics.
    total = sum(c["num_elements"] for c in across)
    assert total == step["num_gradients_per_device"] + 1 + 1 + 16


def test_within_a_group_the_update_agrees_on_the_norm_alone(step: dict[str, Any]):
    within = [c for c in step["update"] if c["num_communicating"] == 4]
    assert len(within) + 2 >= len(step["update"])
    assert sum(c["num_elements"] for c in within) < 100
