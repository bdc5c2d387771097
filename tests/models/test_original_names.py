"""Compares our table of original names with diffusers' own converters.

`golden/original_names.json` was written by `reference.py`. It holds a checksum of each
converted tensor, so that two of the same shape cannot be confused.
"""

import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxload.models import weights
from tests.models.golden import CLASS_NAMES

FILE = Path(__file__).parent / "golden" / "original_names.json"
MODELS: dict[str, dict[str, Any]] = json.loads(FILE.read_text())


def filled(shapes: dict[str, str]) -> dict[str, np.ndarray]:
    """Fills tensors with consecutive numbers by name, as `reference.py` does."""
    tensors, start = {}, 0
    for name in sorted(shapes):
        shape = [int(size) for size in shapes[name].split("x")]
        stop = start + math.prod(shape)
        tensors[name] = np.arange(start, stop, dtype=np.float32).reshape(shape)
        start = stop
    return tensors


def described(tensor: np.ndarray) -> str:
    shape = "x".join(map(str, tensor.shape))
    return f"{shape} {zlib.crc32(tensor.tobytes()):08x}"


@pytest.mark.parametrize(
    "prefix", ["", "model.diffusion_model."], ids=["original", "comfyui"]
)
@pytest.mark.parametrize("case", ["wan", "wan_image", "mmdit"])
def test_a_model_of_the_original_names_is_what_diffusers_makes_of_it(
    case: str, prefix: str, tmp_path: Path
):
    model = MODELS[case]
    config = model["config"] | {"_class_name": CLASS_NAMES[model["kind"]]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = filled(model["original"])
    original = tmp_path / "original.safetensors"
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, original)

    converted = tmp_path / "converted.safetensors"
    weights.save(weights.load(original), converted, names="diffusers")
    found = {name: described(t) for name, t in load_file(converted).items()}
    assert found == model["diffusers"]
