"""Tables that map a model's parameters to the tensors in files.

A table is a list of entries. It determines the names and shapes of the tensors that a
file must have, and how parameters are converted to and from them.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np

from jaxload.models.weights.configs import Fields

# Shape suffixes: D model width, C latent channels, P pixels of a patch.

Naming = Literal["diffusers", "original", "comfyui"]
NAMINGS: tuple[Naming, ...] = get_args(Naming)
PREFIX = "model.diffusion_model."
"""Prefix that ComfyUI adds to the original names."""

PREFIXES = (PREFIX, "diffusion_model.", "model.model.")
"""Prefixes that names in files may have; ComfyUI itself saves with the last one."""

Shape = tuple[int, ...]
ParameterPath = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Conversion of a parameter, or one layer of it, to its layout in a file.

    `to_file` splits axes, flips one of them if `flipped` is set, transposes, and joins
    axes; `to_parameter` does the inverse.
    """

    split: Callable[[Shape], Shape] = lambda shape: shape
    flipped: int | None = None
    axes: tuple[int, ...] | None = None
    joined: Callable[[Shape], Shape] = lambda shape: shape
    """Returns the shape in the file, given the shape of the parameter."""

    def to_file(self, parameter: np.ndarray) -> np.ndarray:
        """Converts a parameter to a tensor of a file."""
        parts = self._flip(parameter.reshape(self.split(parameter.shape)))
        return parts.transpose(self.axes or range(parts.ndim)).reshape(
            self.joined(parameter.shape)
        )

    def to_parameter(self, tensor: np.ndarray, shape: Shape) -> np.ndarray:
        """Converts a tensor of a file to a parameter; returns a view if possible."""
        split = self.split(shape)
        axes = self.axes or tuple(range(len(split)))
        parts = tensor.reshape([split[axis] for axis in axes])
        return self._flip(parts.transpose(np.argsort(axes))).reshape(shape)

    def _flip(self, parts: np.ndarray) -> np.ndarray:
        return parts if self.flipped is None else np.flip(parts, self.flipped)


UNCHANGED = Conversion()
TRANSPOSED = Conversion(axes=(1, 0), joined=lambda s: s[::-1])
"""For matrices, which are [in, out] here and [out, in] in PyTorch files."""

