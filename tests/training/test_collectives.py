"""Tests the collectives of programs on two groups, compiled for H100s."""

import os
from collections import Counter
from typing import Any

import pytest

from jaxload import targets
from jaxload.errors import InputError
from jaxload.targets.child_process import environment
from tests.training.collectives_child import count_collectives, find_collectives

MESHES = {
    "fsdp": {"replica": 2, "fsdp": 4, "tensor": 1},
    "tensor": {"replica": 2, "fsdp": 2, "tensor": 2},
}
# Each device has more tokens than the model has features, as in a real run. With fewer
# tokens, XLA would communicate activations instead of parameters.
GRIDS = [(2, 16, 16), (4, 16, 16)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(m, marks=[pytest.mark.gpu, pytest.mark.slow]) for m in MESHES],
)
def programs(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Returns the collectives of init, update, and micro-steps of two sizes."""
    try:
        environment()
    except InputError as error:
        if "cuda" in os.environ.get("JAXLOAD_REQUIRE_KERNELS", ""):
            pytest.fail(str(error))
        pytest.skip(str(error))
    replies: list[dict[str, Any]] = []
    targets.run_module(
        "tests.training.collectives_child",
        {"model": "wan-tiny", "mesh": MESHES[request.param], "grids": GRIDS},
        replies.append,
    )
    (reply,) = replies
    return reply


def moved(found: list[dict[str, Any]]) -> Counter[tuple[str, tuple[str, ...], str]]:
    """Counts arrays by name of the collective, mesh axes and shape."""
    return Counter(
        (c["kind"], tuple(c["axes"]), array) for c in found for array in c["arrays"]
    )


def test_every_collective_is_accounted_for(programs: dict[str, Any]):
    for name, found in programs["collectives"].items():
        assert programs["counts"][name] == [len(found), len(found)], name


def test_a_micro_step_moves_parameters_and_gradients_over_fsdp(
    programs: dict[str, Any],
):
    found = programs["collectives"]["small"]
    over_fsdp = {c["kind"] for c in found if c["axes"] == ["fsdp"]}
    assert over_fsdp == {"all-gather", "reduce-scatter", "all-reduce"}
    assert "all-to-all" not in {c["kind"] for c in found}


def test_activations_are_only_summed_over_the_tensor_axis(programs: dict[str, Any]):
    small, large = (moved(programs["collectives"][name]) for name in ("small", "large"))
    # Parameters and gradients are the same for any number of tokens.
    differ = (small - large) + (large - small)
    assert {(kind, *axes) for kind, axes, _ in differ} <= {("all-reduce", "tensor")}


def test_gradients_cross_groups_once_a_step_and_nothing_else_does(
    programs: dict[str, Any],
):
    crossing = {
        name: [c for c in found if "replica" in c["axes"]]
        for name, found in programs["collectives"].items()
    }
    update = crossing.pop("update")
    assert not any(crossing.values())
    assert {(c["kind"], *c["axes"]) for c in update} == {("all-reduce", "replica")}
    # All gradients of a device's shard, the loss, two counts and 16 metrics.
    total = sum(c["num_bytes"] for c in update)
    assert total == programs["param_bytes"] + 4 * (1 + 2 + 16)


def test_within_a_group_the_update_reduces_only_the_norm(
    programs: dict[str, Any],
):
    update = programs["collectives"]["update"]
    within = [c for c in update if "replica" not in c["axes"]]
    assert {c["kind"] for c in within} == {"all-reduce"}
    assert sum(c["num_bytes"] for c in within) < 4 * 100


# --- Device groups in HLO text ---

# HLO instructions, and their device groups on a mesh of 2 x 4.
LINES = {
    "lists": (
        "%a = f32[3]{0} all-reduce(%b), replica_groups={{0,4},{1,5},{2,6},{3,7}}",
        (["replica"], ["f32[3]"]),
    ),
    "order": (
        "%a = (bf16[2,8]{1,0}, bf16[8,8]{1,0}) all-gather-start(%b), channel_id=1, "
        "replica_groups=[2,4]<=[8], dimensions={0}",
        (["fsdp"], ["bf16[8,8]"]),
    ),
    "transposed order": (
        "%a = s32[] all-reduce-start(%b), replica_groups=[4,2]<=[2,4]T(1,0)",
        (["replica"], ["s32[]"]),
    ),
    "mesh": (
        "%a = f32[3]{0} all-reduce-start(%b), replica_groups=mesh['axis_0'=2,'axis_1'=1"
        ",'axis_2'=4] {'axis_0'}, to_apply=%c",
        (["replica"], ["f32[3]"]),
    ),
    "transposed mesh": (
        "%a = f32[3]{0} all-reduce-start(%b), replica_groups=mesh['axis_0'=4,'axis_1'=2"
        "], device_ids=([2,4]T(1,0)) {'axis_0'}, to_apply=%c",
        (["fsdp"], ["f32[3]"]),
    ),
    "two axes": (
        "%a = f32[3]{0} all-reduce(%b), replica_groups=mesh['a'=2,'b'=4] {'a','b'}",
        (["replica", "fsdp"], ["f32[3]"]),
    ),
    "several arrays": (
        "%a = ((f32[8], /*index=1*/f32[4]), (f32[2], f32[1])) reduce-scatter-start(%b, "
        "%c), replica_groups={{0,1,2,3},{4,5,6,7}}",
        (["fsdp"], ["f32[2]", "f32[1]"]),
    ),
    "pairs": (
        "%a = f32[4]{0} collective-permute(%b), source_target_pairs={{0,0},{1,2}}",
        (["fsdp"], ["f32[4]"]),
    ),
}


@pytest.mark.parametrize("form", LINES)
def test_devices_are_read_in_every_form(form: str):
    line, expected = LINES[form]
    (found,) = find_collectives(f"  {line}\n", {"replica": 2, "fsdp": 4})
    assert (found["axes"], found["arrays"]) == expected
    assert count_collectives(f"  {line}\n") == [1, 1]


@pytest.mark.parametrize(
    "groups", ["mesh['a'=8] {'a':(1)2}", "mesh['a'=8], device_ids=(7,6) {'a'}", "{}"]
)
def test_devices_in_a_form_that_is_not_known_are_an_error(groups: str):
    line = f"  %a = f32[3]{{0}} all-reduce(%b), replica_groups={groups}, to_apply=%c"
    with pytest.raises(ValueError, match=r"is not in list|cannot tell which devices"):
        find_collectives(line, {"replica": 2, "fsdp": 4})
