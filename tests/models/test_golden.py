"""Compares our models with stored results of diffusers.

`golden/` was written by `reference.py`; `make parity` runs it live, over more shapes.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.models import golden as golden_lib
from tests.models.golden import Golden, Ours, channels_last, largest_error

DIRECTORY = Path(__file__).parent / "golden"
CASES = sorted(path.stem for path in DIRECTORY.glob("*.safetensors"))


@pytest.fixture(scope="module", params=CASES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return golden_lib.read(DIRECTORY / f"{request.param}.safetensors")


@pytest.fixture(scope="module")
def ours(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Ours:
    return golden_lib.run(golden, tmp_path_factory.mktemp("weights"))


def test_there_is_a_case_of_each_model():
    assert CASES == ["mmdit", "wan", "wan_image"]


def test_files_are_small():
    assert sum(path.stat().st_size for path in DIRECTORY.iterdir()) < 2_000_000


def test_output(golden: Golden, ours: Ours):
    # The measured error is 6e-7.
    expected = channels_last(golden.tensors["output"])
    assert largest_error(ours.output, expected) < 1e-5


def test_gradient_of_the_latent(golden: Golden, ours: Ours):
    expected = channels_last(golden.tensors["grad.latent"])
    assert largest_error(ours.latent_grad, expected) < 1e-5


def test_gradients_of_parameters(golden: Golden, ours: Ours):
    expected = golden.part("grad.param.")
    assert set(expected) == set(golden.case["gradients"])
    for name, gradient in expected.items():
        assert largest_error(ours.param_grads[name], gradient) < 1e-5, name


@pytest.mark.parametrize("param_dtype", ["float32", "bfloat16"])
def test_bfloat16_is_as_near_as_that_of_diffusers(
    golden: Golden, tmp_path: Path, param_dtype: str
):
    types = {"compute_dtype": "bfloat16", "param_dtype": param_dtype}
    half = golden_lib.run(golden, tmp_path, **types).output
    exact = channels_last(golden.tensors["output"])
    theirs = channels_last(golden.tensors["output_bfloat16"])
    for norm in (np.max, np.mean):
        assert norm(np.abs(half - exact)) <= norm(np.abs(theirs - exact))


def test_every_weight_changes_the_output(golden: Golden, ours: Ours):
    """Ensures that a tensor mapped to the wrong parameter would be noticed."""
    for name, gradient in ours.param_grads.items():
        assert np.abs(gradient).max() > 0, name
