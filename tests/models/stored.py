"""Small models to save, and file access through the safetensors library."""

import functools
from pathlib import Path

import jax
import numpy as np
import safetensors.numpy
from flax import nnx

from jaxload.models import MMDiTConfig, WanConfig, make_model
from jaxload.models.weights.variables import variables_of

Config = WanConfig | MMDiTConfig

WAN = WanConfig(
    width=32,
    depth=3,
    num_heads=2,
    mlp_width=64,
    text_dim=16,
    num_text_tokens=512,
    condition_channels=20,
    image_dim=24,
    num_image_positions=6,
)
MMDIT = MMDiTConfig(
    width=32,
    num_double_blocks=2,
    num_single_blocks=3,
    num_refiner_blocks=1,
    num_heads=2,
    mlp_width=80,
    text_dim=16,
    num_text_tokens=256,
    pooled_dim=20,
    guidance=True,
    rope_widths=(4, 6, 6),
)


@functools.cache
def abstract(config: Config) -> nnx.Module:
    """Returns the model without values."""
    return nnx.eval_shape(lambda: make_model(config, rngs=nnx.Rngs(0)))


@functools.cache
def make(config: Config) -> nnx.Module:
    """Returns a model with random parameters, without running its initializers."""
    graphdef, state = nnx.split(abstract(config))
    rng = np.random.default_rng(0)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        value = rng.standard_normal(leaf.shape, np.float32)
        return jax.device_put(value.astype(leaf.dtype))

    return nnx.merge(graphdef, jax.tree.map(draw, state))


def values(model: nnx.Module) -> dict[str, np.ndarray]:
    """Returns all parameters by path."""
    variables = variables_of(nnx.state(model))
    return {".".join(p): np.asarray(v.get_value()) for p, v in variables.items()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Asserts that arrays are equal, bit for bit."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


def read(directory: Path) -> dict[str, np.ndarray]:
    """Reads a directory's files with the safetensors library."""
    tensors: dict[str, np.ndarray] = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors |= safetensors.numpy.load_file(path)
    return tensors


def write(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """Writes a file with the safetensors library."""
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    safetensors.numpy.save_file(tensors, path)
    return path
