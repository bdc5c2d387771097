"""Tables that map a model's parameters to the tensors in files.

A table is a list of entries. It determines the names and shapes of the tensors that a
file must have, and how parameters are converted to and from them.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np
from flax import nnx

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
class Form:
    """Conversion of a parameter, or one layer of it, to its shape in a file.

    To write, axes are split, one may be flipped, then all are transposed and joined.
    """

    split: Callable[[Shape], Shape] = lambda shape: shape
    flipped: int | None = None
    axes: tuple[int, ...] | None = None
    joined: Callable[[Shape], Shape] = lambda shape: shape
    """Shape in the file, as a function of the parameter's."""

    def to_file(self, parameter: np.ndarray) -> np.ndarray:
        """Converts a parameter to its form in a file."""
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


AS_IT_IS = Form()
TRANSPOSED = Form(axes=(1, 0), joined=lambda s: s[::-1])
"""[in, out] here, [out, in] in PyTorch files."""

LEADING_ONE = Form(joined=lambda s: (1, *s))
PATCH_CONVOLUTION = Form(
    split=lambda s: (1, 2, 2, s[0] // 4, s[1]),
    axes=(4, 3, 0, 1, 2),
    joined=lambda s: (s[1], s[0] // 4, 1, 2, 2),
)
"""[PC, D] here; a convolution kernel [D, C, 1, 2, 2] in the file."""

CHANNELS_FIRST = Form(
    split=lambda s: (s[0], 4, s[1] // 4), axes=(2, 1, 0), joined=lambda s: s[::-1]
)
"""[D, PC] here, [CP, D] in the file."""

CHANNELS_FIRST_BIAS = Form(split=lambda s: (4, s[0] // 4), axes=(1, 0))
HALVES_SWAPPED = Form(
    split=lambda s: (s[0], 2, s[1] // 2),
    flipped=1,
    axes=(1, 2, 0),
    joined=lambda s: s[::-1],
)
"""Transposed, with the two halves of the outputs swapped."""

HALVES_SWAPPED_BIAS = Form(split=lambda s: (2, s[0] // 2), flipped=0)


@dataclasses.dataclass(frozen=True)
class Place:
    """Name of a tensor in a file, with {i} for the layer, and the parameter's form.

    Parameters with the same name are rows of one tensor, in the order of the table.
    """

    name: str
    form: Form


@dataclasses.dataclass(frozen=True)
class Entry:
    """A parameter, and its tensor in diffusers and original names."""

    path: ParameterPath
    diffusers: Place
    original: Place


def vector(path: str, diffusers: str, original: str, form: Form = AS_IT_IS) -> Entry:
    """Returns the entry of a single parameter; its names are used as given."""
    return Entry(tuple(path.split(".")), Place(diffusers, form), Place(original, form))


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
    forms: tuple[Form, Form] = (TRANSPOSED, AS_IT_IS),
    original_forms: tuple[Form, Form] | None = None,
) -> list[Entry]:
    """Returns the entries of a linear layer; `forms` are those of kernel and bias."""
    return [
        Entry(
            (*path.split("."), parameter),
            Place(f"{diffusers}.{tensor}", form),
            Place(f"{original}.{tensor}", original_form),
        )
        for parameter, tensor, form, original_form in zip(
            ("kernel", "bias"),
            ("weight", "bias"),
            forms,
            original_forms or forms,
            strict=True,
        )
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A model class, its config, and the tensors and config.json of its files."""

    title: str
    model: Callable[..., nnx.Module]
    config: type
    entries: tuple[Entry, ...]
    comfyui: tuple[tuple[str, str], ...]
    """Pairs of substrings, replaced in turn, that turn original names into ComfyUI's.

    ComfyUI saves models with its own names; it reads original names too.
    """

    ignored: re.Pattern[str]
    """Pattern of tensors in files that models do not need."""

    read_config: Mapping[str, Callable[[Fields], Any]]
    """Readers of config.json, by the class name in it."""

    write_config: Callable[[Any], dict[str, object]]
    """Returns the content of diffusers' config.json for a config."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A parameter, or one layer of it, as consecutive rows of a tensor."""

    path: ParameterPath
    layer: int | None
    shape: Shape
    form: Form
    first_row: int

    @property
    def num_rows(self) -> int:
        """Number of rows that the parameter takes in the tensor."""
        return self.form.joined(self.shape)[0]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor that a file with the model must have."""

    shape: Shape
    pieces: tuple[Piece, ...]


def tensors_of(
    family: Family, naming: Naming, shapes: Mapping[ParameterPath, Shape]
) -> dict[str, Tensor]:
    """Returns the tensors by name, layer by layer; `shapes` are the parameters'."""
    unknown = shapes.keys() - {entry.path for entry in family.entries}
    assert not unknown, f"parameters in no table: {sorted(unknown)}"
    # Sorted below: parameters outside of layers first, then layer by layer.
    found: list[tuple[str, Piece]] = []
    for entry in family.entries:
        if entry.path not in shapes:  # The config has no such part.
            continue
        place = entry.diffusers if naming == "diffusers" else entry.original
        name = PREFIX * (naming == "comfyui") + place.name
        shape = shapes[entry.path]
        if "{i}" not in name:
            found.append((name, Piece(entry.path, None, shape, place.form, 0)))
        for layer in range(shape[0] if "{i}" in name else 0):
            piece = Piece(entry.path, layer, shape[1:], place.form, 0)
            found.append((name.replace("{i}", str(layer)), piece))
    found.sort(key=lambda item: -1 if item[1].layer is None else item[1].layer)
    return _joined(found)


def _joined(found: list[tuple[str, Piece]]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, piece in found:
        shape = piece.form.joined(piece.shape)
        before = tensors.get(name, Tensor((0, *shape[1:]), ()))
        assert before.shape[1:] == shape[1:], name
        first_row = before.shape[0]
        tensors[name] = Tensor(
            (first_row + shape[0], *shape[1:]),
            (*before.pieces, dataclasses.replace(piece, first_row=first_row)),
        )
    return tensors
