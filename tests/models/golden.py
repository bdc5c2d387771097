"""Reads reference results of diffusers, and runs our models on the same inputs."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from jaxload.models import weights

CLASS_NAMES = {
    "wan": "WanTransformer3DModel",
    "mmdit": "HunyuanVideoTransformer3DModel",
}


class Golden(NamedTuple):
    """Inputs, weights and results of one case of `reference.py`."""

    case: dict[str, Any]
    config: dict[str, Any]
    versions: dict[str, str]
    tensors: dict[str, np.ndarray]

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        """Returns the tensors whose names begin with the prefix, which is removed."""
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }


def read(path: Path) -> Golden:
    """Reads a case that `reference.py` wrote."""
    with safe_open(path, framework="numpy") as file:
        metadata = {key: json.loads(text) for key, text in file.metadata().items()}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return Golden(tensors=tensors, **metadata)


def write_directory(golden: Golden, directory: Path) -> Path:
    """Writes weights and config.json as diffusers does."""
    config = golden.config | {"_class_name": CLASS_NAMES[golden.case["kind"]]}
    (directory / "config.json").write_text(json.dumps(config))
    tensors = golden.part("weight.")
    save_file(tensors, directory / "diffusion_pytorch_model.safetensors")
    return directory


def arguments(golden: Golden) -> tuple[tuple[jax.Array, ...], dict[str, jax.Array]]:
    """Returns our model's arguments: channels last, all images of a sample joined."""
    given = golden.part("input.")
    latent = jnp.asarray(channels_last(given["latent"]))
    positional = (latent, jnp.asarray(given["timestep"]), jnp.asarray(given["text"]))
    names = {
        "image": "image",
        "text_lengths": "text_lengths",
        "pooled": "pooled",
        "guidance": "guidance",
    }
    named = {names[name]: x for name, x in given.items() if name in names}
    if "image" in named:
        image = named["image"]
        named["image"] = image.reshape(latent.shape[0], -1, image.shape[-1])
    if "text_lengths" in named:
        named["text_lengths"] = named["text_lengths"].astype(np.int32)
    return positional, {name: jnp.asarray(x) for name, x in named.items()}


def channels_last(x_BCFHW: np.ndarray) -> np.ndarray:
    return x_BCFHW.transpose(0, 2, 3, 4, 1)


class Ours(NamedTuple):
    """Output and gradients of our model."""

    output: np.ndarray
    latent_grad: np.ndarray
    param_grads: Mapping[str, np.ndarray]
    """Gradients of parameters, by diffusers' names."""


def run(golden: Golden, directory: Path, **types: Any) -> Ours:
    """Loads the weights with `weights.load`, and runs forward and backward."""
    config = dataclasses.replace(
        weights.read_config(write_directory(golden, directory)),
        # Diffusers' models do not pad text; its pipelines do.
        num_text_tokens=golden.case["text_tokens"],
        **({"compute_dtype": "float32"} | types),
    )
    graphdef, params = nnx.split(weights.load(directory, config))
    (latent, *others), named = arguments(golden)

    @jax.jit
    def forward_and_backward(params, latent, cotangent):
        def forward(params, latent):
            return nnx.merge(graphdef, params)(latent, *others, **named)

        output, vjp = jax.vjp(forward, params, latent)
        return output, *vjp(cotangent)

    cotangent = jnp.asarray(channels_last(golden.tensors["cotangent"]))
    output, param_grads, latent_grad = forward_and_backward(params, latent, cotangent)
    renamed = directory / "gradients.safetensors"
    weights.save(nnx.merge(graphdef, param_grads), renamed)
    return Ours(np.asarray(output), np.asarray(latent_grad), load_file(renamed))


def largest_error(
    got: np.ndarray | jax.Array, expected: np.ndarray | jax.Array
) -> float:
    """Returns the largest difference, relative to the largest expected value."""
    assert got.shape == expected.shape
    return float(np.abs(got - expected).max() / np.abs(expected).max())
