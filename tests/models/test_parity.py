"""Compares our models with diffusers, run live on more shapes than golden files have.

`make parity` creates the environment with diffusers, and runs this module.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from jaxload.models import weights
from tests.models import golden as golden_lib
from tests.models.golden import Golden, Ours, channels_last, largest_error

PYTHON = Path(sys.prefix) / "torch" / "bin" / "python"
REFERENCE = Path(__file__).with_name("reference.py")

# Gradients that depend directly on the timestep embedding. PyTorch's float32
# exponential has errors in the last bit, which change angles by 6e-5 at timestep 1000.
OF_TIMESTEPS = ("time_embedder.linear_1", "timestep_embedder.linear_1")
OF_TIMESTEPS += ("guidance_embedder.linear_1",)

WAN = {"num_attention_heads": 2, "attention_head_dim": 24, "num_layers": 2}
WAN |= {"ffn_dim": 80, "text_dim": 12}
IMAGE = WAN | {"in_channels": 36, "image_dim": 14, "added_kv_proj_dim": 48}
MMDIT = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}
MMDIT |= {"num_single_layers": 2, "num_refiner_layers": 1, "rope_axes_dim": [4, 6, 6]}
MMDIT |= {"text_embed_dim": 12, "pooled_projection_dim": 8}


def wan(name: str, latent: list[int], timesteps: list[float], **case: Any):
    return {
        "name": name,
        "kind": "wan",
        "seed": 5,
        "config": WAN,
        "latent": latent,
        "timesteps": timesteps,
        "text_tokens": 9,
    } | case


def mmdit(name: str, latent: list[int], timesteps: list[float], **case: Any):
    lengths = [9] * latent[0]
    of_mmdit = {"kind": "mmdit", "config": MMDIT, "text_lengths": lengths}
    return wan(name, latent, timesteps) | of_mmdit | case


CASES = [
    wan("wan-one-token", [1, 1, 2, 2], [500.0]),
    wan("wan-one-frame", [2, 1, 6, 10], [1000.0, 0.0]),
    wan("wan-odd-sizes", [1, 5, 6, 14], [3.7]),
    wan("wan-three-samples", [3, 2, 4, 6], [999.0, 500.5, 0.25]),
    wan("wan-short-text", [1, 2, 4, 4], [700.0], text_tokens=2),
    wan("wan-long-text", [2, 2, 4, 4], [700.0, 30.0], text_tokens=77),
    wan(
        "wan-released-heads",
        [1, 3, 12, 20],
        [812.5],
        config=WAN | {"attention_head_dim": 128, "num_attention_heads": 3},
    ),
    wan(
        "wan-image",
        [2, 2, 4, 6],
        [250.0, 750.0],
        config=IMAGE,
        text_tokens=512,
        image_tokens=7,
    ),
    wan(
        "wan-two-images",
        [2, 2, 4, 6],
        [250.0, 750.0],
        config=IMAGE | {"pos_embed_seq_len": 14},
        text_tokens=512,
        image_tokens=7,
    ),
    mmdit("mmdit-one-token", [1, 1, 2, 2], [500.0]),
    mmdit(
        "mmdit-text-of-different-lengths",
        [3, 2, 4, 6],
        [1000.0, 500.5, 0.0],
        text_lengths=[1, 4, 9],
    ),
    mmdit(
        "mmdit-without-guidance",
        [2, 3, 6, 10],
        [999.0, 1.5],
        config=MMDIT | {"guidance_embeds": False},
    ),
    mmdit(
        "mmdit-released-heads",
        [1, 3, 6, 14],
        [812.5],
        config=MMDIT | {"attention_head_dim": 128, "rope_axes_dim": [16, 56, 56]},
    ),
]

pytestmark = [pytest.mark.parity, pytest.mark.slow]


def run_reference(*args: str | Path):
    if not PYTHON.exists():
        reason = "needs diffusers: make parity"
        if os.environ.get("JAXLOAD_REQUIRE_TORCH"):
            pytest.fail(reason)
        pytest.skip(reason)
    subprocess.run([PYTHON, REFERENCE, *args], check=True)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case["name"])
def golden(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Golden:
    """Runs a case in diffusers and returns its results."""
    directory = tmp_path_factory.mktemp("reference")
    cases = directory / "cases.json"
    cases.write_text(json.dumps([request.param]))
    run_reference(cases, directory)
    return golden_lib.read(directory / f"{request.param['name']}.safetensors")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, golden: Golden) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def ours(golden: Golden, directory: Path) -> Ours:
    return golden_lib.run(golden, directory)


def test_output_and_all_gradients(golden: Golden, ours: Ours):
    output, latent_grad = (
        channels_last(golden.tensors[name]) for name in ("output", "grad.latent")
    )
    assert largest_error(ours.output, output) < 1e-5
    assert largest_error(ours.latent_grad, latent_grad) < 1e-5
    expected = golden.part("grad.param.")
    largest = max(abs(gradient).max() for gradient in expected.values())
    assert set(expected) <= set(ours.param_grads)
    for name, gradient in expected.items():
        error = abs(ours.param_grads[name] - gradient).max()
        # Some gradients are sums that cancel: a bias of all keys changes no softmax.
        # Their error is that of their terms, 1e-7 of the largest gradient of all.
        error /= max(abs(gradient).max(), 1e-2 * largest)
        limit = 1e-4 if any(part in name for part in OF_TIMESTEPS) else 1e-5
        assert error < limit, name


def test_diffusers_reads_what_we_write(golden: Golden, ours: Ours, directory: Path):
    del ours  # The fixture has written the weights that are read here.
    saved = directory / "saved"
    weights.save(weights.load(directory), saved)
    name = golden_lib.CLASS_NAMES[golden.case["kind"]]
    code = (
        "import sys, diffusers; from safetensors.torch import save_file\n"
        f"model = diffusers.{name}.from_pretrained(sys.argv[1])\n"
        "save_file(model.state_dict(), sys.argv[2])\n"
    )
    again = directory / "again.safetensors"
    subprocess.run([PYTHON, "-c", code, saved, again], check=True)
    expected, got = golden.part("weight."), load_file(again)
    assert set(expected) == set(got)
    for key, tensor in expected.items():
        assert (got[key] == tensor).all(), key


def test_diffusers_converts_the_original_names_as_before(tmp_path: Path):
    """Checks the file that `test_original_names.py` compares our names with."""
    names = REFERENCE.parent / "golden" / "original_names.json"
    run_reference("--names", names, tmp_path / "names.json")
    now = json.loads((tmp_path / "names.json").read_text())
    assert now == json.loads(names.read_text())