LEADING_ONE = Conversion(joined=lambda s: (1, *s))
HALVES_SWAPPED = Conversion(
    split=lambda s: (s[0], 2, s[1] // 2),
    flipped=1,
    axes=(1, 2, 0),
    joined=lambda s: s[::-1],
)
"""For matrices that are transposed, with the two halves of the outputs swapped."""

HALVES_SWAPPED_BIAS = Conversion(split=lambda s: (2, s[0] // 2), flipped=0)


def patch_convolution(patch: tuple[int, int, int]) -> Conversion:
    """Returns the conversion of a patch embedding, a convolution in the file.

    The kernel is [PC, D] here and [D, C, *patch] in the file.
    """
    size = math.prod(patch)
    return Conversion(
        split=lambda s: (*patch, s[0] // size, s[1]),
        axes=(4, 3, 0, 1, 2),
        joined=lambda s: (s[1], s[0] // size, *patch),
    )


def channels_first(patch: tuple[int, int, int]) -> tuple[Conversion, Conversion]:
    """Returns conversions of kernel and bias for patches with channels first.

    Both are for an output projection. Its kernel is [D, PC] here, [CP, D] in the file.
    """
    size = math.prod(patch)
    kernel = Conversion(
        split=lambda s: (s[0], size, s[1] // size),
        axes=(2, 1, 0),
        joined=lambda s: s[::-1],
    )
    return kernel, Conversion(split=lambda s: (size, s[0] // size), axes=(1, 0))


@dataclasses.dataclass(frozen=True)
class FileTensor:
    """Tensor of a file that holds one parameter, or several.

    Parameters with the same tensor take consecutive rows, in the order of the table.
    """

    name: str
    """Name, with {i} for the index of the layer."""

    conversion: Conversion


@dataclasses.dataclass(frozen=True)
class Entry:
    """A parameter, and its tensors in diffusers' and in original files."""

    path: ParameterPath
    diffusers: FileTensor
    original: FileTensor


def vector(
    path: str, diffusers: str, original: str, conversion: Conversion = UNCHANGED
) -> Entry:
    """Returns the entry of a single parameter, whose names are complete."""
    return Entry(
        tuple(path.split(".")),
        FileTensor(diffusers, conversion),
        FileTensor(original, conversion),
    )


def scale(path: str, diffusers: str, original: str) -> Entry:
    """Returns the entry of a norm's scale."""
    return vector(f"{path}.scale", f"{diffusers}.weight", f"{original}.weight")


def norm(path: str, diffusers: str, original: str) -> list[Entry]:
    """Returns the entries of a norm's scale and bias."""
    bias = vector(f"{path}.bias", f"{diffusers}.bias", f"{original}.bias")
    return [scale(path, diffusers, original), bias]


def linear(
    path: str,
    diffusers: str,
    original: str,
    conversions: tuple[Conversion, Conversion] = (TRANSPOSED, UNCHANGED),
    original_conversions: tuple[Conversion, Conversion] | None = None,
) -> list[Entry]:
    """Returns the entries of a linear layer, with conversions of kernel and bias."""
    return [
        Entry(
            (*path.split("."), parameter),
            FileTensor(f"{diffusers}.{tensor}", conversion),
            FileTensor(f"{original}.{tensor}", original_conversion),
        )
        for parameter, tensor, conversion, original_conversion in zip(
            ("kernel", "bias"),
            ("weight", "bias"),
            conversions,
            original_conversions or conversions,
            strict=True,
        )
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightNames:
    """Tensors and config.json of the files of a model family."""

    title: str
    """Name of the released models, for messages."""

    entries: tuple[Entry, ...]
    comfyui: tuple[tuple[str, str], ...]
    """Replacements (old, new), applied in order, that convert original names to
    ComfyUI's. ComfyUI saves models with its own names, and also reads original names.
    """

    ignored: re.Pattern[str]
    """Pattern of the names of tensors that loading ignores."""

    read_config: Mapping[str, Callable[[Fields], Any]]
    """Functions that read config.json, by the class name in the file."""

    write_config: Callable[[Any], dict[str, object]]
    """Returns the content of a config.json for diffusers."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Consecutive rows of a tensor that hold a parameter, or one layer of it."""

    path: ParameterPath
    layer: int | None
    shape: Shape
    conversion: Conversion
    first_row: int

    @property
    def num_rows(self) -> int:
        """Number of rows of the tensor."""
        return self.conversion.joined(self.shape)[0]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor that a file of the model must have."""

    shape: Shape
    parameters: tuple[Rows, ...]


def tensors_of(
    names: WeightNames, naming: Naming, shapes: Mapping[ParameterPath, Shape]
) -> dict[str, Tensor]:
    """Returns the tensors of a model by name, given the shapes of its parameters."""
    unknown = shapes.keys() - {entry.path for entry in names.entries}
    assert not unknown, f"parameters in no table: {sorted(unknown)}"
    found: list[tuple[str, Rows]] = []
    for entry in names.entries:
        if entry.path not in shapes:  # Not every config has every parameter.
            continue
        tensor = entry.diffusers if naming == "diffusers" else entry.original
        name = PREFIX * (naming == "comfyui") + tensor.name
        shape = shapes[entry.path]
        if "{i}" not in name:
            found.append((name, Rows(entry.path, None, shape, tensor.conversion, 0)))
        for layer in range(shape[0] if "{i}" in name else 0):
            rows = Rows(entry.path, layer, shape[1:], tensor.conversion, 0)
            found.append((name.replace("{i}", str(layer)), rows))
    # Tensors outside of layers come first, then those of each layer.
    found.sort(key=lambda item: -1 if item[1].layer is None else item[1].layer)
    return _joined(found)


def _joined(found: list[tuple[str, Rows]]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, rows in found:
        shape = rows.conversion.joined(rows.shape)
        before = tensors.get(name, Tensor((0, *shape[1:]), ()))
        assert before.shape[1:] == shape[1:], name
        first_row = before.shape[0]
        tensors[name] = Tensor(
            (first_row + shape[0], *shape[1:]),
            (*before.parameters, dataclasses.replace(rows, first_row=first_row)),
        )
    return tensors
