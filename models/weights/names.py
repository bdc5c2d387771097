"""Tables of names: where each parameter of a model lies in the files of others.

A table is a list of entries. From it follow the tensors that a file must have, their
shapes, what is missing or too much, and how values go in and out.
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
"""What ComfyUI puts before the original names."""

PREFIXES = (PREFIX, "diffusion_model.", "model.model.")
"""What files may have before any names; the last one, what ComfyUI saves itself."""

Shape = tuple[int, ...]
ParameterPath = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Form:
    """How a parameter, or one layer of it, lies in a file.

    Its axes are split, one may be flipped, they are transposed, and joined.
    """

    split: Callable[[Shape], Shape] = lambda shape: shape
    flipped: int | None = None
    axes: tuple[int, ...] | None = None
    joined: Callable[[Shape], Shape] = lambda shape: shape
    """The shape in the file, from that of the parameter."""

    def to_file(self, parameter: np.ndarray) -> np.ndarray:
        """The parameter as it lies in a file."""
        parts = self._flip(parameter.reshape(self.split(parameter.shape)))
        return parts.transpose(self.axes or range(parts.ndim)).reshape(
            self.joined(parameter.shape)
        )

    def to_parameter(self, tensor: np.ndarray, shape: Shape) -> np.ndarray:
        """The parameter from what lies in a file; not copied if it can be a view."""
        split = self.split(shape)
        axes = self.axes or tuple(range(len(split)))
        parts = tensor.reshape([split[axis] for axis in axes])
        return self._flip(parts.transpose(np.argsort(axes))).reshape(shape)

    def _flip(self, parts: np.ndarray) -> np.ndarray:
        return parts if self.flipped is None else np.flip(parts, self.flipped)


AS_IT_IS = Form()
TRANSPOSED = Form(axes=(1, 0), joined=lambda s: s[::-1])
"""[in, out] here, [out, in] in PyTorch."""

LEADING_ONE = Form(joined=lambda s: (1, *s))
PATCH_CONVOLUTION = Form(
    split=lambda s: (1, 2, 2, s[0] // 4, s[1]),
    axes=(4, 3, 0, 1, 2),
    joined=lambda s: (s[1], s[0] // 4, 1, 2, 2),
)
"""[PC, D] here; a convolution's [D, C, 1, 2, 2]."""

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
"""Transposed, and what is the first half of the outputs here is the second there."""

HALVES_SWAPPED_BIAS = Form(split=lambda s: (2, s[0] // 2), flipped=0)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a parameter lies: the tensor's name, {i} for the layer, and its form.

    Parameters of the same place are rows of one tensor, in the order of the table.
    """

    name: str
    form: Form


@dataclasses.dataclass(frozen=True)
class Entry:
    """A parameter, and its place in either naming."""

    path: ParameterPath
    diffusers: Place
    original: Place


def vector(path: str, diffusers: str, original: str, form: Form = AS_IT_IS) -> Entry:
    """A parameter that is no matrix; its names are whole."""
    return Entry(tuple(path.split(".")), Place(diffusers, form), Place(original, form))


def scale(path: str, diffusers: str, original: str) -> Entry:
    """The scale of a norm."""
    return vector(f"{path}.scale", f"{diffusers}.weight", f"{original}.weight")


def norm(path: str, diffusers: str, original: str) -> list[Entry]:
    """The scale and the bias of a norm."""
    bias = vector(f"{path}.bias", f"{diffusers}.bias", f"{original}.bias")
    return [scale(path, diffusers, original), bias]


def linear(
    path: str,
    diffusers: str,
    original: str,
    forms: tuple[Form, Form] = (TRANSPOSED, AS_IT_IS),
    original_forms: tuple[Form, Form] | None = None,
) -> list[Entry]:
    """The kernel and the bias of a linear layer; of both, the forms if unusual."""
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
    """A model here, and what the files of its like are made of."""

    title: str
    model: Callable[..., nnx.Module]
    config: type
    entries: tuple[Entry, ...]
    comfyui: tuple[tuple[str, str], ...]
    """What ComfyUI, where it saves a model, has in place of parts of original names.

    Each pair is replaced in turn. It reads original names too.
    """

    ignored: re.Pattern[str]
    """Tensors that files may have and no model needs."""

    read_config: Mapping[str, Callable[[Fields], Any]]
    """By the class that a config.json names: from its fields to a config."""

    write_config: Callable[[Any], dict[str, object]]
    """From a config to diffusers' config.json."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A parameter, or one layer of it, as rows of a tensor."""

    path: ParameterPath
    layer: int | None
    shape: Shape
    form: Form
    first_row: int

    @property
    def num_rows(self) -> int:
        """How many of the tensor's rows it is."""
        return self.form.joined(self.shape)[0]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor that a file has if it holds the model."""

    shape: Shape
    pieces: tuple[Piece, ...]


def tensors_of(
    family: Family, naming: Naming, shapes: Mapping[ParameterPath, Shape]
) -> dict[str, Tensor]:
    """The tensors of a model with these parameters, layer by layer."""
    unknown = shapes.keys() - {entry.path for entry in family.entries}
    assert not unknown, f"parameters in no table: {sorted(unknown)}"
    # Those before the layers, the layers of each stack, and those after them.
    found: list[tuple[str, Piece]] = []
    for entry in family.entries:
        if entry.path not in shapes:  # A part that this model does without.
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
