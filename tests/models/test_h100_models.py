"""Compiles train steps of released model sizes for H100s, without an H100.

Models have full depth: blocks are scanned, so that fewer would compile no faster.
"""

import os

import pytest

from benchmarks.models import h100
from jaxload.models import preset

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def tools():
    """Skips or fails all tests of this module if build tools are missing."""
    what = h100.missing_tools()
    if what and "cuda" in os.environ.get("JAXLOAD_REQUIRE_KERNELS", ""):
        pytest.fail(what)
    if what:
        pytest.skip(what)


@pytest.fixture(scope="module", params=h100.CASES)
def finding(request: pytest.FixtureRequest) -> h100.Finding:
    remat = preset(h100.CASES[request.param].preset).remat
    assert remat != "auto"
    return h100.measure(request.param, remat)


def test_it_fits_in_the_card(finding: h100.Finding):
    assert finding.is_preset
    assert finding.fits, f"{finding.total:,} bytes of {finding.capacity:,}"


def test_kernels_are_called_and_attention_runs_once(finding: h100.Finding):
    # One self- and one cross-attention in the loop over blocks, forward and backward;
    # the backward pass runs the latter again, which is cheap, and never the former.
    assert finding.calls["__cudnn$fmhaSoftmax"] == 3
    assert finding.calls["__cudnn$fmhaSoftmaxBackward"] == 2
    # Before attention and before the MLP, and at the head; the backward pass runs the
    # first two again.
    assert finding.calls["jaxload_layer_norm_modulate_fwd"] == 5
    assert finding.calls["jaxload_layer_norm_modulate_bwd"] == 3
    assert finding.calls["jaxload_gated_residual_layer_norm_modulate_fwd"] == 2
    assert finding.calls["jaxload_gated_residual_layer_norm_modulate_bwd"] == 1


def test_attention_runs_on_the_sample_of_its_device(finding: h100.Finding):
    heads = preset(h100.CASES[finding.case].preset).num_heads
    # q, k and v are cut alike, or the call would not be local.
    assert finding.attention == [f"bf16[1,{heads},32760,128]"] * 3


def test_within_a_group_weights_are_gathered_and_gradients_scattered(
    finding: h100.Finding,
):
    config = preset(h100.CASES[finding.case].preset)
    assert config.kind == "wan"
    if h100.CASES[finding.case].num_devices == 1:
        assert finding.collectives == {}
        return
    gathered = finding.collectives["all-gather"]
    # Layer by layer: never the stacked parameters of all layers.
    assert f"{config.width},{config.mlp_width}" in gathered
    assert not [s for s in gathered if s.startswith(f"{config.depth},")]
    scattered = finding.collectives["reduce-scatter"]
    rows = config.width // h100.CASES[finding.case].num_devices
    assert any(s.endswith(f"{rows},{config.mlp_width}") for s in scattered)
    # Only vectors and scalars are reduced to all devices, never a matrix of a block.
    matrices = {f"{config.width},{config.width}", f"{config.width},{config.mlp_width}"}
    reduced = finding.collectives.get("all-reduce", [])
    assert not [s for s in reduced if any(s.endswith(m) for m in matrices)], reduced


def test_the_update_gathers_nothing(finding: h100.Finding):
    # Each device updates what it holds; they agree on the norm of the gradients.
    assert "all-gather" not in finding.update_collectives
    assert finding.update < finding.micro_step
