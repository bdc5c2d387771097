"""Compiles train steps of released model sizes for H100s, without an H100.

Models have full depth, since blocks are scanned: fewer would not compile faster.
"""

import dataclasses
import json
import os
from typing import Any

import pytest

from jaxload import targets
from jaxload.models import WanConfig, preset
from jaxload.ops import _ffi
from jaxload.targets.child_process import PLUGIN, run_python

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

# A GPU has 84.9 GB; XLA_CLIENT_MEM_FRACTION=0.95 makes this much usable.
USABLE_BYTES = 80_000_000_000


@pytest.fixture(scope="module", autouse=True)
def tools():
    """Skips or fails all tests of this module if build tools are missing."""
    what = []
    if "cuda" not in _ffi.platforms():
        what.append("jaxload._ffi was built without CUDA; run `make cuda`")
    if not PLUGIN.is_dir():
        what.append("JAX's CUDA plugin is not installed; run `make .venv/.h100`")
    if what and "cuda" in os.environ.get("JAXLOAD_REQUIRE_KERNELS", ""):
        pytest.fail("; ".join(what))
    if what:
        pytest.skip("; ".join(what))


def test_rows_by_length_cost_little_more_than_rows_by_grid():
    """Compares 20 images of 1,560 tokens, without padding."""
    found = json.loads(run_python("-m", "benchmarks.models.row_traffic", "20"))
    assert (found["batch"], found["tokens"]) == (20, 1_560)
    for name, least in (("peak", 30e9), ("block", 20e9)):
        by_grid, by_length = found[name]
        assert by_grid > least
        assert by_length <= 1.02 * by_grid, name
    # The lengths of the keys reach cuDNN, forward and backward.
    assert (
        sum("s32[20]" in name and "cudnn" in name for _, name in found["changed"]) == 2
    )


@dataclasses.dataclass(frozen=True)
class Case:
    """A preset with its own remat policy, with one sample on each of some GPUs."""

    name: str
    """Name of the case in benchmarks.models.h100."""

    preset: str
    num_devices: int


CASES = [Case("1.3b", "wan2.1-t2v-1.3b", 1), Case("14b", "wan2.1-t2v-14b", 8)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(scope="module")
def finding(case: Case) -> dict[str, Any]:
    """Returns the fields of benchmarks.models.h100.Finding."""
    remat = preset(case.preset).remat
    assert remat != "auto"
    report = run_python("-m", "benchmarks.models.h100", case.name, remat)
    return json.loads(report)


def test_memory_is_within_that_of_a_gpu(finding: dict[str, Any]):
    assert finding["is_preset"]
    assert finding["capacity"] == targets.H100.memory_bytes
    total = max(finding["micro_step"], finding["update"])
    assert total <= USABLE_BYTES, f"{total:,} bytes of {finding['capacity']:,}"


def test_kernels_are_called_and_attention_runs_once(finding: dict[str, Any]):
    # The loop over blocks has one self-attention and one cross-attention, forward and
    # backward. The backward pass recomputes only cross-attention, which is cheap.
    assert finding["calls"]["__cudnn$fmhaSoftmax"] == 3
    assert finding["calls"]["__cudnn$fmhaSoftmaxBackward"] == 2
    # Before attention, before the MLP and in the head. The backward pass recomputes the
    # first two.
    assert finding["calls"]["jaxload_layer_norm_modulate_fwd"] == 5
    assert finding["calls"]["jaxload_layer_norm_modulate_bwd"] == 3
    assert finding["calls"]["jaxload_gated_residual_layer_norm_modulate_fwd"] == 2
    assert finding["calls"]["jaxload_gated_residual_layer_norm_modulate_bwd"] == 1


def test_attention_runs_on_the_sample_of_its_device(
    case: Case, finding: dict[str, Any]
):
    heads = preset(case.preset).num_heads
    # q, k and v have the same sharding; otherwise the call would not be local.
    assert finding["attention"] == [f"bf16[1,{heads},32760,128]"] * 3


def test_within_a_group_weights_are_gathered_and_gradients_scattered(
    case: Case, finding: dict[str, Any]
):
    config = preset(case.preset)
    assert isinstance(config, WanConfig)
    if case.num_devices == 1:
        assert finding["collectives"] == {}
        return
    gathered = finding["collectives"]["all-gather"]
    # Layer by layer: never the stacked parameters of all layers.
    assert f"{config.width},{config.mlp_width}" in gathered
    assert not [s for s in gathered if s.startswith(f"{config.depth},")]
    scattered = finding["collectives"]["reduce-scatter"]
    rows = config.width // case.num_devices
    assert any(s.endswith(f"{rows},{config.mlp_width}") for s in scattered)
    # Only vectors and scalars are reduced to all devices, never a matrix of a block.
    matrices = {f"{config.width},{config.width}", f"{config.width},{config.mlp_width}"}
    reduced = finding["collectives"].get("all-reduce", [])
    assert not [s for s in reduced if any(s.endswith(m) for m in matrices)], reduced


def test_the_update_gathers_nothing(finding: dict[str, Any]):
    # Each device updates its own shards; only the gradient norm is exchanged.
    assert "all-gather" not in finding["update_collectives"]
    assert finding["update"] < finding["micro_step"]
