"""Saves a model's weights to files, one tensor at a time."""

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

from jaxload.errors import InputError
from jaxload.models.weights import layout
from jaxload.models.weights.families import weights_of
from jaxload.models.weights.files import Described
from jaxload.models.weights.names import NAMINGS, Naming, Rows, tensors_of
from jaxload.models.weights.variables import is_stored, variables_of

_OTHER_FORMATS = (".pt", ".pth", ".bin", ".ckpt", ".gguf", ".msgpack", ".npz")


def save(
    model: nnx.Module,
    path: str | os.PathLike[str],
    *,
    names: Naming = "diffusers",
    max_file_bytes: int = 10_000_000_000,
) -> None:
    """Writes a model as safetensors, with LoRA adapters merged into the kernels.

    Every process of a job must call this function; process 0 writes. Existing files
    are replaced once all new ones have been written.

    Args:
        model: A model of a known family, with a `config`.
        path: A file if it ends in .safetensors, else a directory in the layout of
            diffusers, with a config.json if `names` is "diffusers".
        names: Naming of the tensors; "comfyui" is the original names with a prefix.
        max_file_bytes: Size limit of each file of a directory; a single tensor may
            exceed it.
    """
    path = Path(path)
    _check_arguments(path, names, max_file_bytes)
    config: Any = getattr(model, "config", None)
    weights = weights_of(config)
    variables = variables_of(nnx.state(model))
    stored = {path: v.get_value() for path, v in variables.items() if is_stored(v)}
    shapes = {path: value.shape for path, value in stored.items()}
    tensors = tensors_of(weights, names, shapes)
    described = [
        Described(name, np.dtype(stored[tensor.parameters[0].path].dtype), tensor.shape)
        for name, tensor in tensors.items()
    ]

    def chunks(tensor: Described) -> Iterator[np.ndarray]:
        for rows in tensors[tensor.name].parameters:
            yield rows.conversion.to_file(_value(model, rows))

    if jax.process_index() == 0:
        layout.write(
            path,
            described,
            chunks,
            max_file_bytes=max_file_bytes,
            # With a config.json and other names, diffusers would find no weights.
            config=weights.write_config(config) if names == "diffusers" else None,
        )
    else:  # All processes must take part in gathering.
        for tensor in described:
            for _ in chunks(tensor):
                pass
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("jaxload.models.weights.save")


def _check_arguments(path: Path, names: str, max_file_bytes: int) -> None:
    """Checks arguments before anything is written."""
    if names not in NAMINGS:
        raise InputError(f"names={names!r}: expected one of {', '.join(NAMINGS)}")
    if max_file_bytes < 1:
        raise InputError(f"max_file_bytes={max_file_bytes}: expected 1 or more")
    is_file = path.suffix == ".safetensors"
    if is_file and path.is_dir():
        raise InputError(
            f"{path}: expected a file, as the name ends in .safetensors, got a "
            "directory; remove it, or choose another name"
        )
    if path.suffix in _OTHER_FORMATS or (not is_file and path.is_file()):
        raise InputError(
            f"{path}: expected a .safetensors file or a directory; choose another name"
        )
    if not is_file and not layout.holds_only_models(path):
        raise InputError(
            f"{path}: expected a directory for weights, got one with a "
            f"{layout.CONFIG} that is not a model's; choose another"
        )


def _value(model: nnx.Module, rows: Rows) -> np.ndarray:
    """Returns a parameter, or one layer of it, as an array on this host."""
    *owners, name = rows.path
    owner: Any = functools.reduce(getattr, owners, model)
    value = _layer(getattr(owner, name).get_value(), rows.layer)
    if name == "kernel" and owner.has_lora:
        a, b = (
            _layer(adapter.get_value(), rows.layer)
            for adapter in (owner.lora_a, owner.lora_b)
        )
        value = _merged(value, a, b, owner.lora_scale)
    if not value.is_fully_addressable:
        return multihost_utils.process_allgather(value, tiled=True)
    return np.asarray(value)


def _layer(value: jax.Array, layer: int | None) -> jax.Array:
    # Copied, because a JAX array that was read keeps its values on the host.
    return jnp.copy(value) if layer is None else _index(value, layer)


@jax.jit
def _index(value: jax.Array, layer: jax.Array | int) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(value, layer, keepdims=False)


@jax.jit
def _merged(
    kernel: jax.Array, a: jax.Array, b: jax.Array, scale: jax.Array | float
) -> jax.Array:
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    product = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
    return (kernel.astype(jnp.float32) + scale * product).astype(kernel.dtype)
