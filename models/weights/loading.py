"""Loads weights from files into a model's arrays, one parameter at a time."""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from flax import nnx
from jax.sharding import Sharding

from jaxload.errors import InputError
from jaxload.models.construction import make_model
from jaxload.models.families import ModelConfig
from jaxload.models.transformer import Transformer
from jaxload.models.weights import layout
from jaxload.models.weights.families import match, weights_of
from jaxload.models.weights.families import read_config as _read_config
from jaxload.models.weights.files import Stored, copy
from jaxload.models.weights.names import ParameterPath, Rows, Tensor
from jaxload.models.weights.variables import is_stored, variables_of

_ALIGNMENT = 64

Bounds = tuple[tuple[int, int], ...]
"""Start and stop along each axis."""


def read_config(path: str | os.PathLike[str]) -> ModelConfig:
    """Reads the config.json beside the weights at a path."""
    return _read_config(layout.find(Path(path)).config)


def load(
    path: str | os.PathLike[str],
    config: ModelConfig | None = None,
    *,
    shardings: nnx.State[Any, Any] | None = None,
    rngs: nnx.Rngs | None = None,
) -> Transformer:
    """Loads a model from safetensors, directly into sharded arrays.

    Diffusers, original and ComfyUI names are recognized. Parameters are converted to
    the config's param_dtype. LoRA adapters, which files do not hold, are initialized.

    Args:
        path: A .safetensors file, the index of several, or a directory that holds
            either, itself or in transformer/.
        config: Config of the model. None reads the config.json beside the files, and
            sets param_dtype to bfloat16 if all tensors are bfloat16, else to float32.
        shardings: Sharding of each parameter, in the structure of the model's state;
            None puts all parameters on the default device.
        rngs: Random keys that initialize the adapters; None uses `nnx.Rngs(0)`.

    Raises:
        InputError: The files do not hold the weights of such a model.
    """
    found = layout.find(Path(path))
    tensors = found.tensors()
    if config is None:
        config = _with_type_of(tensors, _read_config(found.config))
    create = functools.partial(_create, config, rngs or nnx.Rngs(0))
    graphdef, state = nnx.split(nnx.eval_shape(create))
    variables = variables_of(state)
    placed = _shardings(variables, shardings)

    stored = {p: v.get_value() for p, v in variables.items() if is_stored(v)}
    shapes = {p: value.shape for p, value in stored.items()}
    sources = _by_parameter(match(found.path, config, shapes, tensors))
    values = _initial(create, {p: s for p, s in placed.items() if p not in stored})
    for p, value in stored.items():
        values[p] = _read(value, placed[p], sources[p])
    loaded = nnx.from_flat_state(
        [(p, v.replace(values[p])) for p, v in variables.items()]
    )
    return cast(Transformer, nnx.merge(graphdef, loaded))


def check(path: str | os.PathLike[str], config: ModelConfig) -> None:
    """Checks that `load` would find the model's tensors; reads only file headers.

    Raises:
        InputError: `load` would fail.
    """
    weights_of(config)  # Raises for a family without weight files, at any path.
    found = layout.find(Path(path))
    create = functools.partial(_create, config, nnx.Rngs(0))
    variables = variables_of(nnx.state(nnx.eval_shape(create)))
    shapes = {p: v.get_value().shape for p, v in variables.items() if is_stored(v)}
    match(found.path, config, shapes, found.tensors())


def _with_type_of(tensors: Mapping[str, Stored], config: ModelConfig) -> ModelConfig:
    """Returns the config with the param_dtype of the tensors in the files."""
    is_half = all(stored.dtype == "BF16" for stored in tensors.values())
    return dataclasses.replace(config, param_dtype="bfloat16" if is_half else "float32")


def _create(config: ModelConfig, rngs: nnx.Rngs) -> Transformer:
    return make_model(config, rngs=nnx.clone(rngs))


def _shardings(
    variables: Mapping[ParameterPath, nnx.Variable],
    shardings: nnx.State[Any, Any] | None,
) -> dict[ParameterPath, Sharding]:
    if shardings is None:
        default = jax.device_put(np.zeros(())).sharding
        return dict.fromkeys(variables, default)
    given = {
        path: leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
        for path, leaf in variables_of(shardings).items()
    }
    without = [".".join(path) for path in variables if path not in given]
    if without:
        raise InputError(
            f"shardings: expected one for each of {len(variables)} parameters, got "
            f"none for {', '.join(without[:10])}"
        )
    return {path: given[path] for path in variables}


def _initial(create: Any, shardings: Mapping[ParameterPath, Sharding]) -> dict:
    """Initializes only the variables that files do not hold: the adapters."""
    if not shardings:
        return {}

    def initial() -> dict[ParameterPath, jax.Array]:
        variables = variables_of(nnx.state(create()))
        return {path: variables[path].get_value() for path in shardings}

    return jax.jit(initial, out_shardings=dict(shardings))()


def _by_parameter(
    pairs: Mapping[str, tuple[Tensor, Stored]],
) -> dict[ParameterPath, list[tuple[Rows, Stored]]]:
    sources: dict[ParameterPath, list[tuple[Rows, Stored]]] = {}
    for tensor, stored in pairs.values():
        for rows in tensor.parameters:
            sources.setdefault(rows.path, []).append((rows, stored))
    return sources


def _read(
    abstract: jax.ShapeDtypeStruct,
    sharding: Sharding,
    sources: Sequence[tuple[Rows, Stored]],
) -> jax.Array:
    """Reads the parts of one parameter that this process's devices hold."""
    shape = abstract.shape
    bounds = {
        device: tuple(s.indices(n)[:2] for s, n in zip(index or (), shape, strict=True))
        for device, index in sharding.addressable_devices_indices_map(shape).items()
    }
    # Devices that hold the same part share a buffer.
    buffers = {part: _empty(part, abstract.dtype) for part in set(bounds.values())}
    for rows, stored in sources:
        _read_rows(rows, stored, buffers)
    arrays = [jax.device_put(buffers[part], device) for device, part in bounds.items()]
    # Waiting for the copies limits host memory to the buffers of one parameter.
    jax.block_until_ready(arrays)
    return jax.make_array_from_single_device_arrays(shape, sharding, arrays)


def _empty(part: Bounds, dtype: np.dtype) -> np.ndarray:
    """Allocates an array whose alignment lets JAX on CPU use it without a copy."""
    shape = [stop - start for start, stop in part]
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _read_rows(
    rows: Rows, stored: Stored, buffers: Mapping[Bounds, np.ndarray]
) -> None:
    targets = []
    for part, buffer in buffers.items():
        if rows.layer is None:
            targets.append((part, buffer))
        elif part[0][0] <= rows.layer < part[0][1]:
            targets.append((part[1:], buffer[rows.layer - part[0][0]]))
    if not targets:
        return
    content = stored.read_rows(rows.first_row, rows.num_rows)
    value = rows.conversion.to_parameter(content, rows.shape)
    for part, target in targets:
        copy(value[tuple(slice(*limits) for limits in part)], target)
